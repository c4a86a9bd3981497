/* Rows of a table by their ids, and the gradient of the table. */
#include "device/cuda/kernels/dropout.h"
#include "device/cuda/kernels/reduce.h"

static __global__ void embed(matrix_shape shape, sli_embedding a, dropout_masks masks)
{
    matrix_group g = group_of_thread(shape);
    if (g.count <= 0)
        return;
    const float *from = a.table + a.ids[g.row] * a.width + g.column;
    four x = load_four(from, g.count, shape.whole);
    for (int i = 0; i < 4; i++)
        x.x[i] *= a.scale;
    if (a.positions) {
        int64_t per_sample = a.dropout.rows_per_sample;
        int64_t position = g.row - divide(g.row, per_sample) * per_sample;
        x = sum_of(x, load_four(a.positions + position * a.width + g.column, g.count, shape.whole));
    }
    x = multiply(x, mask_of(masks, g.row, g.column));
    store_four(a.out + g.row * a.width + g.column, x, g.count, shape.whole);
}

cudaError_t sli_launch_embedding(const sli_embedding *a, cudaStream_t stream)
{
    matrix_shape shape = {a->rows, a->width,
                          are_aligned(a->width, a->width, a->table, a->positions, a->out)};
    return launch_groups(stream, shape, embed, *a, masks_of(&a->dropout, a->width));
}

/* ---- Backward --------------------------------------------------------------------------- */

/* A warp for each row and for each 128 columns. The first row that has an id adds what all rows
 * with this id give, in their order; the warps of the others find it before theirs and end. */

/* The lanes whose row, first + lane, is before `end` and has the id. */
static inline __device__ unsigned rows_with_id(const sli_embedding_backward &a, int64_t first,
                                               int64_t end, int32_t id)
{
    int64_t row = first + threadIdx.x;
    return __ballot_sync(ALL_LANES, row < end && a.ids[row] == id);
}

static inline __device__ bool has_earlier_row(const sli_embedding_backward &a, int64_t row)
{
    for (int64_t first = row - WARP; first > -(int64_t)WARP; first -= WARP) {
        int64_t from = first > 0 ? first : 0; /* the nearest are the likeliest */
        if (rows_with_id(a, from, row, a.ids[row]))
            return true;
    }
    return false;
}

static __global__ void add_to_table(matrix_shape shape, sli_embedding_backward a,
                                    dropout_masks masks)
{
    int64_t first_row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int64_t column = 4 * ((int64_t)blockIdx.y * WARP + threadIdx.x);
    int64_t count = shape.columns - column;
    if (first_row >= shape.rows || has_earlier_row(a, first_row))
        return;
    int32_t id = a.ids[first_row];
    float *to = a.grad_table + id * a.width + column;
    four sum = load_four(to, count, shape.whole && count > 0);
    for (int64_t start = first_row; start < shape.rows; start += WARP) {
        unsigned found = rows_with_id(a, start, shape.rows, id);
        for (; found && count > 0; found &= found - 1) {
            int64_t row = start + __ffs((int)found) - 1;
            four grad = load_four(a.grad_out + row * a.width + column, count, shape.whole);
            grad = multiply(grad, mask_of(masks, row, column));
            for (int i = 0; i < 4; i++)
                sum.x[i] += a.scale * grad.x[i];
        }
    }
    store_four(to, sum, count, shape.whole && count > 0);
}

cudaError_t sli_launch_embedding_backward(const sli_embedding_backward *a, cudaStream_t stream)
{
    enum { WARPS = 4 };
    matrix_shape shape = {a->rows, a->width,
                          are_aligned(a->width, a->width, a->grad_out, a->grad_table)};
    dim3 blocks((unsigned)divide_up(a->rows, WARPS), (unsigned)divide_up(a->width, 4 * WARP));
    return launch(stream, blocks, dim3(WARP, WARPS), add_to_table, shape, *a,
                  masks_of(&a->dropout, a->width));
}
