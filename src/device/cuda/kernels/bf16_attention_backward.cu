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
    const bf16 *grad;                 /* dO [samples, positions, heads, width] */
    const float *log_sum_exp, *inner; /* [samples, heads, positions] */
    float *grad_qkv;
};

static inline __device__ matrix_rows grad_rows(const rounded_backward &b, int64_t sample,
                                               int64_t head, int64_t position)
{
    const rounded_heads &h = b.heads;
    matrix_rows rows = {b.grad + ((sample * h.positions + position) * h.heads + head) * h.width,
                        h.heads * h.width, h.positions - position};
    return rows;
}

/* One element: score is q k^T, grad d(P M) and mask M's. `score` becomes P M, `grad` dS, with the
 * scale of the scores in it. */
static inline __device__ void through_softmax(float scale, float log_sum_exp, float inner,
                                              float mask, float *score, float *grad)
{
    /* Of a large score, which another order of sums may round up, it would not be at most 1. */
    float exponent = *score > log_sum_exp ? 0.0f : LOG2_E * scale * (*score - log_sum_exp);
    float probability = exp2f(exponent);
    *score = probability * mask;
    *grad = scale * (probability * (*grad * mask - inner));
}

/* What belongs to a query: log_sum_exp and D; 0 of one that does not exist. */
struct of_query {
    float log_sum_exp, inner;
};

static inline __device__ of_query load_query(const rounded_backward &b, int64_t task, int64_t query)
{
    of_query q = {0, 0};
    if (query < b.heads.positions) {
        q.log_sum_exp = b.log_sum_exp[task * b.heads.positions + query];
        q.inner = b.inner[task * b.heads.positions + query];
    }
    return q;
}

/* A step of a block's walk: columns from `first` of a head, of queries or keys. */
struct walk_step {
    int64_t head, first;
};

/* Through the softmax of a warp's scores: element i of a lane is in row i / 2, column i % 2 of
 * those that it has. Rows and columns begin at `row` and `column`; `hides`: some see none of the
 * others. */
template <result_kind RESULT, int TILES>
static inline __device__ void
scores_through_softmax(const rounded_backward &b, const dropout_masks &masks, int64_t sample,
                       const walk_step &step, int64_t row, bool hides, const of_query *rows,
                       float (*scores)[4], float (*grads)[4])
{
    const rounded_heads &h = b.heads;
    int lane = (int)(threadIdx.x % WARP);
    int64_t task = sample * h.heads + step.head, masks_first = step.head * h.positions;
    float scale = 1.0f / sqrtf((float)h.head_width);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        int64_t column = step.first + tile * PRODUCT_COLUMNS;
        unsigned kept = 0;
        of_query columns[2];
        if (masks.drops)
            kept = RESULT == QUERIES ? kept_in_rows(masks, sample, masks_first + row, column)
                                     : kept_in_columns(masks, sample, masks_first + column, row);
        if (RESULT != QUERIES)
            for (int i = 0; i < 2; i++)
                columns[i] = load_query(b, task, column + lane % 4 * 2 + i);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t r = row + lane / 4 + i / 2 * 8, c = column + lane % 4 * 2 + i % 2;
            const of_query &q = RESULT == QUERIES ? rows[i / 2] : columns[i % 2];
            float mask = !masks.drops ? 1.0f : kept >> i & 1 ? masks.scale : 0.0f;
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
    LAUNCH_SHARED(bf16, memory);
    const rounded_heads &h = b.heads;
    int64_t shared = h.heads / h.key_heads; /* heads of queries for one of keys */
    block_place at = place_of(h, OF_QUERIES ? h.heads : h.key_heads, ROWS, OF_QUERIES);
    int warp = (int)(threadIdx.x / WARP), lane = (int)(threadIdx.x % WARP);
    int64_t warp_first = at.first + warp * PRODUCT_ROWS;
    /* The walk: columns from `begin` to `end` of each of `walked` heads. */
    int64_t begin = h.causal && !OF_QUERIES ? at.first / COLUMNS * COLUMNS : 0;
    int64_t end =
        h.causal && OF_QUERIES && at.first + ROWS < h.positions ? at.first + ROWS : h.positions;
    int64_t steps_of_head = (end - begin + COLUMNS - 1) / COLUMNS;
    int64_t steps = steps_of_head * (OF_QUERIES ? 1 : shared);
    auto place_of_step = [&](int64_t step) {
        int64_t walked = divide(step, steps_of_head);
        walk_step place = {OF_QUERIES ? at.head : at.head * shared + walked,
                           begin + (step - walked * steps_of_head) * COLUMNS};
        return place;
    };
    bf16 *columns = memory + (RESULT == VALUES ? 1 : 2) * ROWS * LD;
    auto begin_columns = [&](int64_t step) {
        walk_step place = place_of_step(step);
        bf16 *to = columns + step % 2 * 2 * COLUMNS * LD;
        int64_t key_head = divide(at.head, shared);
        matrix_rows first = OF_QUERIES ? rows_of(h, at.sample, key_head, 1, place.first)
                                       : rows_of(h, at.sample, place.head, 0, place.first);
        matrix_rows second = OF_QUERIES ? rows_of(h, at.sample, key_head, 2, place.first)
                                        : grad_rows(b, at.sample, place.head, place.first);
        begin_tile<WIDTH, COLUMNS, Block::THREADS>(to, first, h.width);
        begin_tile<WIDTH, COLUMNS, Block::THREADS>(to + COLUMNS * LD, second, h.width);
    };
    begin_tile<WIDTH, ROWS, Block::THREADS>(
        memory, rows_of(h, at.sample, at.head, OF_QUERIES ? 0 : 1, at.first), h.width);
    if (RESULT != VALUES)
        begin_tile<WIDTH, ROWS, Block::THREADS>(memory + ROWS * LD,
                                                OF_QUERIES
                                                    ? grad_rows(b, at.sample, at.head, at.first)
                                                    : rows_of(h, at.sample, at.head, 2, at.first),
                                                h.width);
    begin_columns(0);
    of_query rows[2] = {};
    for (int half = 0; half < 2 && OF_QUERIES; half++)
        rows[half] = load_query(b, at.sample * h.heads + at.head, warp_first + lane / 4 + 8 * half);
    float results[WIDTH / PRODUCT_COLUMNS][4] = {};
    for (int64_t step = 0; step < steps; step++) {
        const bf16 *first = columns + step % 2 * 2 * COLUMNS * LD, *second = first + COLUMNS * LD;
        const bf16 *own = memory + warp * PRODUCT_ROWS * LD;
        walk_step place = place_of_step(step);
        float scores[Block::TILES][4], grads[Block::TILES][4] = {};
        wait_for_copies();
        __syncthreads(); /* all have copied these columns, and have read those before */
        if (step + 1 < steps)
            begin_columns(step + 1);
        int64_t last_row = warp_first + PRODUCT_ROWS - 1, last_column = place.first + COLUMNS - 1;
        if (h.causal && (OF_QUERIES ? place.first > last_row : last_column < warp_first))
            continue; /* no query of them sees a key */
        multiply_rows<WIDTH, COLUMNS>(own, first, h.width, scores);
        if (RESULT != VALUES)
            multiply_rows<WIDTH, COLUMNS>(own + ROWS * LD, second, h.width, grads);
        bool hides = h.causal && (OF_QUERIES ? last_column > warp_first : last_row > place.first);
        scores_through_softmax<RESULT, Block::TILES>(b, masks, at.sample, place, warp_first, hides,
                                                     rows, scores, grads);
        if (RESULT == VALUES)
            multiply_scores<WIDTH, COLUMNS>(scores, second, h.width, results);
        else
            multiply_scores<WIDTH, COLUMNS>(grads, first, h.width, results);
    }
    int64_t ld = (h.heads + 2 * h.key_heads) * h.head_width;
    int64_t head = at.head + (RESULT == QUERIES ? 0
                              : RESULT == KEYS  ? h.heads
                                                : h.heads + h.key_heads);
    store_results<WIDTH>(results, h.head_width,
                         b.grad_qkv + (at.sample * h.positions + warp_first) * ld +
                             head * h.head_width,
                         ld, h.positions - warp_first);
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

size_t sli_scratch_bf16_attention_backward(const sli_attention_backward *a)
{
    int64_t heads = a->samples * a->positions * 4 * a->heads; /* of q, k, v and dO */
    return (size_t)rounded_count(heads, a->head_width) * sizeof(bf16);
}

cudaError_t sli_launch_bf16_attention_backward(const sli_attention_backward *a, const float *inner,
                                               void *scratch, cudaStream_t stream)
{
    int64_t rows = a->samples * a->positions * a->heads;
    int width = (int)rounded_count(1, a->head_width);
    bf16 *qkv = (bf16 *)scratch, *grad = qkv + 3 * rows * width;
    rounded_backward b = {{qkv, a->positions, a->heads, a->heads, (int)a->head_width, width,
                           a->causal},
                          grad,
                          a->log_sum_exp,
                          inner,
                          a->grad_qkv};
    dropout_masks masks = masks_of(&a->dropout, a->positions);
    cudaError_t error = sli_round_heads(a->qkv, 3 * rows, a->head_width, qkv, stream);
    if (error == cudaSuccess)
        error = sli_round_heads(a->grad_out, rows, a->head_width, grad, stream);
    if (error != cudaSuccess)
        return error;
    return width <= 64    ? launch_width<64, block_size<128, 64>>(a->samples, b, masks, stream)
           : width <= 128 ? launch_width<128, block_size<128, 64>>(a->samples, b, masks, stream)
                          : launch_width<256, block_size<128, 32>>(a->samples, b, masks, stream);
}
