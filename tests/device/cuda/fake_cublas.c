/* cuBLASLt's products as plain loops, over column-major matrices as it has them. */
#include "core/bf16.h"
#include "device/cuda/fake_cuda.h"

#include <assert.h>
#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the opaque structs hold. */
typedef struct product {
    int32_t transpose_a, transpose_b, epilogue, compute;
    const void *bias; /* of the result's type */
} product;

typedef struct matrix {
    int32_t bf16;
    uint64_t rows, columns;
    int64_t ld;
} matrix;

/* The bytes that addresses of a, b, c and d are multiples of: a preference, then an algorithm's. */
typedef struct alignments {
    uint32_t least[4];
} alignments;

_Static_assert(sizeof(product) <= sizeof(cublasLtMatmulDescOpaque_t), "a product fits");
_Static_assert(sizeof(matrix) <= sizeof(cublasLtMatrixLayoutOpaque_t), "a matrix fits");
_Static_assert(sizeof(alignments) <= sizeof(cublasLtMatmulPreferenceOpaque_t) &&
                   sizeof(alignments) <= sizeof(cublasLtMatmulAlgo_t),
               "alignments fit");

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = calloc(1, 16);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an error";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    assert(scale == CUDA_R_32F &&
           (compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_FAST_TF32));
    *out = calloc(1, sizeof **out);
    ((product *)*out)->compute = (int32_t)compute;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t described)
{
    free(described);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t described,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    product *p = (product *)described;
    void *field = attribute == CUBLASLT_MATMUL_DESC_TRANSA     ? &p->transpose_a
                  : attribute == CUBLASLT_MATMUL_DESC_TRANSB   ? &p->transpose_b
                  : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE ? (void *)&p->epilogue
                                                               : (void *)&p->bias;
    assert(bytes == (field == (void *)&p->bias ? sizeof p->bias : sizeof p->epilogue));
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    if (ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    if (ld > fake_cuda()->longest_row)
        fake_cuda()->longest_row = ld;
    matrix made = {type == CUDA_R_16BF, rows, columns, ld};
    memcpy(*out, &made, sizeof made);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    const alignments undemanding = {{256, 256, 256, 256}};
    *out = calloc(1, sizeof **out);
    memcpy(*out, &undemanding, sizeof undemanding);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    unsigned which = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    assert(bytes == (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4));
    if (which < 4)
        memcpy(&((alignments *)preference)->least[which], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* What the real library has no algorithm for: bf16 rows that are not aligned to 4 bytes. */
static bool is_aligned(const matrix *m, uint32_t least)
{
    return !m->bf16 || (m->ld % 2 == 0 && least % 4 == 0);
}

/* Products of bf16 have none with ReLU here, so that the way round is tested. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t described,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    const product *p = (const product *)described;
    const alignments *chosen = (const alignments *)preference;
    (void)handle, (void)c, (void)wanted;
    assert(p->epilogue == CUBLASLT_EPILOGUE_DEFAULT || p->bias);
    memset(results, 0, sizeof *results);
    results->workspaceSize = 1000;
    memcpy(&results->algo, chosen, sizeof *chosen);
    *found = !(((const matrix *)a)->bf16 && p->epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) &&
             is_aligned((const matrix *)a, chosen->least[0]) &&
             is_aligned((const matrix *)b, chosen->least[1]) &&
             is_aligned((const matrix *)d, chosen->least[3]);
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

typedef struct call {
    product product;
    matrix a, b, d;
    const void *a_data, *b_data;
    void *d_data;
    float alpha, beta;
    char *workspace;
    size_t workspace_bytes;
} call;

/* The f32 numbers of a product in TF32 lose their last 13 bits. */
static double element(const call *c, const matrix *m, const void *data, bool transposed,
                      int64_t row, int64_t col)
{
    int64_t at = transposed ? row * m->ld + col : col * m->ld + row;
    uint32_t bits;
    float value;
    if (m->bf16)
        bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    else
        memcpy(&bits, (const float *)data + at, sizeof bits);
    if (c->product.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
        bits &= 0xFFFFE000;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float finish_element(const call *c, double sum, int64_t row, float before)
{
    float value = (float)(c->alpha * sum) + (c->beta != 0 ? c->beta * before : 0);
    if (c->product.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        value += c->d.bf16 ? sli_f32_from_bf16(((const uint16_t *)c->product.bias)[row])
                           : ((const float *)c->product.bias)[row];
    return c->product.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS && value < 0 ? 0 : value;
}

static cudaError_t multiply(void *argument)
{
    const call *c = argument;
    bool ta = c->product.transpose_a == CUBLAS_OP_T, tb = c->product.transpose_b == CUBLAS_OP_T;
    int64_t inner = (int64_t)(ta ? c->a.rows : c->a.columns);
    memset(c->workspace, 0xFF, c->workspace_bytes);
    if (fake_cuda()->product_us > 0)
        usleep((useconds_t)fake_cuda()->product_us);
    for (int64_t col = 0; col < (int64_t)c->d.columns; col++)
        for (int64_t row = 0; row < (int64_t)c->d.rows; row++) {
            double sum = 0;
            for (int64_t i = 0; i < inner; i++)
                sum += element(c, &c->a, c->a_data, ta, row, i) *
                       element(c, &c->b, c->b_data, tb, i, col);
            int64_t at = col * c->d.ld + row;
            float *exact = (float *)c->d_data + at;
            if (c->d.bf16)
                ((uint16_t *)c->d_data)[at] = sli_bf16_from_f32(finish_element(c, sum, row, 0));
            else
                *exact = finish_element(c, sum, row, *exact);
        }
    return cudaSuccess;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t described,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    call made = {.a_data = a, .b_data = b, .d_data = d, .workspace = workspace};
    const alignments *chosen = (const alignments *)algo;
    (void)handle;
    assert(c == d && c_layout == d_layout);
    assert(!((const matrix *)d_layout)->bf16 || *(const float *)beta == 0);
    assert(fake_is_device_memory(a) && fake_is_device_memory(b) && fake_is_device_memory(d));
    memcpy(&made.product, described, sizeof made.product);
    memcpy(&made.a, a_layout, sizeof made.a);
    memcpy(&made.b, b_layout, sizeof made.b);
    memcpy(&made.d, d_layout, sizeof made.d);
    memcpy(&made.alpha, alpha, sizeof made.alpha);
    memcpy(&made.beta, beta, sizeof made.beta);
    made.workspace_bytes = workspace_bytes;
    bool ta = made.product.transpose_a == CUBLAS_OP_T, tb = made.product.transpose_b == CUBLAS_OP_T;
    if ((uintptr_t)a % chosen->least[0] || (uintptr_t)b % chosen->least[1] ||
        (uintptr_t)d % chosen->least[3] || (ta ? made.a.columns : made.a.rows) != made.d.rows ||
        (tb ? made.b.rows : made.b.columns) != made.d.columns ||
        (ta ? made.a.rows : made.a.columns) != (tb ? made.b.columns : made.b.rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    return fake_enqueue(stream, multiply, &made, sizeof made) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
