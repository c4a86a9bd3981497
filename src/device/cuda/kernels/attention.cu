/* Attention: a block of threads has TILE queries and walks over the keys that they see.
 *
 * Softmax is online: for each query, the largest score so far and the sum of e^(score - largest)
 * are kept; a larger score scales the sum and what has been added of v. Exponentials are to base 2,
 * with log2 e in the scale. Scores are scaled after a subtraction: of large ones, the rounding of a
 * product alone may pass the largest exponent. */
#include "device/cuda/kernels/bf16_attention.h"
#include "device/cuda/kernels/tensor_products.h"

struct online_softmax {
    float largest[4],
        sum[4]; /* of the thread's four queries; the same in the 16 threads of a row */
};

/* Over the 16 threads that have a row's scores, which are half a warp. */
template <class Operation> static inline __device__ float reduce_row(float x)
{
    for (int distance = SIDE / 2; distance > 0; distance /= 2)
        x = Operation::of(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

/* scores: q k^T -> 2^(scale * (score - largest so far)), and 0 for keys that a query does not see.
 * Scales the sums and the results to the new largest. */
template <int WIDE>
static inline __device__ void add_scores(const head_layout &h, float scale, int64_t query,
                                         int64_t key, four *scores, online_softmax *softmax,
                                         four (*results)[4])
{
    for (int i = 0; i < 4; i++) {
        float largest = softmax->largest[i], sum = 0;
        for (int j = 0; j < 4; j++) {
            bool seen = is_seen(h, query + i, key + j);
            scores[i].x[j] = seen ? scores[i].x[j] : -INFINITY;
            largest = maximizing::of(largest, scores[i].x[j]);
        }
        largest = reduce_row<maximizing>(largest);
        for (int j = 0; j < 4; j++) {
            scores[i].x[j] = exp2f(scale * (scores[i].x[j] - largest));
            sum += scores[i].x[j];
        }
        float correction = exp2f(scale * (softmax->largest[i] - largest));
        softmax->largest[i] = largest;
        softmax->sum[i] = softmax->sum[i] * correction + reduce_row<adding>(sum);
#pragma unroll
        for (int wide = 0; wide < WIDE; wide++)
            for (int c = 0; c < 4; c++)
                results[wide][i].x[c] *= correction;
    }
}

template <class Products, int WIDE>
static __global__ void __launch_bounds__(TILE_THREADS, WIDE == 1 ? 2 : 1)
    attend(head_layout h, sli_attention a, dropout_masks masks)
{
    SHARED(tile_memory, memory);
    tile_place at = place_of_queries(h);
    int64_t query = at.first + threadIdx.x / SIDE * 4, row = at.task * h.positions + query;
    float scale = LOG2_E / sqrtf((float)h.head_width);
    int64_t keys = h.causal && at.first + TILE < h.positions ? at.first + TILE : h.positions;
    online_softmax softmax = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0, 0, 0, 0}};
    four results[WIDE][4] = {}, scores[4];
    for (int64_t first_key = 0; first_key < keys; first_key += TILE) {
        int64_t key = first_key + threadIdx.x % SIDE * 4;
        Products::multiply_rows(h, qkv_rows(h, a.qkv, at, at.first, 0),
                                qkv_rows(h, a.qkv, at, first_key, 1), &memory, scores);
        add_scores<WIDE>(h, scale, query, key, scores, &softmax, results);
        for (int i = 0; i < 4 && masks.drops; i++)
            scores[i] = multiply(scores[i], mask_of(masks, row + i, key));
        Products::store_scores(scores, &memory);
        Products::template multiply_scores<WIDE>(h, qkv_rows(h, a.qkv, at, first_key, 2), &memory,
                                                 results);
    }
    for (int i = 0; i < 4; i++) {
        if (a.log_sum_exp && threadIdx.x % SIDE == 0 && query + i < h.positions)
            a.log_sum_exp[row + i] = softmax.largest[i] + log2f(softmax.sum[i]) / scale;
#pragma unroll
        for (int wide = 0; wide < WIDE; wide++)
            for (int c = 0; c < 4; c++)
                results[wide][i].x[c] /= softmax.sum[i];
    }
    store_results<WIDE>(h, results, a.out + out_offset(h, at, at.first), h.heads * h.head_width,
                        h.positions - at.first);
}

template <class Products>
static cudaError_t launch_attend(const sli_attention *a, cudaStream_t stream)
{
    bool whole = are_aligned(a->head_width, 0, a->qkv, a->out);
    head_layout h = {a->positions, a->heads, a->key_heads, a->head_width, a->causal, whole};
    return launch_tiles(stream, a->samples * a->heads, h, attend<Products, 1>, attend<Products, 2>,
                        attend<Products, 4>, *a, masks_of(&a->dropout, a->positions));
}

cudaError_t sli_launch_attention(const sli_attention *a, void *scratch, cudaStream_t stream)
{
    return a->bf16   ? sli_launch_bf16_attention(a, scratch, stream)
           : a->tf32 ? launch_attend<tf32_products>(a, stream)
                     : launch_attend<f32_products>(a, stream);
}
