/* Attention of bf16 elements, backward (attention_backward.cu has the formulas). Three kernels of
 * one form give dQ, dK and dV: a block has ROWS rows of the result, and for each COLUMNS columns
 *
 *   RESULT   rows     scores    grads      adds to the result
 *   QUERIES  q, dO    q k^T     dO v^T     dS k           columns are keys
 *   KEYS     k, v     k q^T     v dO^T     dS^T q         columns are queries, of all heads that
 *   VALUES   k        k q^T     -          (P M)^T dO     share the key's head
 *
 * So no sum needs more than one block, and the results of a lane fit in its registers. */
#include "device/cuda/kernels/attention.h"
#include "device/cuda/kernels/bf16_attention.h"

enum result_kind { QUERIES, KEYS, VALUES };

struct rounded_backward {
    rounded_heads heads;
    const bfloat *grad;               /* dO [samples, positions, heads, width] */
    const float *log_sum_exp, *inner; /* [samples, heads, positions] */
    float *grad_qkv;                  /* as the caller's */
    uint16_t *grad_qkv_bf16;
};

static inline __device__ matrix_rows grad_rows(const rounded_backward &b, int sample, int head,
                                               int position)
{
    const rounded_heads &h = b.heads;
    int64_t ld = (int64_t)h.heads * h.width;
    matrix_rows rows = {b.grad + ((int64_t)sample * h.positions + position) * ld +
                            (int64_t)head * h.width,
                        ld, h.positions - position};
    return rows;
}

/* One element: score is q k^T, grad d(P M) and mask M's. `score` becomes P M, `grad` dS, with the
 * scale of the scores in it. */
static inline __device__ void through_softmax(float scale, float log_sum_exp, float inner,
                                              float mask, float *score, float *grad)
{
    /* Of a large score, which another order of sums may round up, it would not be at most 1. */
    float exponent = *score > log_sum_exp ? 0.0f : LOG2_E * scale * (*score - log_sum_exp);
    float probability = power_of_two(exponent);
    *score = probability * mask;
    *grad = scale * (probability * (*grad * mask - inner));
}

/* What belongs to a query: log_sum_exp and D; 0 of one that does not exist. */
struct of_query {
    float log_sum_exp, inner;
};

/* Columns from `first` of a head, of queries or of keys: a step of a block's walk. */
struct walk_step {
    int head, first;
};

/* Of queries in columns, log_sum_exp and D lie in the gaps behind the rows of the two matrices. */
template <int WIDTH, int COLUMNS>
static inline __device__ void begin_query_columns(const rounded_backward &b, int sample,
                                                  const walk_step &step, bfloat *columns)
{
    constexpr int LD = SHARED_LD<WIDTH>;
    static_assert(COPIED * sizeof(bfloat) >= sizeof(float), "a float fits into the gap");
    int column = (int)threadIdx.x;
    if (column >= COLUMNS)
        return;
    int query = step.first + column;
    bool exists = query < b.heads.positions;
    int64_t at =
        ((int64_t)sample * b.heads.heads + step.head) * b.heads.positions + (exists ? query : 0);
    float *gap = (float *)(columns + column * LD + WIDTH);
    begin_float_copy(gap, b.log_sum_exp + at, exists);
    begin_float_copy((float *)((bfloat *)gap + COLUMNS * LD), b.inner + at, exists);
}

/* Through the softmax of a warp's scores: element i of a lane is in row i / 2, column i % 2 of
 * those that it has. Rows and columns begin at `row` and `column`; `hides`: some see none of the
 * others. */
template <int WIDTH, class Block, result_kind RESULT>
static inline __device__ void scores_through_softmax(float scale, const dropout_masks &masks,
                                                     unsigned kept, int row, int column, bool hides,
                                                     const of_query *rows, const bfloat *columns,
                                                     float (*scores)[4], float (*grads)[4])
{
    constexpr int LD = SHARED_LD<WIDTH>;
    int lane = (int)(threadIdx.x % WARP);
#pragma unroll
    for (int tile = 0; tile < Block::TILES; tile++) {
        of_query queries[2] = {rows[0], rows[1]};
        for (int i = 0; i < 2 && RESULT != QUERIES; i++) {
            const bfloat *gap = columns + (tile * PRODUCT_COLUMNS + lane % 4 * 2 + i) * LD + WIDTH;
            queries[i].log_sum_exp = *(const float *)gap;
            queries[i].inner = *(const float *)(gap + Block::COLUMNS * LD);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + lane / 4 + i / 2 * 8;
            int c = column + tile * PRODUCT_COLUMNS + lane % 4 * 2 + i % 2;
            const of_query &q = queries[RESULT == QUERIES ? i / 2 : i % 2];
            float mask = !masks.drops ? 1.0f : kept >> (4 * tile + i) & 1 ? masks.scale : 0.0f;
            through_softmax(scale, q.log_sum_exp, q.inner, mask, &scores[tile][i], &grads[tile][i]);
            if (hides && (RESULT == QUERIES ? c > r : r > c))
                scores[tile][i] = grads[tile][i] = 0;
        }
    }
}

template <class Block, int WIDTH, result_kind RESULT>
static __global__ void __launch_bounds__(Block::THREADS)
    grad_rounded(rounded_backward b, dropout_masks masks)
{
    constexpr int COLUMNS = Block::COLUMNS, ROWS = Block::ROWS, LD = SHARED_LD<WIDTH>;
    constexpr bool OF_QUERIES = RESULT == QUERIES;
    LAUNCH_SHARED(bfloat, memory);
    const rounded_heads &h = b.heads;
    int shared = h.heads / h.key_heads; /* heads of queries for one of keys */
    block_place at = place_of(h, OF_QUERIES ? h.heads : h.key_heads, ROWS, OF_QUERIES);
    int warp = (int)(threadIdx.x / WARP), lane = (int)(threadIdx.x % WARP);
    int warp_first = at.first + warp * PRODUCT_ROWS, key_head = at.head / shared;
    /* The walk: columns from `begin` to `end` of the heads from `step.head` to `last_head`. */
    int begin = h.causal && !OF_QUERIES ? at.first / COLUMNS * COLUMNS : 0;
    int end =
        h.causal && OF_QUERIES && at.first + ROWS < h.positions ? at.first + ROWS : h.positions;
    walk_step step = {OF_QUERIES ? at.head : at.head * shared, begin};
    int last_head = OF_QUERIES ? at.head : step.head + shared - 1;
    bfloat *own = memory + warp * PRODUCT_ROWS * LD;
    bfloat *columns = memory + (RESULT == VALUES ? 1 : 2) * ROWS * LD;
    auto begin_columns = [&](const walk_step &next, bfloat *to) {
        begin_tile<WIDTH, COLUMNS, Block::THREADS>(to,
                                                   OF_QUERIES ? rows_of(h, at.sample, key_head, 1,
                                                                        next.first)
                                                              : rows_of(h, at.sample, next.head, 0,
                                                                        next.first),
                                                   h.width);
        begin_tile<WIDTH, COLUMNS, Block::THREADS>(to + COLUMNS * LD,
                                                   OF_QUERIES ? rows_of(h, at.sample, key_head, 2,
                                                                        next.first)
                                                              : grad_rows(b, at.sample, next.head,
                                                                          next.first),
                                                   h.width);
        if (!OF_QUERIES)
            begin_query_columns<WIDTH, COLUMNS>(b, at.sample, next, to);
    };
    begin_tile<WIDTH, ROWS, Block::THREADS>(
        memory, rows_of(h, at.sample, at.head, OF_QUERIES ? 0 : 1, at.first), h.width);
    if (RESULT != VALUES)
        begin_tile<WIDTH, ROWS, Block::THREADS>(memory + ROWS * LD,
                                                OF_QUERIES
                                                    ? grad_rows(b, at.sample, at.head, at.first)
                                                    : rows_of(h, at.sample, at.head, 2, at.first),
                                                h.width);
    begin_columns(step, columns);
    of_query rows[2] = {};
    for (int half = 0; half < 2 && OF_QUERIES; half++) {
        int query = warp_first + lane / 4 + 8 * half;
        int64_t task = (int64_t)at.sample * h.heads + at.head;
        if (query < h.positions)
            rows[half] = of_query{b.log_sum_exp[task * h.positions + query],
                                  b.inner[task * h.positions + query]};
    }
    float scale = 1.0f / sqrtf((float)h.head_width), results[WIDTH / PRODUCT_COLUMNS][4] = {};
    int last_row = warp_first + PRODUCT_ROWS - 1;
    for (int stage = 0; step.head <= last_head; stage ^= 1) {
        const bfloat *first = columns + stage * 2 * COLUMNS * LD, *second = first + COLUMNS * LD;
        float scores[Block::TILES][4], grads[Block::TILES][4] = {};
        walk_step now = step;
        step.first += COLUMNS;
        if (step.first >= end) {
            step.first = begin;
            step.head++;
        }
        wait_for_copies();
        __syncthreads(); /* all have copied these columns, and have read those before */
        if (step.head <= last_head)
            begin_columns(step, columns + (stage ^ 1) * 2 * COLUMNS * LD);
        int last_column = now.first + COLUMNS - 1;
        if (h.causal && (OF_QUERIES ? now.first > last_row : last_column < warp_first))
            continue;      /* no query of them sees a key */
        unsigned kept = 0; /* asked for first, so that products need not wait for it */
        block_place masked = {at.sample, now.head, 0};
        if (masks.drops)
            kept = OF_QUERIES ? kept_in_rows<Block::TILES>(masks, masked, h.positions, warp_first,
                                                           now.first)
                              : kept_in_columns<Block::TILES>(masks, masked, h.positions, now.first,
                                                              warp_first);
        multiply_rows<WIDTH, COLUMNS>(own, first, scores);
        if (RESULT != VALUES)
            multiply_rows<WIDTH, COLUMNS>(own + ROWS * LD, second, grads);
        bool hides = h.causal && (OF_QUERIES ? last_column > warp_first : last_row > now.first);
        scores_through_softmax<WIDTH, Block, RESULT>(scale, masks, kept, warp_first, now.first,
                                                     hides, rows, first, scores, grads);
        multiply_scores<WIDTH, COLUMNS>(RESULT == VALUES ? scores : grads,
                                        RESULT == VALUES ? second : first, results);
    }
    int64_t ld = (int64_t)(h.heads + 2 * h.key_heads) * h.head_width;
    int head = at.head + (RESULT == QUERIES ? 0 : RESULT == KEYS ? h.heads : h.heads + h.key_heads);
    int64_t first =
        ((int64_t)at.sample * h.positions + warp_first) * ld + (int64_t)head * h.head_width;
    store_results<WIDTH>(results, h.head_width,
                         results_from(b.grad_qkv, b.grad_qkv_bf16, first, ld),
                         h.positions - warp_first);
}

/* ---- Before them ------------------------------------------------------------------------ */

/* A warp for each query of a head: D, the sum of O dO over its row, and dO rounded. */
static __global__ void multiply_out_and_grad_rounded(rounded_heads h, sli_attention_backward a,
                                                     int64_t rows, float *inner, bfloat *grad)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows)
        return;
    float sum = 0;
    for (int column = 2 * (int)threadIdx.x; column < h.width; column += 2 * (int)WARP) {
        float of_grad[2] = {0, 0};
        for (int i = 0; i < 2 && column + i < h.head_width; i++) {
            int64_t at = row * h.head_width + column + i;
            float out = a.out_bf16 ? sli_f32_from_bf16(a.out_bf16[at]) : a.out[at];
            of_grad[i] = a.grad_out[at];
            sum += out * of_grad[i];
        }
        *(unsigned *)(grad + row * h.width + column) = two_rounded(of_grad[0], of_grad[1]);
    }
    sum = reduce_warp<adding>(sum);
    int64_t position = divide(row, h.heads), head = row - position * h.heads;
    int64_t sample = divide(position, h.positions);
    if (threadIdx.x == 0)
        inner[(sample * h.heads + head) * h.positions + position - sample * h.positions] = sum;
}

template <class Large, int WIDTH, result_kind RESULT>
static cudaError_t launch_result(int64_t samples, const rounded_backward &b,
                                 const dropout_masks &masks, cudaStream_t stream)
{
    typedef block_size<64, 16> small;
    int64_t heads = RESULT == QUERIES ? b.heads.heads : b.heads.key_heads;
    return launch_blocks<Large, small, WIDTH>(stream, samples * heads, b.heads.positions,
                                              RESULT == VALUES ? 1 : 2,
                                              grad_rounded<Large, WIDTH, RESULT>,
                                              grad_rounded<small, WIDTH, RESULT>, b, masks);
}

template <int WIDTH, class Large>
static cudaError_t launch_width(int64_t samples, const rounded_backward &b,
                                const dropout_masks &masks, cudaStream_t stream)
{
    cudaError_t error = launch_result<Large, WIDTH, QUERIES>(samples, b, masks, stream);
    if (error == cudaSuccess)
        error = launch_result<Large, WIDTH, KEYS>(samples, b, masks, stream);
    if (error == cudaSuccess)
        error = launch_result<Large, WIDTH, VALUES>(samples, b, masks, stream);
    return error;
}

/* D of every query, in a multiple of 16 bytes. */
static size_t inner_bytes(int64_t rows)
{
    return (size_t)divide_up(rows, 4) * 4 * sizeof(float);
}

size_t sli_scratch_bf16_attention_backward(const sli_attention_backward *a)
{
    int64_t rows = a->samples * a->positions * a->heads;
    int64_t rounded = rows + (a->qkv_bf16 ? 0 : rows_of_heads(a));
    return inner_bytes(rows) + (size_t)rounded_count(rounded, a->head_width) * sizeof(bfloat);
}

/* Scratch memory: D, dO rounded, and q, k, v where the caller has none that are rounded. */
cudaError_t sli_launch_bf16_attention_backward(const sli_attention_backward *a, void *scratch,
                                               cudaStream_t stream)
{
    enum { WARPS = 8 };
    int64_t rows = a->samples * a->positions * a->heads;
    float *inner = (float *)scratch;
    bfloat *grad = (bfloat *)((char *)scratch + inner_bytes(rows));
    const bfloat *qkv;
    cudaError_t error = sli_round_heads(a->qkv, a->qkv_bf16, rows_of_heads(a), a->head_width,
                                        grad + rounded_count(rows, a->head_width), &qkv, stream);
    if (error != cudaSuccess)
        return error;
    rounded_heads h = rounded_heads_of(qkv, a);
    rounded_backward b = {h, grad, a->log_sum_exp, inner, a->grad_qkv, a->grad_qkv_bf16};
    dropout_masks masks = masks_of(&a->dropout, a->positions);
    error = launch(stream, dim3((unsigned)divide_up(rows, WARPS)), dim3(WARP, WARPS),
                   multiply_out_and_grad_rounded, h, *a, rows, inner, grad);
    if (error != cudaSuccess)
        return error;
    return h.width <= 64    ? launch_width<64, block_size<128, 64>>(a->samples, b, masks, stream)
           : h.width <= 128 ? launch_width<128, block_size<128, 64>>(a->samples, b, masks, stream)
                            : launch_width<256, block_size<128, 32>>(a->samples, b, masks, stream);
}
