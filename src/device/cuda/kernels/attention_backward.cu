/* Gradient of attention. With P = softmax(S), M the dropout multipliers, O = (P M) V and a gradient
 * dO of O:
 *   dV = (P M)^T dO,  d(P M) = dO V^T,  dS = P (M d(P M) - D),  dQ = dS K,  dK = dS^T Q
 * where D, the sum of P M d(P M) over a row, equals the sum of O dO over it.
 *
 * One kernel computes D; one has TILE queries a block, walks over the keys and gives dQ; one has
 * TILE keys a block, walks over the queries of all heads that share them, with S and dS transposed,
 * and gives dK and dV. So no sum needs more than one block, and P is computed twice. */
#include "device/cuda/kernels/bf16_attention.h"
#include "device/cuda/kernels/tensor_products.h"

/* A warp for each task's query. */
static __global__ void multiply_out_and_grad(head_layout h, sli_attention_backward a, int64_t rows,
                                             float *inner)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows)
        return;
    int64_t task = row / h.positions;
    int sample = (int)(task / h.heads), head = (int)(task - sample * h.heads);
    tile_place place = {sample, head, 0, (int)task, 0};
    int64_t at = out_offset(h, place, row - task * h.positions);
    float sum = 0;
    for (int64_t column = threadIdx.x; column < h.head_width; column += WARP)
        sum += a.out[at + column] * a.grad_out[at + column];
    sum = reduce_warp<adding>(sum);
    if (threadIdx.x == 0)
        inner[row] = sum;
}

/* One element: score is q k^T, grad d(P M) and mask M's. `p` becomes P M, `grad` dS, with the
 * scale of the scores in it. */
static inline __device__ void through_softmax(float scale, float log_sum_exp, float inner,
                                              float mask, bool seen, float *p, float *grad)
{
    /* Of a large score, which the transposed product may round up, it would not be at most 1. */
    float exponent = *p > log_sum_exp ? 0.0f : LOG2_E * scale * (*p - log_sum_exp);
    float probability = seen ? exp2f(exponent) : 0.0f;
    *p = probability * mask;
    *grad = seen ? scale * (probability * (*grad * mask - inner)) : 0.0f;
}

template <class Products, int WIDE>
static __global__ void __launch_bounds__(TILE_THREADS)
    grad_of_queries(head_layout h, sli_attention_backward a, dropout_masks masks,
                    const float *inner)
{
    SHARED(tile_memory, memory);
    tile_place at = place_of_queries(h);
    int64_t query = at.first + threadIdx.x / SIDE * 4, row = at.task * h.positions + query;
    float scale = 1.0f / sqrtf((float)h.head_width), log_sum_exp[4], of_row[4];
    for (int i = 0; i < 4; i++) {
        bool exists = query + i < h.positions;
        log_sum_exp[i] = exists ? a.log_sum_exp[row + i] : 0.0f;
        of_row[i] = exists ? inner[row + i] : 0.0f;
    }
    int64_t keys = h.causal && at.first + TILE < h.positions ? at.first + TILE : h.positions;
    four results[WIDE][4] = {}, scores[4], grads[4];
    for (int64_t first_key = 0; first_key < keys; first_key += TILE) {
        int64_t key = first_key + threadIdx.x % SIDE * 4;
        tile_rows of_k = qkv_rows(h, a.qkv, at, first_key, 1);
        Products::multiply_rows(h, qkv_rows(h, a.qkv, at, at.first, 0), of_k, &memory, scores);
        Products::multiply_rows(h, out_rows(h, a.grad_out, at, at.first),
                                qkv_rows(h, a.qkv, at, first_key, 2), &memory, grads);
        for (int i = 0; i < 4; i++) {
            four mask = mask_of(masks, row + i, key);
            for (int j = 0; j < 4; j++)
                through_softmax(scale, log_sum_exp[i], of_row[i], mask.x[j],
                                is_seen(h, query + i, key + j), &scores[i].x[j], &grads[i].x[j]);
        }
        Products::store_scores(grads, &memory);
        Products::template multiply_scores<WIDE>(h, of_k, &memory, results);
    }
    store_results<WIDE>(h, results, a.grad_qkv + qkv_offset(h, at, at.first, 0), qkv_ld(h),
                        h.positions - at.first);
}

/* The transposed tiles: rows are keys, columns are queries. */
template <class Products, int WIDE>
static __global__ void __launch_bounds__(TILE_THREADS, 1) /* or registers spill */
    grad_of_keys(head_layout h, sli_attention_backward a, dropout_masks masks, const float *inner)
{
    SHARED(tile_memory, memory);
    tile_place at = place_of_keys(h);
    int64_t key = at.first + threadIdx.x / SIDE * 4;
    int end_of_heads = at.head + shared_heads(h);
    float scale = 1.0f / sqrtf((float)h.head_width);
    four of_k[WIDE][4] = {}, of_v[WIDE][4] = {}, scores[4], grads[4];
    for (; at.head < end_of_heads; at.head++, at.task++)
        for (int64_t first = h.causal ? at.first : 0; first < h.positions; first += TILE) {
            int64_t query = first + threadIdx.x % SIDE * 4;
            tile_rows of_q = qkv_rows(h, a.qkv, at, first, 0);
            tile_rows of_grad = out_rows(h, a.grad_out, at, first);
            Products::multiply_rows(h, qkv_rows(h, a.qkv, at, at.first, 1), of_q, &memory, scores);
            Products::multiply_rows(h, qkv_rows(h, a.qkv, at, at.first, 2), of_grad, &memory,
                                    grads);
            for (int j = 0; j < 4; j++) {
                int64_t row = at.task * h.positions + query + j;
                bool exists = query + j < h.positions;
                float log_sum_exp = exists ? a.log_sum_exp[row] : 0.0f;
                float of_row = exists ? inner[row] : 0.0f;
                four mask = mask_of(masks, row, key);
                for (int i = 0; i < 4; i++)
                    through_softmax(scale, log_sum_exp, of_row, mask.x[i],
                                    is_seen(h, query + j, key + i), &scores[i].x[j],
                                    &grads[i].x[j]);
            }
            Products::store_scores(scores, &memory);
            Products::template multiply_scores<WIDE>(h, of_grad, &memory, of_v);
            Products::store_scores(grads, &memory);
            Products::template multiply_scores<WIDE>(h, of_q, &memory, of_k);
        }
    store_results<WIDE>(h, of_k, a.grad_qkv + qkv_offset(h, at, at.first, 1), qkv_ld(h),
                        h.positions - at.first);
    store_results<WIDE>(h, of_v, a.grad_qkv + qkv_offset(h, at, at.first, 2), qkv_ld(h),
                        h.positions - at.first);
}

size_t sli_scratch_attention_backward(const sli_attention_backward *a)
{
    return a->bf16 ? sli_scratch_bf16_attention_backward(a)
                   : (size_t)(a->samples * a->heads * a->positions) * sizeof(float);
}

static head_layout layout_of(const sli_attention_backward *a)
{
    bool whole = are_aligned(a->head_width, 0, a->qkv, a->out, a->grad_out, a->grad_qkv);
    head_layout h = {a->positions, a->heads, a->key_heads, a->head_width, a->causal, whole};
    return h;
}

template <class Products>
static cudaError_t launch_grads(const sli_attention_backward *a, const float *given,
                                cudaStream_t stream)
{
    head_layout h = layout_of(a);
    dropout_masks masks = masks_of(&a->dropout, a->positions);
    cudaError_t error =
        launch_tiles(stream, a->samples * a->heads, h, grad_of_queries<Products, 1>,
                     grad_of_queries<Products, 2>, grad_of_queries<Products, 4>, *a, masks, given);
    if (error == cudaSuccess)
        error =
            launch_tiles(stream, a->samples * a->key_heads, h, grad_of_keys<Products, 1>,
                         grad_of_keys<Products, 2>, grad_of_keys<Products, 4>, *a, masks, given);
    return error;
}

cudaError_t sli_launch_attention_backward(const sli_attention_backward *a, void *scratch,
                                          cudaStream_t stream)
{
    enum { WARPS = 8 };
    if (a->bf16)
        return sli_launch_bf16_attention_backward(a, scratch, stream);
    float *inner = (float *)scratch;
    int64_t rows = a->samples * a->heads * a->positions;
    cudaError_t error = launch(stream, dim3((unsigned)divide_up(rows, WARPS)), dim3(WARP, WARPS),
                               multiply_out_and_grad, layout_of(a), *a, rows, inner);
    if (error != cudaSuccess)
        return error;
    return a->tf32 ? launch_grads<tf32_products>(a, inner, stream)
                   : launch_grads<f32_products>(a, inner, stream);
}
