/* Multi-head self-attention: one task for each sample and head; backward, for each head of keys.
 *
 * A task works on blocks of BLOCK queries, so that its score matrices are BLOCK x positions: the
 * memory grows with the length, not with its square. With the causal mask a block looks only at the
 * keys up to its last query. q, k and v stay where they are: the rows of qkv are
 * (heads + 2 key_heads) * head_width apart, those of kv 2 key_heads * head_width. Where one block
 * is all, a head's matrices are so small that own kernels multiply them (small_product); they skip
 * what the causal mask makes zero. Their sums have one order, that of the positions, whatever else
 * is multiplied: so they also make forward where a query's bits may not depend on the other
 * queries.
 *
 * Backward, with P = softmax(S), M the dropout multipliers, O = (P M) V and a gradient dO:
 *   dV = (P M)^T dO,  d(P M) = dO V^T,  dS = P (M d(P M) - D),  dQ = dS K,  dK = dS^T Q
 * where D, the sum of P M d(P M) over a row, equals the sum of O dO over it: O already carries the
 * dropout. (Dao et al., "FlashAttention", 2022, appendix B.) */
#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { BLOCK = 64 };

typedef struct attention_job {
    const sli_cpu_kernels *kernels;
    int64_t positions, heads, key_heads, head_width;
    int64_t first_query, room;
    bool causal, adds;
    const float *qkv, *kv, *out, *grad_out; /* kv: NULL where k and v are in qkv */
    const sli_dropout *dropout;
    float *to; /* out, or grad_qkv */
    float *log_sum_exp;
    float *workspace; /* [threads, thread_floats] */
    int64_t thread_floats;
    bool own_kernels; /* multiply; backward: one block */
    int64_t ld;       /* row distance of scores */
    atomic_int code;
} attention_job;

/* One sample's head: where its matrices are. */
typedef struct head {
    const float *q, *k, *v;    /* q from the first query on */
    int64_t ld, kv_ld, out_ld; /* row distances of q, of k and v, and of out */
    int64_t q_at, k_at, v_at;  /* offsets of the first elements, of position 0, in qkv; of k and v
                                  in kv where there is one */
    int64_t out_at;            /* and in out */
    int64_t dropout_row;       /* of position 0 */
    int64_t lse_at;            /* of the first query in log_sum_exp */
} head;

static head find_head(const attention_job *job, int64_t task)
{
    int64_t sample = task / job->heads, index = task % job->heads;
    int64_t d = job->head_width, key_index = index / (job->heads / job->key_heads);
    head h = {NULL};
    h.out_ld = job->heads * d;
    h.ld = h.out_ld + 2 * job->key_heads * d;
    h.kv_ld = job->kv ? 2 * job->key_heads * d : h.ld;
    h.q_at = sample * job->room * h.ld + index * d;
    h.k_at = sample * job->room * h.kv_ld + (job->kv ? 0 : h.out_ld) + key_index * d;
    h.v_at = h.k_at + job->key_heads * d;
    int64_t queries = job->positions - job->first_query;
    h.out_at = sample * queries * h.out_ld + index * d;
    h.q = job->kv ? job->qkv + sample * queries * h.ld + index * d
                  : job->qkv + h.q_at + job->first_query * h.ld;
    h.k = (job->kv ? job->kv : job->qkv) + h.k_at;
    h.v = (job->kv ? job->kv : job->qkv) + h.v_at;
    h.dropout_row = task * job->room;
    h.lse_at = task * queries;
    return h;
}

static sli_score_block score_block(const attention_job *job, const head *h, int64_t first)
{
    sli_score_block block = {.rows = sli_smaller(BLOCK, job->positions - first)};
    block.columns = job->causal ? first + block.rows : job->positions;
    block.ld = job->ld;
    block.positions = job->room;
    block.first_query = first;
    block.dropout_row = h->dropout_row + first;
    block.causal = job->causal;
    block.scale = 1.0f / sqrtf((float)job->head_width);
    block.dropout = job->dropout;
    block.log_sum_exp =
        job->log_sum_exp ? job->log_sum_exp + h->lse_at + first - job->first_query : NULL;
    return block;
}

static void multiply_matrices(attention_job *job, sli_sgemm_shape shape, const float *a,
                              const float *b, float beta, float *c)
{
    int code = sli_sgemm(&shape, a, b, beta, c), none = 0;
    if (code)
        atomic_compare_exchange_strong(&job->code, &none, code);
}

/* `causal` is what is known of square scores. */
static void multiply_small(const attention_job *job, const sli_score_block *block,
                           sli_small_product product, sli_triangle causal)
{
    product.triangle = job->causal && block->first_query == 0 ? causal : SLI_WHOLE;
    job->kernels->small_product(&product);
}

/* Rows [count, d] with zeros behind, to [rows, width], d <= width. */
static const float *pad_rows(const float *from, int64_t ld, int64_t count, int64_t d, int64_t rows,
                             int64_t width, float *to)
{
    memset(to, 0, (size_t)(rows * width) * sizeof *to);
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * width, from + i * ld, (size_t)d * sizeof *to);
    return to;
}

/* multiply_rows by own kernels, for BLOCK rows of b at a time. `room` [SLI_SMALL_LEAST, d]. */
static void multiply_small_rows(const attention_job *job, const sli_score_block *block,
                                const float *a, int64_t lda, const float *b, int64_t ldb,
                                float *turned, float *room, float *scores)
{
    int64_t d = job->head_width;
    for (int64_t first = 0; first < block->columns; first += BLOCK) {
        int64_t count = sli_smaller(BLOCK, block->columns - first);
        int64_t n = sli_larger(count, SLI_SMALL_LEAST);
        const float *rows = b + first * ldb;
        if (count < n)
            rows = pad_rows(rows, ldb, count, d, n, d, room);
        job->kernels->transpose(n, d, rows, count < n ? d : ldb, turned);
        sli_small_product product = {block->rows,    n,         d,        a, lda, 1, turned, n,
                                     scores + first, block->ld, SLI_WHOLE};
        multiply_small(job, block, product, SLI_C_LOWER);
    }
}

/* scores [rows, columns] = rows of a times rows of b: [rows, d] [columns, d]^T. `turned` and `room`
 * are for own kernels. */
static void multiply_rows(attention_job *job, const sli_score_block *block, const float *a,
                          int64_t lda, const float *b, int64_t ldb, float *turned, float *room,
                          float *scores)
{
    if (job->own_kernels) {
        multiply_small_rows(job, block, a, lda, b, ldb, turned, room, scores);
        return;
    }
    sli_sgemm_shape shape = {false,           true, block->rows, block->columns,
                             job->head_width, lda,  ldb,         block->ld};
    multiply_matrices(job, shape, a, b, 0, scores);
}

/* multiply_scores by own kernels. `room` [columns + rows, SLI_SMALL_LEAST] is for narrow heads. */
static void multiply_small_scores(const attention_job *job, const sli_score_block *block,
                                  const float *scores, const float *b, int64_t ldb, float *to,
                                  int64_t ldto, float *room)
{
    int64_t d = job->head_width, n = sli_larger(d, SLI_SMALL_LEAST);
    float *apart = room + block->columns * n;
    if (d < n)
        b = pad_rows(b, ldb, block->columns, d, block->columns, n, room);
    sli_small_product product = {block->rows,
                                 n,
                                 block->columns,
                                 scores,
                                 block->ld,
                                 1,
                                 b,
                                 d < n ? n : ldb,
                                 d < n ? apart : to,
                                 d < n ? n : ldto,
                                 SLI_WHOLE};
    multiply_small(job, block, product, SLI_A_LOWER);
    for (int64_t i = 0; d < n && i < block->rows; i++)
        memcpy(to + i * ldto, apart + i * n, (size_t)d * sizeof *to);
}

/* to [rows, d] = scores [rows, columns] times b [columns, d]. `room` is for own kernels. */
static void multiply_scores(attention_job *job, const sli_score_block *block, const float *scores,
                            const float *b, int64_t ldb, float *to, int64_t ldto, float *room)
{
    if (job->own_kernels) {
        multiply_small_scores(job, block, scores, b, ldb, to, ldto, room);
        return;
    }
    sli_sgemm_shape shape = {false,          false,     block->rows, job->head_width,
                             block->columns, block->ld, ldb,         ldto};
    multiply_matrices(job, shape, scores, b, 0, to);
}

/* multiply_transposed by an own kernel, which only stores: what it adds goes through `room`. */
static void multiply_small_transposed(const attention_job *job, const sli_score_block *block,
                                      const float *scores, const float *b, int64_t ldb, bool adds,
                                      float *to, int64_t ldto, float *room)
{
    int64_t d = job->head_width;
    sli_small_product product = {block->columns, d, block->rows, scores,           1,
                                 block->ld,      b, ldb,         adds ? room : to, adds ? d : ldto,
                                 SLI_WHOLE};
    multiply_small(job, block, product, SLI_A_UPPER);
    for (int64_t i = 0; i < block->columns && adds; i++)
        for (int64_t l = 0; l < d; l++)
            to[i * ldto + l] += room[i * d + l];
}

/* to [columns, d] += scores^T [columns, rows] times b [rows, d]; stored if beta is 0. `room`
 * [columns, d] is for an own kernel. */
static void multiply_transposed(attention_job *job, const sli_score_block *block,
                                const float *scores, const float *b, int64_t ldb, float beta,
                                float *to, int64_t ldto, float *room)
{
    int64_t d = job->head_width;
    if (job->own_kernels) {
        multiply_small_transposed(job, block, scores, b, ldb, beta != 0, to, ldto, room);
        return;
    }
    sli_sgemm_shape shape = {true, false, block->columns, d, block->rows, block->ld, ldb, ldto};
    multiply_matrices(job, shape, scores, b, beta, to);
}

/* ---- One head --------------------------------------------------------------------------- */

/* A thread's workspace: two score blocks, and room for own kernels. Forward needs one block. */
typedef struct workspace {
    float *turned; /* [BLOCK, d] or its transpose */
    float *room;   /* of narrow heads and few keys, see above */
    float *scores, *grads;
} workspace;

static int64_t turned_floats(const attention_job *job)
{
    int64_t rows = sli_smaller(BLOCK, job->positions);
    return job->own_kernels ? sli_larger(rows, SLI_SMALL_LEAST) * job->head_width : 0;
}

static int64_t room_floats(const attention_job *job)
{
    if (job->head_width < SLI_SMALL_LEAST)
        return job->own_kernels ? SLI_SMALL_LEAST * (job->positions + BLOCK) : 0;
    return job->own_kernels ? SLI_SMALL_LEAST * job->head_width : 0;
}

static int64_t block_floats(const attention_job *job)
{
    return sli_divide_up(sli_smaller(BLOCK, job->positions) * job->ld, 16) * 16;
}

static workspace thread_workspace(const attention_job *job, int thread)
{
    workspace w;
    w.turned = job->workspace + thread * job->thread_floats;
    w.room = w.turned + turned_floats(job);
    w.scores = w.room + room_floats(job);
    w.grads = w.scores + block_floats(job);
    return w;
}

static void forward_head(void *argument, int64_t task, int thread)
{
    attention_job *job = argument;
    head h = find_head(job, task);
    workspace w = thread_workspace(job, thread);
    for (int64_t first = job->first_query; first < job->positions; first += BLOCK) {
        sli_score_block block = score_block(job, &h, first);
        float *out = job->to + h.out_at + (first - job->first_query) * h.out_ld;
        const float *q = h.q + (first - job->first_query) * h.ld;
        multiply_rows(job, &block, q, h.ld, h.k, h.kv_ld, w.turned, w.room, w.scores);
        job->kernels->softmax(&block, w.scores);
        multiply_scores(job, &block, w.scores, h.v, h.kv_ld, out, h.out_ld, w.room);
    }
}

/* The last block comes first: it sees all keys, so its products set the gradients of k and v where
 * beta is 0, and the others add to them. */
static void backward_head(attention_job *job, int64_t index, workspace w, float beta)
{
    head h = find_head(job, index);
    float *grad_q = job->to + h.q_at, *grad_k = job->to + h.k_at, *grad_v = job->to + h.v_at;
    float inner[BLOCK];
    int64_t before = job->first_query, last = (job->positions - before - 1) / BLOCK * BLOCK;
    for (int64_t first = before + last; first >= before; first -= BLOCK) {
        sli_score_block block = score_block(job, &h, first);
        const float *q = h.q + (first - before) * h.ld;
        const float *out = job->out + h.out_at + (first - before) * h.out_ld;
        const float *grad_out = job->grad_out + h.out_at + (first - before) * h.out_ld;
        job->kernels->row_products(block.rows, job->head_width, h.out_ld, out, grad_out, inner);
        multiply_rows(job, &block, q, h.ld, h.k, h.ld, w.turned, w.room, w.scores);
        multiply_rows(job, &block, grad_out, h.out_ld, h.v, h.ld, w.turned, w.room, w.grads);
        job->kernels->softmax_backward(&block, w.scores, w.grads, inner);
        multiply_transposed(job, &block, w.scores, grad_out, h.out_ld, beta, grad_v, h.ld,
                            w.turned);
        multiply_transposed(job, &block, w.grads, q, h.ld, beta, grad_k, h.ld, w.turned);
        multiply_scores(job, &block, w.grads, h.k, h.ld, grad_q + first * h.ld, h.ld, w.room);
        beta = 1;
    }
}

/* The heads that share a head of keys, in their order. */
static void backward_key_head(void *argument, int64_t task, int thread)
{
    attention_job *job = argument;
    workspace w = thread_workspace(job, thread);
    int64_t shared = job->heads / job->key_heads;
    for (int64_t i = 0; i < shared; i++)
        backward_head(job, task * shared + i, w, i > 0 || job->adds ? 1 : 0);
}

/* Runs the tasks with a workspace of `matrices` score blocks for each thread. */
static sl_status run_heads(sl_device *device, attention_job *job, int64_t tasks, int matrices,
                           sli_pool_task function)
{
    job->kernels = sli_cpu(device)->kernels;
    atomic_init(&job->code, 0);
    job->own_kernels |= job->positions <= BLOCK && job->positions >= SLI_SMALL_LEAST &&
                        job->head_width >= SLI_SMALL_LEAST;
    job->ld = job->own_kernels ? sli_divide_up(job->positions, SLI_SMALL_LEAST) * SLI_SMALL_LEAST
                               : job->positions;
    job->thread_floats = matrices * block_floats(job) + turned_floats(job) + room_floats(job);
    size_t bytes = (size_t)(job->thread_floats * device->threads) * sizeof(float);
    void *memory;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &memory));
    job->workspace = memory;
    sli_pool_run(sli_cpu(device)->pool, tasks, function, job);
    sli_device_release(device, SL_MEMORY_WORKSPACE, memory, bytes);
    sli_sgemm_shape shape = {.m = job->positions, .n = job->positions, .k = job->head_width};
    return sli_sgemm_error("attention", &shape, atomic_load(&job->code));
}

sl_status sli_cpu_attention(sl_device *device, const sli_attention *arguments)
{
    attention_job job = {.positions = arguments->positions,
                         .heads = arguments->heads,
                         .key_heads = arguments->key_heads,
                         .head_width = arguments->head_width,
                         .first_query = arguments->first_query,
                         .room = arguments->room,
                         .causal = arguments->causal,
                         .qkv = arguments->qkv,
                         .kv = arguments->kv,
                         .dropout = &arguments->dropout,
                         .to = arguments->out,
                         .own_kernels = device->batch_invariant,
                         .log_sum_exp = arguments->log_sum_exp};
    return run_heads(device, &job, arguments->samples * job.heads, 1, forward_head);
}

sl_status sli_cpu_attention_backward(sl_device *device, const sli_attention_backward *arguments)
{
    attention_job job = {.positions = arguments->positions,
                         .heads = arguments->heads,
                         .key_heads = arguments->key_heads,
                         .head_width = arguments->head_width,
                         .first_query = arguments->first_query,
                         .room = arguments->room,
                         .adds = arguments->adds,
                         .causal = arguments->causal,
                         .qkv = arguments->qkv,
                         .out = arguments->out,
                         .grad_out = arguments->grad_out,
                         .dropout = &arguments->dropout,
                         .to = arguments->grad_qkv,
                         /* Only read by backward. */
                         .log_sum_exp = (float *)arguments->log_sum_exp};
    return run_heads(device, &job, arguments->samples * job.key_heads, 2, backward_key_head);
}
