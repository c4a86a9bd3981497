/* The epilogue of a matrix product, and the product of two, one of them activated; forward and
 * backward. */
#include "device/cuda/kernels/column_sums.h"
#include "device/cuda/kernels/dropout.h"

/* The normal distribution's integral up to x. */
static inline __device__ float normal_integral(float x)
{
    return 0.5f * erfcf(-0.70710678f * x);
}

/* 0.5 (1 + tanh(u)) of GELU's other form is the logistic function of 2 u. */
static inline __device__ float gelu_tanh_factor(float x)
{
    float exponent = x * (1.5957691f + 0.07135481f * x * x); /* 2 sqrt(2 / pi), 0.044715 of it */
    return 1.0f / (1.0f + expf(-exponent));
}

static inline __device__ float activate(sli_activation activation, float x)
{
    if (activation == SLI_ACTIVATION_RELU)
        return x <= 0 ? 0.0f : x; /* NaN stays */
    if (activation == SLI_ACTIVATION_GELU_TANH)
        return x * gelu_tanh_factor(x);
    return activation == SLI_ACTIVATION_GELU ? x * normal_integral(x) : x;
}

struct epilogue_arguments {
    const float *x; /* all with row distance ld */
    float *out, *preactivation;
    uint16_t *out_bf16; /* instead of `out`, dense; or NULL */
    int64_t ld;
    float scale; /* of x */
    const float *bias;
    sli_activation activation;
    dropout_masks masks;
};

static __global__ void epilogue(matrix_shape shape, epilogue_arguments a)
{
    matrix_group g = group_of_thread(shape);
    if (g.count <= 0)
        return;
    int64_t at = g.row * a.ld + g.column;
    four x = load_four(a.x + at, g.count, shape.whole);
    for (int i = 0; i < 4; i++)
        x.x[i] *= a.scale;
    if (a.bias)
        x = sum_of(x, load_four(a.bias + g.column, g.count, shape.whole));
    if (a.preactivation)
        store_four(a.preactivation + at, x, g.count, shape.whole);
    for (int i = 0; i < 4; i++)
        x.x[i] = activate(a.activation, x.x[i]);
    x = multiply(x, mask_of(a.masks, g.row, g.column));
    if (a.out_bf16)
        store_four(a.out_bf16 + g.row * shape.columns + g.column, x, g.count, shape.whole);
    else
        store_four(a.out + at, x, g.count, shape.whole);
}

static cudaError_t launch_epilogue(cudaStream_t stream, int64_t rows, int64_t columns,
                                   const epilogue_arguments &a)
{
    bool whole = are_aligned(columns, a.ld, a.x, a.out, a.out_bf16, a.preactivation, a.bias);
    return launch_groups(stream, matrix_shape{rows, columns, whole}, epilogue, a);
}

cudaError_t sli_launch_epilogue(const sli_epilogue *arguments, cudaStream_t stream)
{
    epilogue_arguments a = {arguments->x,
                            arguments->out,
                            arguments->preactivation,
                            NULL,
                            arguments->columns,
                            arguments->scale == 0 ? 1.0f : arguments->scale,
                            arguments->bias,
                            arguments->activation,
                            masks_of(&arguments->dropout, arguments->columns)};
    return launch_epilogue(stream, arguments->rows, arguments->columns, a);
}

cudaError_t sli_launch_gemm_epilogue(const sli_gemm *gemm, cudaStream_t stream)
{
    epilogue_arguments a = {gemm->c,      gemm->c,          gemm->preactivation,
                            gemm->c_bf16, gemm->ldc,        1.0f,
                            gemm->bias,   gemm->activation, masks_of(&gemm->dropout, gemm->n)};
    return launch_epilogue(stream, gemm->m, gemm->n, a);
}

/* ---- Backward --------------------------------------------------------------------------- */

struct epilogue_gradient {
    enum { SUMS = 1 };
    float *grad;
    const uint16_t *grad_bf16; /* or NULL; it does not change */
    const float *saved;
    const uint16_t *saved_bf16;
    uint16_t *result; /* instead of grad; or NULL */
    int64_t ld;
    sli_activation activation;
    dropout_masks masks;

    /* What dropout and ReLU let through is what is positive in the saved output: no mask is
     * drawn for it. */
    __device__ four through_relu(four grad_out, four output) const
    {
        float scale = masks.drops ? masks.scale : 1.0f;
        for (int i = 0; i < 4; i++)
            grad_out.x[i] = output.x[i] <= 0 ? 0.0f : grad_out.x[i] * scale;
        return grad_out;
    }

    __device__ four through_gelu(four grad_out, four x) const
    {
        for (int i = 0; i < 4; i++) {
            float density = 0.39894228f * expf(-0.5f * x.x[i] * x.x[i]);
            grad_out.x[i] *= normal_integral(x.x[i]) + x.x[i] * density;
        }
        return grad_out;
    }

    __device__ four through_gelu_tanh(four grad_out, four x) const
    {
        for (int i = 0; i < 4; i++) {
            float factor = gelu_tanh_factor(x.x[i]);
            float slope = 1.5957691f + 3 * 0.07135481f * x.x[i] * x.x[i];
            grad_out.x[i] *= factor + x.x[i] * factor * (1.0f - factor) * slope;
        }
        return grad_out;
    }

    __device__ four load_saved(const matrix_shape &shape, const matrix_group &g, int64_t at) const
    {
        return saved_bf16 ? load_four(saved_bf16 + at, g.count, shape.whole)
                          : load_four(saved + at, g.count, shape.whole);
    }

    __device__ void add(const matrix_shape &shape, const matrix_group &g, four *sums) const
    {
        int64_t at = g.row * ld + g.column;
        if (grad_bf16) {
            *sums = sum_of(*sums, load_four(grad_bf16 + at, g.count, shape.whole));
            return;
        }
        four x = load_four(grad + at, g.count, shape.whole);
        if (activation == SLI_ACTIVATION_RELU)
            x = through_relu(x, load_saved(shape, g, at));
        else
            x = multiply(x, mask_of(masks, g.row, g.column));
        if (activation == SLI_ACTIVATION_GELU)
            x = through_gelu(x, load_saved(shape, g, at));
        if (activation == SLI_ACTIVATION_GELU_TANH)
            x = through_gelu_tanh(x, load_saved(shape, g, at));
        if (result)
            store_four(result + at, x, g.count, shape.whole);
        else if (activation != SLI_ACTIVATION_NONE || masks.drops)
            store_four(grad + at, x, g.count, shape.whole);
        *sums = sum_of(*sums, x);
    }
};

size_t sli_scratch_epilogue_backward(const sli_epilogue_backward *a)
{
    return a->grad_bias ? column_sums_bytes(a->rows, a->columns, epilogue_gradient::SUMS) : 0;
}

cudaError_t sli_launch_epilogue_backward(const sli_epilogue_backward *a, void *scratch,
                                         cudaStream_t stream)
{
    matrix_shape shape = {a->rows, a->columns,
                          are_aligned(a->columns, a->ld, a->grad, a->grad_bf16, a->saved,
                                      a->saved_bf16, a->result_bf16)};
    epilogue_gradient terms = {a->grad,        a->grad_bf16,
                               a->saved,       a->saved_bf16,
                               a->result_bf16, a->ld,
                               a->activation,  masks_of(&a->dropout, a->columns)};
    column_results results = {{a->grad_bias}, epilogue_gradient::SUMS, a->beta};
    return launch_column_sums(stream, shape, terms, scratch, results);
}

/* ---- SwiGLU ----------------------------------------------------------------------------- */

static __global__ void swiglu(matrix_shape shape, sli_swiglu a)
{
    matrix_group g = group_of_thread(shape);
    if (g.count <= 0)
        return;
    int64_t at = g.row * a.width + g.column;
    four gate = load_four(a.gate + at, g.count, shape.whole);
    four out = load_four(a.up + at, g.count, shape.whole);
    for (int i = 0; i < 4; i++)
        out.x[i] *= gate.x[i] / (1.0f + expf(-gate.x[i]));
    store_four(a.out + at, out, g.count, shape.whole);
}

cudaError_t sli_launch_swiglu(const sli_swiglu *a, cudaStream_t stream)
{
    matrix_shape shape = {a->rows, a->width,
                          are_aligned(a->width, a->width, a->gate, a->up, a->out)};
    return launch_groups(stream, shape, swiglu, *a);
}

static __global__ void swiglu_backward(matrix_shape shape, sli_swiglu_backward a)
{
    matrix_group g = group_of_thread(shape);
    if (g.count <= 0)
        return;
    int64_t at = g.row * a.width + g.column;
    four gate = load_four(a.gate + at, g.count, shape.whole);
    four up = load_four(a.up + at, g.count, shape.whole);
    four grad = load_four(a.grad_out + at, g.count, shape.whole);
    for (int i = 0; i < 4; i++) {
        float factor = 1.0f / (1.0f + expf(-gate.x[i])), silu = gate.x[i] * factor;
        gate.x[i] = grad.x[i] * up.x[i] * (factor + silu * (1.0f - factor));
        up.x[i] = grad.x[i] * silu;
    }
    store_four(a.grad_gate + at, gate, g.count, shape.whole);
    store_four(a.grad_up + at, up, g.count, shape.whole);
}

cudaError_t sli_launch_swiglu_backward(const sli_swiglu_backward *a, cudaStream_t stream)
{
    matrix_shape shape = {a->rows, a->width,
                          are_aligned(a->width, a->width, a->gate, a->up, a->grad_out, a->grad_gate,
                                      a->grad_up)};
    return launch_groups(stream, shape, swiglu_backward, *a);
}
