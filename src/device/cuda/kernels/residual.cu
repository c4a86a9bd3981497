/* Residual sums with dropout, and the layer norm or RMSNorm of them: a block of threads for each
 * row. */
#include "device/cuda/kernels/column_sums.h"
#include "device/cuda/kernels/dropout.h"
#include "device/cuda/kernels/reduce.h"

static __global__ void add_dropout(matrix_shape shape, sli_add_dropout a, dropout_masks masks)
{
    matrix_group g = group_of_thread(shape);
    if (g.count <= 0)
        return;
    int64_t at = g.row * a.width + g.column;
    four x = multiply(load_four(a.x + at, g.count, shape.whole), mask_of(masks, g.row, g.column));
    if (a.residual)
        x = sum_of(x, load_four(a.residual + at, g.count, shape.whole));
    store_four(a.out + at, x, g.count, shape.whole);
}

cudaError_t sli_launch_add_dropout(const sli_add_dropout *a, cudaStream_t stream)
{
    matrix_shape shape = {a->rows, a->width,
                          are_aligned(a->width, a->width, a->x, a->residual, a->out)};
    return launch_groups(stream, shape, add_dropout, *a, masks_of(&a->dropout, a->width));
}

/* ---- Norm ------------------------------------------------------------------------------- */

/* Where a row begins. */
static inline __device__ int64_t begin_of(const sli_row_groups &groups, int64_t width, int64_t row)
{
    return groups.count == 0 ? row * width
                             : row / groups.count * groups.ld + row % groups.count * width;
}

/* The elements from one row of a matrix to the next, where they are not next to each other. */
static inline int64_t ld_of(const sli_row_groups &groups, int64_t width)
{
    return groups.count == 0 ? width : groups.ld;
}

/* The row's sums stay in the registers of the threads, GROUPS groups of four in each; GROUPS 0, for
 * rows that are longer: each walk over the row adds them anew. */
enum { ROW_THREADS = 256, MOST_GROUPS = 8 };

static inline __device__ float sum_of_four(four f)
{
    return (f.x[0] + f.x[1]) + (f.x[2] + f.x[3]);
}

static inline __device__ four add_group(const matrix_shape &shape, const sli_add_norm &a,
                                        const dropout_masks &masks, int64_t column)
{
    int64_t row = blockIdx.x, at = begin_of(a.groups, a.width, row) + column,
            count = a.width - column;
    four x = multiply(load_four(a.x + at, count, shape.whole), mask_of(masks, row, column));
    return a.residual ? sum_of(x, load_four(a.residual + at, count, shape.whole)) : x;
}

/* The sum of (element - mean)^2 over those of the four that exist. */
static inline __device__ float squares_of(four f, float mean, int64_t count)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += i < count ? (f.x[i] - mean) * (f.x[i] - mean) : 0.0f;
    return sum;
}

static inline __device__ void store_norm(const matrix_shape &shape, const sli_add_norm &a, four x,
                                         float mean, float rstd, int64_t column)
{
    int64_t at = blockIdx.x * a.width + column, count = a.width - column;
    if (a.sum)
        store_four(a.sum + at, x, count, shape.whole);
    for (int i = 0; i < 4; i++)
        x.x[i] = (x.x[i] - mean) * rstd;
    if (a.normalized_bf16)
        store_four(a.normalized_bf16 + at, x, count, shape.whole);
    else if (a.normalized)
        store_four(a.normalized + at, x, count, shape.whole);
    x = multiply(x, load_four(a.weight + column, count, shape.whole));
    if (a.bias)
        x = sum_of(x, load_four(a.bias + column, count, shape.whole));
    if (a.out_bf16)
        store_four(a.out_bf16 + at, x, count, shape.whole);
    if (a.out)
        store_four(a.out + begin_of(a.groups, a.width, blockIdx.x) + column, x, count, shape.whole);
}

template <int GROUPS>
static __global__ void add_norm(matrix_shape shape, sli_add_norm a, dropout_masks masks)
{
    four kept[GROUPS > 0 ? GROUPS : 1];
    int64_t first = 4 * threadIdx.x, step = 4 * blockDim.x;
    int groups = GROUPS > 0 ? GROUPS : (int)divide(a.width - first + step - 1, step);
    float sum = 0, squares = 0;
#pragma unroll
    for (int g = 0; g < groups; g++) {
        int64_t column = first + g * step;
        four x = {};
        if (column < a.width)
            x = add_group(shape, a, masks, column);
        kept[GROUPS > 0 ? g : 0] = x;
        sum += sum_of_four(x);
    }
    float mean = reduce_block<adding>(sum, 0.0f) / (float)a.width;
    if (a.rms)
        mean = 0;
#pragma unroll
    for (int g = 0; g < groups; g++) {
        int64_t column = first + g * step;
        if (GROUPS == 0)
            kept[0] = add_group(shape, a, masks, column);
        squares += squares_of(kept[GROUPS > 0 ? g : 0], mean, a.width - column);
    }
    float rstd = 1.0f / sqrtf(reduce_block<adding>(squares, 0.0f) / (float)a.width + a.eps);
    if (a.rstd && threadIdx.x == 0)
        a.rstd[blockIdx.x] = rstd;
#pragma unroll
    for (int g = 0; g < groups; g++) {
        int64_t column = first + g * step;
        if (GROUPS == 0)
            kept[0] = add_group(shape, a, masks, column);
        if (column < a.width)
            store_norm(shape, a, kept[GROUPS > 0 ? g : 0], mean, rstd, column);
    }
}

cudaError_t sli_launch_add_norm(const sli_add_norm *a, cudaStream_t stream)
{
    matrix_shape shape = {a->rows, a->width,
                          are_aligned(a->width, ld_of(a->groups, a->width), a->x, a->residual,
                                      a->sum, a->out, a->out_bf16, a->weight, a->bias,
                                      a->normalized, a->normalized_bf16)};
    unsigned threads = threads_of_row(a->width, ROW_THREADS);
    int64_t groups = divide_up(a->width, 4 * (int64_t)threads);
    void (*kernel)(matrix_shape, sli_add_norm, dropout_masks) = groups <= 1   ? add_norm<1>
                                                                : groups <= 2 ? add_norm<2>
                                                                : groups <= 4 ? add_norm<4>
                                                                : groups <= MOST_GROUPS
                                                                    ? add_norm<MOST_GROUPS>
                                                                    : add_norm<0>;
    return launch(stream, dim3((unsigned)a->rows), dim3(threads), kernel, shape, *a,
                  masks_of(&a->dropout, a->width));
}

/* ---- Backward --------------------------------------------------------------------------- */

/* A matrix in one of two types. */
struct typed_matrix {
    const float *f32;
    const uint16_t *bf16; /* or NULL */

    __device__ four load(int64_t at, int64_t count, bool whole) const
    {
        return bf16 ? load_four(bf16 + at, count, whole) : load_four(f32 + at, count, whole);
    }
};

/* For the gradients of weight and, with two sums, bias. */
template <int COUNT> struct norm_terms {
    enum { SUMS = COUNT };
    typed_matrix grad_out, normalized;
    sli_row_groups groups; /* of grad_out */

    __device__ void add(const matrix_shape &shape, const matrix_group &g, four *sums) const
    {
        int64_t at = g.row * shape.columns + g.column;
        four grad =
            grad_out.load(begin_of(groups, shape.columns, g.row) + g.column, g.count, shape.whole);
        four n = normalized.load(at, g.count, shape.whole);
        sums[0] = sum_of(sums[0], multiply(grad, n));
        if (COUNT > 1)
            sums[COUNT - 1] = sum_of(sums[COUNT - 1], grad);
    }
};

/* The two means over a row that the norm's gradient needs: of g = grad_out * weight, and of
 * g * normalized. */
struct norm_means {
    float of_g, of_gn;
};

static inline __device__ norm_means means_of(const matrix_shape &shape,
                                             const sli_add_norm_backward &a,
                                             const typed_matrix &grad_out,
                                             const typed_matrix &normalized)
{
    norm_means sums = {0, 0};
    for (int64_t column = 4 * threadIdx.x; column < a.width; column += 4 * blockDim.x) {
        int64_t at = blockIdx.x * a.width + column, count = a.width - column;
        int64_t begin = begin_of(a.groups, a.width, blockIdx.x);
        four g = multiply(grad_out.load(begin + column, count, shape.whole),
                          load_four(a.weight + column, count, shape.whole));
        four n = normalized.load(at, count, shape.whole);
        sums.of_g += sum_of_four(g);
        sums.of_gn += sum_of_four(multiply(g, n));
    }
    sums.of_g = a.rms ? 0.0f : reduce_block<adding>(sums.of_g, 0.0f) / (float)a.width;
    sums.of_gn = reduce_block<adding>(sums.of_gn, 0.0f) / (float)a.width;
    return sums;
}

static __global__ void add_norm_backward(matrix_shape shape, sli_add_norm_backward a,
                                         dropout_masks masks)
{
    int64_t row = blockIdx.x, begin = begin_of(a.groups, a.width, row);
    typed_matrix grad_out = {a.grad_out, a.grad_out_bf16};
    typed_matrix normalized = {a.normalized, a.normalized_bf16};
    norm_means means = means_of(shape, a, grad_out, normalized);
    float rstd = a.rstd[row];
    for (int64_t column = 4 * threadIdx.x; column < a.width; column += 4 * blockDim.x) {
        int64_t at = row * a.width + column, count = a.width - column;
        four g = multiply(grad_out.load(begin + column, count, shape.whole),
                          load_four(a.weight + column, count, shape.whole));
        four n = normalized.load(at, count, shape.whole);
        for (int i = 0; i < 4; i++)
            g.x[i] = rstd * (g.x[i] - means.of_g - n.x[i] * means.of_gn);
        if (a.grad_sum_in)
            g = sum_of(g, load_four(a.grad_sum_in + at, count, shape.whole));
        store_four(a.grad_sum + begin + column, g, count, shape.whole);
        if (a.grad_x_bf16)
            store_four(a.grad_x_bf16 + at, multiply(g, mask_of(masks, row, column)), count,
                       shape.whole);
        else if (a.grad_x)
            store_four(a.grad_x + at, multiply(g, mask_of(masks, row, column)), count, shape.whole);
    }
}

size_t sli_scratch_add_norm_backward(const sli_add_norm_backward *a)
{
    return column_sums_bytes(a->rows, a->width, a->rms ? 1 : 2);
}

template <int SUMS>
static cudaError_t launch_norm_sums(cudaStream_t stream, const matrix_shape &shape,
                                    const sli_add_norm_backward *a, void *scratch)
{
    norm_terms<SUMS> terms = {{a->grad_out, a->grad_out_bf16},
                              {a->normalized, a->normalized_bf16},
                              a->groups};
    column_results results = {{a->grad_weight, a->grad_bias}, SUMS, a->beta};
    return launch_column_sums(stream, shape, terms, scratch, results);
}

/* The sums over rows come first: grad_sum may lie over grad_out. */
cudaError_t sli_launch_add_norm_backward(const sli_add_norm_backward *a, void *scratch,
                                         cudaStream_t stream)
{
    matrix_shape shape = {a->rows, a->width,
                          are_aligned(a->width, ld_of(a->groups, a->width), a->grad_out,
                                      a->grad_out_bf16, a->grad_sum_in, a->normalized,
                                      a->normalized_bf16, a->weight, a->grad_sum, a->grad_x,
                                      a->grad_x_bf16)};
    cudaError_t error = a->rms ? launch_norm_sums<1>(stream, shape, a, scratch)
                               : launch_norm_sums<2>(stream, shape, a, scratch);
    if (error != cudaSuccess || a->rows == 0)
        return error;
    return launch(stream, dim3((unsigned)a->rows), dim3(threads_of_row(a->width, ROW_THREADS)),
                  add_norm_backward, shape, *a, masks_of(&a->dropout, a->width));
}
