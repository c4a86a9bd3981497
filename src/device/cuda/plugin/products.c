/* Matrix products, by cuBLASLt.
 *
 * Matrices are row-major here and column-major there, where each is its own transpose: what is
 * asked of cuBLASLt is c^T = op(b)^T op(a)^T. Its "a" is our b and its "m" our n; a matrix is
 * transposed for it exactly if it is for us.
 *
 * How a product is computed is chosen once for each shape and kept. The choice must not depend on
 * chance, nor on where a model is cut: alignments are those that every tensor of such rows has, and
 * schemes that add partial sums in the order of their arrival are left out. */
#include "device/cuda/launchers.h"
#include "device/cuda/plugin/cuda_device.h"

#include "sluice/dtype.h"

#include <cublasLt.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PLANS = 256, WORKSPACE_BYTES = 32 << 20, PADDED_ROW = 64 /* elements */ };

/* What a plan depends on. Compared as bytes: it has no padding that is not 0. */
typedef struct product_key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t transpose_a, transpose_b;
    int32_t precision;                              /* sl_precision */
    int32_t c_bf16, unused;                         /* whether the result is bf16; 0 */
    int32_t epilogue;                               /* cublasLtEpilogue_t */
    uint32_t align_a, align_b, align_c, align_bias; /* bytes */
} product_key;

typedef struct product_plan {
    product_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    bool exists; /* false: cuBLASLt has no such product with this epilogue */
} product_plan;

struct sli_products {
    cublasLtHandle_t handle;
    pthread_mutex_t lock; /* guards what follows, the plans' descriptions until a call is queued */
    int filled, next;     /* plans that there are; where the next one goes, in a ring */
    product_plan plans[MOST_PLANS];
};

static sl_status check_product(const sl_device *device, const char *what, cublasStatus_t code)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return SL_OK;
    return sl_error(SL_ERR_INTERNAL, "%s: cuBLASLt: %s: %s", device->name, what,
                    cublasLtGetStatusString(code));
}

sl_status sli_products_create(sl_device *device, sli_products **out)
{
    sli_products *products = *out = calloc(1, sizeof *products);
    if (!products)
        return sl_error(SL_ERR_MEMORY, "sl_device: no memory for %s's own records", device->name);
    pthread_mutex_init(&products->lock, NULL);
    return check_product(device, "create", cublasLtCreate(&products->handle));
}

static void clear_plan(product_plan *plan)
{
    if (plan->product)
        (void)cublasLtMatmulDescDestroy(plan->product);
    cublasLtMatrixLayout_t layouts[] = {plan->a, plan->b, plan->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            (void)cublasLtMatrixLayoutDestroy(layouts[i]);
    *plan = (product_plan){.exists = false};
}

void sli_products_destroy(sli_products **products)
{
    if (!*products)
        return;
    for (int i = 0; i < MOST_PLANS; i++)
        clear_plan(&(*products)->plans[i]);
    if ((*products)->handle)
        (void)cublasLtDestroy((*products)->handle);
    pthread_mutex_destroy(&(*products)->lock);
    free(*products);
    *products = NULL;
}

/* ---- Plans ------------------------------------------------------------------------------ */

/* The largest power of two, up to 16, that divides a row's bytes and the address. */
static uint32_t alignment_of(const void *matrix, int64_t row_bytes)
{
    uintptr_t bits = (uintptr_t)matrix | (uintptr_t)row_bytes | 16;
    return (uint32_t)(bits & -bits);
}

static product_key key_of(const sli_gemm *g, cublasLtEpilogue_t epilogue, const void *bias)
{
    int64_t bytes = g->bf16 ? 2 : 4;
    return (product_key){
        .m = g->m,
        .n = g->n,
        .k = g->k,
        .lda = g->lda,
        .ldb = g->ldb,
        .ldc = g->c_bf16 ? g->n : g->ldc,
        .transpose_a = g->transpose_a,
        .transpose_b = g->transpose_b,
        .precision = g->bf16   ? SL_PRECISION_BF16
                     : g->tf32 ? SL_PRECISION_TF32
                               : SL_PRECISION_F32,
        .c_bf16 = g->c_bf16 != NULL,
        .epilogue = (int32_t)epilogue,
        .align_a = alignment_of(g->a, g->lda * bytes),
        .align_b = alignment_of(g->b, g->ldb * bytes),
        .align_c = g->c_bf16 ? alignment_of(g->c_bf16, g->n * 2) : alignment_of(g->c, g->ldc * 4),
        .align_bias = epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 4 : alignment_of(bias, 16),
    };
}

static cublasStatus_t set_product(const product_plan *plan,
                                  cublasLtMatmulDescAttributes_t attribute, const void *value,
                                  size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(plan->product, attribute, value, bytes);
}

static cublasStatus_t set_bias(const product_plan *plan, const void *bias)
{
    if (plan->key.epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return CUBLAS_STATUS_SUCCESS;
    return set_product(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

/* Our b is cuBLASLt's a. A stored matrix has as many columns for it as it has rows for us. */
static cublasStatus_t describe(const product_key *key, product_plan *out)
{
    cudaDataType_t type = key->precision == SL_PRECISION_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasComputeType_t compute =
        key->precision == SL_PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cudaDataType_t c_type = key->c_bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const int32_t transpose[] = {key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                 key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N};
    int64_t a_columns = key->transpose_a ? key->m : key->k;
    int64_t b_columns = key->transpose_b ? key->k : key->n;
    cublasStatus_t code = cublasLtMatmulDescCreate(&out->product, compute, CUDA_R_32F);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = set_product(out, CUBLASLT_MATMUL_DESC_TRANSA, &transpose[0], sizeof *transpose);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = set_product(out, CUBLASLT_MATMUL_DESC_TRANSB, &transpose[1], sizeof *transpose);
    if (code == CUBLAS_STATUS_SUCCESS)
        code =
            set_product(out, CUBLASLT_MATMUL_DESC_EPILOGUE, &key->epilogue, sizeof key->epilogue);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutCreate(&out->a, type, (uint64_t)b_columns,
                                          (uint64_t)(key->transpose_b ? key->n : key->k), key->ldb);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutCreate(&out->b, type, (uint64_t)a_columns,
                                          (uint64_t)(key->transpose_a ? key->k : key->m), key->lda);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutCreate(&out->c, c_type, (uint64_t)key->n, (uint64_t)key->m,
                                          key->ldc);
    return code;
}

static cublasStatus_t set_preferences(cublasLtMatmulPreference_t preference, const product_key *key)
{
    const uint64_t workspace = WORKSPACE_BYTES;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b, sizeof key->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a, sizeof key->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align_c, sizeof key->align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_c, sizeof key->align_c},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        cublasStatus_t code =
            cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].attribute, wishes[i].value,
                                                 wishes[i].bytes);
        if (code != CUBLAS_STATUS_SUCCESS)
            return code;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t choose_algorithm(cublasLtHandle_t handle, product_plan *plan)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t code = cublasLtMatmulPreferenceCreate(&preference);
    if (code != CUBLAS_STATUS_SUCCESS)
        return code;
    code = set_preferences(preference, &plan->key);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulAlgoGetHeuristic(handle, plan->product, plan->a, plan->b, plan->c,
                                              plan->c, preference, 1, &found, &count);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    plan->exists = code == CUBLAS_STATUS_SUCCESS && count > 0;
    if (plan->exists) {
        plan->algorithm = found.algo;
        plan->workspace_bytes = found.workspaceSize;
    }
    return code == CUBLAS_STATUS_NOT_SUPPORTED ? CUBLAS_STATUS_SUCCESS : code;
}

/* The plan for a product; the oldest gives way when there are too many. The lock is held. The
 * choice of an algorithm may look at the bias, whose alignment is a part of the key. */
static sl_status find_plan(sl_device *device, const product_key *key, const void *bias,
                           product_plan **out)
{
    sli_products *products = sli_cuda(device)->products;
    for (int i = 0; i < products->filled; i++) {
        *out = &products->plans[i];
        if (memcmp(&(*out)->key, key, sizeof *key) == 0)
            return SL_OK;
    }
    product_plan *made = *out = &products->plans[products->next];
    clear_plan(made);
    sl_status status;
    SL_TRY(check_product(device, "describe a product", describe(key, made)));
    made->key = *key;
    SL_TRY_OR_FAIL(check_product(device, "set the bias", set_bias(made, bias)));
    SL_TRY_OR_FAIL(
        check_product(device, "choose an algorithm", choose_algorithm(products->handle, made)));
    products->next = (products->next + 1) % MOST_PLANS;
    if (products->filled < MOST_PLANS)
        products->filled++;
    return SL_OK;
fail:
    clear_plan(made);
    return status;
}

/* ---- A product -------------------------------------------------------------------------- */

/* What cuBLASLt does in the same pass: of activations, ReLU alone. It stores no pre-activation in
 * f32, from which a GELU's gradient comes. */
static cublasLtEpilogue_t fused_epilogue(const sli_gemm *g)
{
    bool is_relu = g->activation == SLI_ACTIVATION_RELU;
    if (!g->bias || g->preactivation || (g->activation != SLI_ACTIVATION_NONE && !is_relu) ||
        g->dropout.p > 0)
        return CUBLASLT_EPILOGUE_DEFAULT;
    return is_relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
}

/* Queues the product. `bias` has the result's type. *exists: cuBLASLt has such a product; else
 * nothing is queued. */
static sl_status multiply(sl_device *device, const sli_gemm *g, cublasLtEpilogue_t epilogue,
                          const void *bias, bool *exists)
{
    sli_products *products = sli_cuda(device)->products;
    const float one = 1;
    product_key key = key_of(g, epilogue, bias);
    product_plan *by;
    void *workspace;
    SL_TRY(find_plan(device, &key, bias, &by));
    *exists = by->exists;
    if (!by->exists)
        return SL_OK;
    SL_TRY(check_product(device, "set the bias", set_bias(by, bias)));
    SL_TRY(sli_cuda_scratch(device, by->workspace_bytes, &workspace));
    void *c = g->c_bf16 ? (void *)g->c_bf16 : g->c;
    cublasStatus_t code = cublasLtMatmul(products->handle, by->product, &one, g->b, by->a, g->a,
                                         by->b, &g->beta, c, by->c, c, by->c, &by->algorithm,
                                         workspace, by->workspace_bytes, sli_cuda(device)->stream);
    sli_cuda_scratch_free(device, workspace);
    return check_product(device, "multiply", code);
}

/* c = op(a) op(b) + beta c, and what *epilogue names, or as much of it as cuBLASLt has. */
static sl_status multiply_fused(sl_device *device, const sli_gemm *g, cublasLtEpilogue_t *epilogue)
{
    sli_products *products = sli_cuda(device)->products;
    bool exists = false;
    pthread_mutex_lock(&products->lock);
    sl_status status = multiply(device, g, *epilogue, g->bias, &exists);
    if (status == SL_OK && !exists && *epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
        *epilogue = CUBLASLT_EPILOGUE_DEFAULT;
        status = multiply(device, g, *epilogue, g->bias, &exists);
    }
    pthread_mutex_unlock(&products->lock);
    if (status != SL_OK || exists)
        return status;
    return sl_error(SL_ERR_UNSUPPORTED,
                    "%s: cuBLASLt has no product of %s matrices [%lld, %lld] and [%lld, %lld]",
                    device->name, g->bf16 ? "bf16" : "f32", (long long)g->m, (long long)g->k,
                    (long long)g->k, (long long)g->n);
}

static sl_status zero_rows(sl_device *device, const sli_gemm *g)
{
    return sli_cuda_check(device, "zero",
                          cudaMemset2DAsync(g->c, (size_t)g->ldc * sizeof(float), 0,
                                            (size_t)g->n * sizeof(float), (size_t)g->m,
                                            sli_cuda(device)->stream));
}

/* cuBLASLt has no algorithm for bf16 rows that begin at an address that 4 does not divide, as every
 * second row of an odd length does. Such an operand is copied into rows of a length that suits it:
 * *matrix and *ld become those of *copy, which is scratch memory. */
static sl_status align_rows(sl_device *device, int64_t rows, int64_t columns, const void **matrix,
                            int64_t *ld, void **copy)
{
    const size_t element = sizeof(uint16_t);
    int64_t padded = (columns + PADDED_ROW - 1) / PADDED_ROW * PADDED_ROW;
    *copy = NULL;
    if (*ld % 2 == 0 && (uintptr_t)*matrix % 4 == 0)
        return SL_OK;
    SL_TRY(sli_cuda_scratch(device, (size_t)(rows * padded) * element, copy));
    SL_TRY(sli_cuda_check(device, "align a product's rows",
                          cudaMemcpy2DAsync(*copy, (size_t)padded * element, *matrix,
                                            (size_t)*ld * element, (size_t)columns * element,
                                            (size_t)rows, cudaMemcpyDeviceToDevice,
                                            sli_cuda(device)->stream)));
    *matrix = *copy;
    *ld = padded;
    return SL_OK;
}

static sl_status multiply_aligned(sl_device *device, const sli_gemm *g,
                                  cublasLtEpilogue_t *epilogue)
{
    sli_gemm aligned = *g;
    void *copies[2] = {NULL, NULL};
    sl_status status;
    if (g->bf16) {
        SL_TRY_OR_FAIL(align_rows(device, g->transpose_a ? g->k : g->m,
                                  g->transpose_a ? g->m : g->k, &aligned.a, &aligned.lda,
                                  &copies[0]));
        SL_TRY_OR_FAIL(align_rows(device, g->transpose_b ? g->n : g->k,
                                  g->transpose_b ? g->k : g->n, &aligned.b, &aligned.ldb,
                                  &copies[1]));
    }
    status = multiply_fused(device, &aligned, epilogue);

fail:
    sli_cuda_scratch_free(device, copies[0]);
    sli_cuda_scratch_free(device, copies[1]);
    return status;
}

/* ---- Sizes that cuBLASLt is slow with --------------------------------------------------- */

/* For bf16 matrices of which a size is no multiple of 8, as those of 28,782 classes, cuBLASLt has
 * the kernels of older GPUs: on an H100, 157 to 370 TFLOP/s where it reaches 770. A large product
 * of them is two: one of whole multiples, and one of what is left of that size. */
enum { FAST_MULTIPLE = 8 };

static bool is_worth_two(const sli_gemm *g, int64_t size)
{
    return size % FAST_MULTIPLE && size >= 1024 && g->m * g->n >= (1 << 30) / g->k;
}

static const void *element_of(const void *matrix, int64_t index)
{
    return (const uint16_t *)matrix + index;
}

/* Sums over the first of the depth, and over the rest with what comes after the product. */
static void split_depth(sli_gemm *first, sli_gemm *rest)
{
    int64_t most = first->k - first->k % FAST_MULTIPLE;
    first->k = most;
    first->bias = NULL;
    first->preactivation = NULL;
    first->activation = SLI_ACTIVATION_NONE;
    first->dropout.p = 0;
    rest->k -= most;
    rest->a = element_of(rest->a, rest->transpose_a ? most * rest->lda : most);
    rest->b = element_of(rest->b, rest->transpose_b ? most : most * rest->ldb);
    rest->beta = 1;
}

static void split_columns(sli_gemm *first, sli_gemm *rest)
{
    int64_t most = first->n - first->n % FAST_MULTIPLE;
    first->n = most;
    rest->n -= most;
    rest->b = element_of(rest->b, rest->transpose_b ? most * rest->ldb : most);
    rest->c += most;
    rest->bias = rest->bias ? rest->bias + most : NULL;
    rest->preactivation = rest->preactivation ? rest->preactivation + most : NULL;
}

static void split_rows(sli_gemm *first, sli_gemm *rest)
{
    int64_t most = first->m - first->m % FAST_MULTIPLE;
    first->m = most;
    rest->m -= most;
    rest->a = element_of(rest->a, rest->transpose_a ? most : most * rest->lda);
    rest->c += most * rest->ldc;
    rest->preactivation = rest->preactivation ? rest->preactivation + most * rest->ldc : NULL;
}

/* Whether the product is better made as *first and then *rest. Dropout's masks are functions of
 * whole rows and columns. */
static bool split_product(const sli_gemm *g, sli_gemm *first, sli_gemm *rest)
{
    *first = *rest = *g;
    if (!g->bf16 || g->k < 1 || g->c_bf16)
        return false;
    if (is_worth_two(g, g->k))
        split_depth(first, rest);
    else if (is_worth_two(g, g->n) && g->dropout.p == 0)
        split_columns(first, rest);
    else if (is_worth_two(g, g->m) && g->dropout.p == 0)
        split_rows(first, rest);
    else
        return false;
    return true;
}

/* Does anything come after the product? */
static bool is_left(const sli_gemm *g)
{
    return g->bias || g->preactivation || g->activation != SLI_ACTIVATION_NONE || g->dropout.p > 0;
}

/* The product and all that comes after it, to bf16, where cuBLASLt has that: in the sizes that it
 * is fast with. Its bias is bf16 then. */
static sl_status multiply_to_bf16(sl_device *device, const sli_gemm *g, bool *exists)
{
    sli_products *products = sli_cuda(device)->products;
    cublasLtEpilogue_t fused = fused_epilogue(g);
    sli_convert rounding = {.count = g->n, .to_bf16 = true, .from = g->bias};
    *exists = false;
    if (g->k < 1 || g->k % FAST_MULTIPLE || g->n % FAST_MULTIPLE ||
        (is_left(g) && fused == CUBLASLT_EPILOGUE_DEFAULT))
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(
        sli_cuda_scratch(device, g->bias ? (size_t)g->n * sizeof(uint16_t) : 0, &rounding.to));
    if (g->bias)
        SL_TRY_OR_FAIL(sli_cuda_convert(device, &rounding));
    pthread_mutex_lock(&products->lock);
    status = multiply(device, g, fused, rounding.to, exists);
    pthread_mutex_unlock(&products->lock);

fail:
    sli_cuda_scratch_free(device, rounding.to);
    return status;
}

static sl_status multiply_whole(sl_device *device, const sli_gemm *g)
{
    sli_gemm exact = *g;
    bool is_done = false;
    if (g->c_bf16)
        SL_TRY(multiply_to_bf16(device, g, &is_done));
    if (is_done)
        return SL_OK;
    exact.c_bf16 = NULL;
    bool can_fuse = g->k > 0 && !g->c_bf16;
    cublasLtEpilogue_t fused = can_fuse ? fused_epilogue(g) : CUBLASLT_EPILOGUE_DEFAULT;
    if (g->k > 0)
        SL_TRY(multiply_aligned(device, &exact, &fused));
    else if (g->beta == 0)
        SL_TRY(zero_rows(device, g));
    if (!g->c_bf16 && (!is_left(g) || fused != CUBLASLT_EPILOGUE_DEFAULT))
        return SL_OK;
    return sli_cuda_check(device, "gemm's epilogue",
                          sli_launch_gemm_epilogue(g, sli_cuda(device)->stream));
}

static sl_status multiply_parts(sl_device *device, const sli_gemm *g)
{
    sli_gemm first, rest;
    if (!split_product(g, &first, &rest))
        return multiply_whole(device, g);
    SL_TRY(multiply_parts(device, &first));
    return multiply_parts(device, &rest);
}

sl_status sli_cuda_gemm(sl_device *device, const sli_gemm *g)
{
    SL_TRY(sli_cuda_enter(device));
    return multiply_parts(device, g);
}
