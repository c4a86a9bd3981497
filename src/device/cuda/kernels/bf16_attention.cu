/* Attention of bf16 elements, forward: a block has ROWS queries and walks over the keys that they
 * see, with an online softmax (attention.cu says how). */
#include "device/cuda/kernels/attention.h"
#include "device/cuda/kernels/bf16_attention.h"

/* ---- Rounding --------------------------------------------------------------------------- */

static __global__ void round_heads(int64_t groups, int head_width, int width, bool whole,
                                   const float *from, bfloat *to)
{
    struct alignas(16) copied {
        unsigned two[COPIED / 2];
    };
    int64_t group = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= groups)
        return;
    int64_t row = divide(group, width / COPIED);
    int column = (int)(group - row * (width / COPIED)) * COPIED;
    copied rounded;
    for (int i = 0; i < 2; i++) {
        int first = column + 4 * i;
        four f = load_four(from + row * head_width + first, head_width - first, whole);
        rounded.two[2 * i] = two_rounded(f.x[0], f.x[1]);
        rounded.two[2 * i + 1] = two_rounded(f.x[2], f.x[3]);
    }
    *(copied *)(to + row * width + column) = rounded;
}

cudaError_t sli_round_heads(const float *f32, const uint16_t *bf16, int64_t heads,
                            int64_t head_width, void *room, const bfloat **out, cudaStream_t stream)
{
    enum { THREADS = 256 };
    *out = (const bfloat *)(bf16 ? bf16 : room);
    if (bf16)
        return cudaSuccess;
    int64_t count = rounded_count(heads, head_width), blocks = divide_up(count / COPIED, THREADS);
    bool whole = head_width % COPIED == 0 && are_aligned(head_width, 0, f32);
    if (blocks > INT32_MAX)
        return cudaErrorInvalidValue;
    return launch(stream, dim3((unsigned)blocks), dim3(THREADS), round_heads, count / COPIED,
                  (int)head_width, (int)(count / heads), whole, f32, (bfloat *)room);
}

/* ---- Forward ---------------------------------------------------------------------------- */

/* Of a lane's two rows; the same in the four lanes that have parts of a row. */
struct softmax_of_rows {
    float largest[2], sum[2];
};

template <class Operation> static inline __device__ float reduce_row(float x)
{
    x = Operation::of(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return Operation::of(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

/* Scores of keys that do not exist or are not seen become -infinity. */
template <int TILES>
static inline __device__ void hide_keys(const rounded_heads &h, int query, int key,
                                        float (*scores)[4])
{
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        for (int i = 0; i < 4; i++) {
            int k = key + tile * PRODUCT_COLUMNS + i % 2;
            if (k >= h.positions || (h.causal && k > query + i / 2 * 8))
                scores[tile][i] = -INFINITY;
        }
}

/* scores: q k^T -> 2^(scale * (score - largest so far)). Scales the sums and the results to the new
 * largest. */
template <int TILES, int RESULT_TILES>
static inline __device__ void add_scores(float scale, float (*scores)[4], softmax_of_rows *softmax,
                                         float (*results)[4])
{
    float correction[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = softmax->largest[half], sum = 0;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            for (int i = 0; i < 2; i++)
                largest = maximizing::of(largest, scores[tile][2 * half + i]);
        largest = reduce_row<maximizing>(largest);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            for (int i = 0; i < 2; i++) {
                float *score = &scores[tile][2 * half + i];
                *score = power_of_two(scale * (*score - largest));
                sum += *score;
            }
        correction[half] = power_of_two(scale * (softmax->largest[half] - largest));
        softmax->largest[half] = largest;
        softmax->sum[half] = softmax->sum[half] * correction[half] + reduce_row<adding>(sum);
    }
    if (!__ballot_sync(ALL_LANES, correction[0] != 1 || correction[1] != 1))
        return;
#pragma unroll
    for (int tile = 0; tile < RESULT_TILES; tile++)
        for (int i = 0; i < 4; i++)
            results[tile][i] *= correction[i / 2];
}

template <int TILES>
static inline __device__ void drop_scores(float scale, unsigned kept, float (*scores)[4])
{
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        for (int i = 0; i < 4; i++)
            scores[tile][i] = kept >> (4 * tile + i) & 1 ? scores[tile][i] * scale : 0.0f;
}

template <class Block, int WIDTH>
static __global__ void __launch_bounds__(Block::THREADS)
    attend_rounded(rounded_heads h, sli_attention a, dropout_masks masks)
{
    constexpr int COLUMNS = Block::COLUMNS, ROWS = Block::ROWS, LD = SHARED_LD<WIDTH>;
    constexpr int RESULT_TILES = WIDTH / PRODUCT_COLUMNS;
    LAUNCH_SHARED(bfloat, memory);
    block_place at = place_of(h, h.heads, ROWS, true);
    int key_head = at.head / (h.heads / h.key_heads);
    int warp = (int)(threadIdx.x / WARP), lane = (int)(threadIdx.x % WARP);
    int warp_first = at.first + warp * PRODUCT_ROWS, query = warp_first + lane / 4;
    int keys = h.causal && at.first + ROWS < h.positions ? at.first + ROWS : h.positions;
    bfloat *columns = memory + ROWS * LD;
    const bfloat *rows = memory + warp * PRODUCT_ROWS * LD;
    softmax_of_rows softmax = {{-INFINITY, -INFINITY}, {0, 0}};
    float scale = LOG2_E / sqrtf((float)h.head_width), results[RESULT_TILES][4] = {};
    auto begin_columns = [&](int first_key) {
        bfloat *to = columns + first_key / COLUMNS % 2 * 2 * COLUMNS * LD;
        for (int matrix = 1; matrix <= 2; matrix++)
            begin_tile<WIDTH, COLUMNS, Block::THREADS>(to + (matrix - 1) * COLUMNS * LD,
                                                       rows_of(h, at.sample, key_head, matrix,
                                                               first_key),
                                                       h.width);
    };
    begin_tile<WIDTH, ROWS, Block::THREADS>(memory, rows_of(h, at.sample, at.head, 0, at.first),
                                            h.width);
    begin_columns(0);
    for (int first_key = 0; first_key < keys; first_key += COLUMNS) {
        const bfloat *of_k = columns + first_key / COLUMNS % 2 * 2 * COLUMNS * LD;
        float scores[Block::TILES][4];
        wait_for_copies();
        __syncthreads(); /* all have copied these columns, and have read those before */
        if (first_key + COLUMNS < keys)
            begin_columns(first_key + COLUMNS);
        if (h.causal && first_key >= warp_first + PRODUCT_ROWS)
            continue;      /* no row of the warp sees them */
        unsigned kept = 0; /* asked for first, so that products need not wait for it */
        if (masks.drops)
            kept = kept_in_rows<Block::TILES>(masks, at, h.positions, warp_first, first_key);
        multiply_rows<WIDTH, COLUMNS>(rows, of_k, scores);
        int all_see = h.causal && warp_first < h.positions ? warp_first + 1 : h.positions;
        if (first_key + COLUMNS > all_see)
            hide_keys<Block::TILES>(h, query, first_key + lane % 4 * 2, scores);
        add_scores<Block::TILES, RESULT_TILES>(scale, scores, &softmax, results);
        if (masks.drops)
            drop_scores<Block::TILES>(masks.scale, kept, scores);
        multiply_scores<WIDTH, COLUMNS>(scores, of_k + COLUMNS * LD, results);
    }
    for (int half = 0; half < 2; half++) {
        int row = query + 8 * half;
        if (a.log_sum_exp && lane % 4 == 0 && row < h.positions)
            a.log_sum_exp[((int64_t)at.sample * h.heads + at.head) * h.positions + row] =
                softmax.largest[half] + log2f(softmax.sum[half]) / scale;
        float one = 1 / softmax.sum[half];
#pragma unroll
        for (int tile = 0; tile < RESULT_TILES; tile++)
            for (int i = 0; i < 2; i++)
                results[tile][2 * half + i] *= one;
    }
    int64_t ld = (int64_t)h.heads * h.head_width;
    int64_t first = ((int64_t)at.sample * h.positions + warp_first) * ld + at.head * h.head_width;
    store_results<WIDTH>(results, h.head_width, results_from(a.out, a.out_bf16, first, ld),
                         h.positions - warp_first);
}

template <int WIDTH, class Large>
static cudaError_t launch_width(const sli_attention *a, const rounded_heads &h, cudaStream_t stream)
{
    typedef block_size<64, 16> small;
    return launch_blocks<Large, small, WIDTH>(stream, a->samples * a->heads, a->positions, 1,
                                              attend_rounded<Large, WIDTH>,
                                              attend_rounded<small, WIDTH>, h, *a,
                                              masks_of(&a->dropout, a->positions));
}

size_t sli_scratch_attention(const sli_attention *a)
{
    bool rounds = a->bf16 && !a->qkv_bf16;
    return rounds ? (size_t)rounded_count(rows_of_heads(a), a->head_width) * sizeof(bfloat) : 0;
}

cudaError_t sli_launch_bf16_attention(const sli_attention *a, void *scratch, cudaStream_t stream)
{
    const bfloat *qkv;
    cudaError_t error = sli_round_heads(a->qkv, a->qkv_bf16, rows_of_heads(a), a->head_width,
                                        scratch, &qkv, stream);
    if (error != cudaSuccess)
        return error;
    rounded_heads h = rounded_heads_of(qkv, a);
    return h.width <= 64    ? launch_width<64, block_size<128, 64>>(a, h, stream)
           : h.width <= 128 ? launch_width<128, block_size<128, 64>>(a, h, stream)
                            : launch_width<256, block_size<128, 64>>(a, h, stream);
}
