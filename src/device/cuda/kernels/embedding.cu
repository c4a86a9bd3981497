/* Rows of a table by their ids, and the gradient of the table. */
#include "device/cuda/kernels/dropout.h"
#include "device/cuda/kernels/reduce.h"
#include "device/cuda/kernels/row_order.h"

static __global__ void embed(matrix_shape shape, sli_embedding a, dropout_masks masks)
{
    matrix_group g = group_of_thread(shape);
    if (g.count <= 0)
        return;
    int64_t from = a.ids[g.row] * a.width + g.column;
    four x = a.table ? load_four(a.table + from, g.count, shape.whole)
                     : load_four(a.table_bf16 + from, g.count, shape.whole);
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
                          are_aligned(a->width, a->width, a->table, a->table_bf16, a->positions,
                                      a->out)};
    return launch_groups(stream, shape, embed, *a, masks_of(&a->dropout, a->width));
}

/* ---- Backward --------------------------------------------------------------------------- */

/* A warp for each row, in the order of the ids, and for each 128 columns. The first row of an id
 * adds what all rows with this id give, in their order; the warps of the others end. */
static __global__ void add_to_table(matrix_shape shape, sli_embedding_backward a,
                                    dropout_masks masks, const row_key *keys)
{
    int64_t first = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int64_t column = 4 * ((int64_t)blockIdx.y * WARP + threadIdx.x);
    int64_t count = shape.columns - column;
    if (first >= shape.rows || count <= 0)
        return;
    int32_t id = id_of_key(keys[first]);
    if (first > 0 && id_of_key(keys[first - 1]) == id)
        return;
    float *to = a.grad_table + id * a.width + column;
    four sum = load_four(to, count, shape.whole);
    for (int64_t i = first; i < shape.rows && id_of_key(keys[i]) == id; i++) {
        int64_t row = row_of_key(keys[i]);
        four grad = load_four(a.grad_out + row * a.width + column, count, shape.whole);
        grad = multiply(grad, mask_of(masks, row, column));
        for (int lane = 0; lane < 4; lane++)
            sum.x[lane] += a.scale * grad.x[lane];
    }
    store_four(to, sum, count, shape.whole);
}

size_t sli_scratch_embedding_backward(const sli_embedding_backward *a)
{
    return (size_t)row_keys_count(a->rows) * sizeof(row_key);
}

cudaError_t sli_launch_embedding_backward(const sli_embedding_backward *a, void *scratch,
                                          cudaStream_t stream)
{
    enum { WARPS = 4 };
    row_key *keys = (row_key *)scratch;
    matrix_shape shape = {a->rows, a->width,
                          are_aligned(a->width, a->width, a->grad_out, a->grad_table)};
    dim3 blocks((unsigned)divide_up(a->rows, WARPS), (unsigned)divide_up(a->width, 4 * WARP));
    cudaError_t error = sort_rows(a->ids, a->rows, keys, stream);
    if (error != cudaSuccess)
        return error;
    return launch(stream, blocks, dim3(WARP, WARPS), add_to_table, shape, *a,
                  masks_of(&a->dropout, a->width), (const row_key *)keys);
}
