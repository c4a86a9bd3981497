/* The epilogue of a matrix product, and the product of two, one of them activated; forward and
 * backward. */
#include "device/cpu/isa/isa.h"
#include "device/cpu/isa/random.h"

/* 0.5 (1 + tanh(u)) is the logistic function of 2 u. */
static inline float gelu_tanh_exponent(float x)
{
    return x * (1.5957691f + 0.07135481f * x * x); /* 2 sqrt(2 / pi), and 0.044715 of it */
}

static void apply_activation(sli_activation activation, int64_t count, float *x)
{
    if (activation == SLI_ACTIVATION_RELU)
        for (int64_t i = 0; i < count; i++)
            x[i] = x[i] <= 0 ? 0.0f : x[i]; /* NaN stays */
    if (activation == SLI_ACTIVATION_GELU)
        for (int64_t i = 0; i < count; i++) {
            float density, integral;
            normal_f32(x[i], &density, &integral);
            x[i] *= integral;
        }
    if (activation == SLI_ACTIVATION_GELU_TANH)
        for (int64_t i = 0; i < count; i++)
            x[i] *= logistic_f32(gelu_tanh_exponent(x[i]));
}

/* `to` will be written next, a row of a matrix and apart from the one before it. */
static void expect_row(int64_t count, const float *to)
{
    for (int64_t i = 0; i < count; i += 16)
        __builtin_prefetch(to + i, 1);
}

/* to = from + bias; to may be from. */
static void add_bias(int64_t count, float *to, const float *from, const float *bias)
{
    if (bias) {
        SLI_ELEMENTWISE
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i] + bias[i];
    } else if (to != from) {
        copy_floats(count, to, from);
    }
}

void SLI_OF_ISA(sli_epilogue)(const sli_gemm *gemm, const float *from, int64_t ld,
                              int64_t first_row, int64_t rows, int64_t first_column,
                              int64_t columns)
{
    masks m;
    bool is_apart = from != gemm->c + first_row * gemm->ldc + first_column;
    masks_begin(&m, &gemm->dropout, gemm->n, columns == gemm->n ? first_row + rows : 0);
    for (int64_t row = first_row; row < first_row + rows; row++)
        for (int64_t start = 0; start < columns; start += MASK_COLUMNS) {
            int64_t column = first_column + start;
            int64_t count = sli_smaller(columns - start, MASK_COLUMNS);
            float *c = gemm->c + row * gemm->ldc + column;
            if (is_apart && row + 1 < first_row + rows)
                expect_row(count, c + gemm->ldc);
            add_bias(count, c, from + (row - first_row) * ld + start,
                     gemm->bias ? gemm->bias + column : NULL);
            if (gemm->preactivation)
                copy_floats(count, gemm->preactivation + row * gemm->ldc + column, c);
            apply_activation(gemm->activation, count, c);
            if (m.dropout) {
                const float *restrict mask = masks_get(&m, row, column, count);
                for (int64_t i = 0; i < count; i++)
                    c[i] *= mask[i];
            }
        }
}

/* Dropout and ReLU let through the elements whose saved output is positive: no mask is drawn. */
static void relu_backward(int64_t count, float *restrict grad, const float *restrict saved,
                          float scale)
{
    for (int64_t i = 0; i < count; i++)
        grad[i] = saved[i] <= 0 ? 0.0f : grad[i] * scale;
}

static void gelu_backward(int64_t count, float *restrict grad, const float *restrict saved)
{
    for (int64_t i = 0; i < count; i++) {
        float density, integral;
        normal_f32(saved[i], &density, &integral);
        grad[i] *= integral + saved[i] * density;
    }
}

static void gelu_tanh_backward(int64_t count, float *restrict grad, const float *restrict saved)
{
    for (int64_t i = 0; i < count; i++) {
        float x = saved[i], upper = logistic_f32(gelu_tanh_exponent(x));
        float slope = 1.5957691f + 3 * 0.07135481f * x * x;
        grad[i] *= upper + x * upper * (1.0f - upper) * slope;
    }
}

void SLI_OF_ISA(sli_epilogue_backward)(const sli_epilogue_backward *arguments, int64_t first_row,
                                       int64_t rows, float *sums)
{
    int64_t columns = arguments->columns;
    bool relu = arguments->activation == SLI_ACTIVATION_RELU;
    masks m;
    masks_begin(&m, &arguments->dropout, columns, columns <= MASK_COLUMNS ? first_row + rows : 0);
    float scale = m.dropout ? m.scale : 1.0f;
    for (int64_t start = 0; start < columns; start += MASK_COLUMNS)
        for (int64_t row = first_row; row < first_row + rows; row++) {
            int64_t count = sli_smaller(columns - start, MASK_COLUMNS);
            int64_t at = row * arguments->ld + start;
            float *restrict grad = arguments->grad + at;
            const float *saved = arguments->saved ? arguments->saved + at : NULL;
            if (m.dropout && !relu) {
                const float *restrict mask = masks_get(&m, row, start, count);
                for (int64_t i = 0; i < count; i++)
                    grad[i] *= mask[i];
            }
            if (relu)
                relu_backward(count, grad, saved, scale);
            if (arguments->activation == SLI_ACTIVATION_GELU)
                gelu_backward(count, grad, saved);
            if (arguments->activation == SLI_ACTIVATION_GELU_TANH)
                gelu_tanh_backward(count, grad, saved);
            if (sums) {
                float *restrict sum = sums + start;
                for (int64_t i = 0; i < count; i++)
                    sum[i] += grad[i];
            }
        }
}

/* ---- SwiGLU ----------------------------------------------------------------------------- */

void SLI_OF_ISA(sli_swiglu)(const sli_swiglu *arguments, int64_t first_row, int64_t rows)
{
    int64_t first = first_row * arguments->width, end = first + rows * arguments->width;
    const float *gate = arguments->gate, *up = arguments->up;
    float *out = arguments->out;
    SLI_ELEMENTWISE
    for (int64_t i = first; i < end; i++)
        out[i] = gate[i] * logistic_f32(gate[i]) * up[i];
}

void SLI_OF_ISA(sli_swiglu_backward)(const sli_swiglu_backward *arguments, int64_t first_row,
                                     int64_t rows)
{
    int64_t first = first_row * arguments->width, end = first + rows * arguments->width;
    const float *restrict gate = arguments->gate, *restrict up = arguments->up;
    const float *restrict grad = arguments->grad_out;
    float *restrict grad_gate = arguments->grad_gate, *restrict grad_up = arguments->grad_up;
    for (int64_t i = first; i < end; i++) {
        float factor = logistic_f32(gate[i]), silu = gate[i] * factor;
        grad_up[i] = grad[i] * silu;
        grad_gate[i] = grad[i] * up[i] * (factor + silu * (1.0f - factor));
    }
}
