/* Multi-head self-attention of short rows: one task for each sample and head; backward, for each
 * head of keys. Long rows are cut into tiles (attention_tiles.c).
 *
 * A task has a head's whole score matrix, of few queries or few keys. q, k and v stay where they
 * are: the rows of qkv are (heads + 2 key_heads) * head_width apart, those of kv 2 key_heads *
 * head_width. Own kernels multiply matrices as small as these (small_product), and skip what the
 * causal mask makes zero.
 *
 * Backward, with P = softmax(S), M the dropout multipliers, O = (P M) V and a gradient dO:
 *   dV = (P M)^T dO,  d(P M) = dO V^T,  dS = P (M d(P M) - D),  dQ = dS K,  dK = dS^T Q
 * where D, the sum of P M d(P M) over a row, equals the sum of O dO over it: O already carries the
 * dropout. (Dao et al., "FlashAttention", 2022, appendix B.) */
#include "device/cpu/cpu_attention.h"
#include "device/cpu/amx.h"

#include <math.h>

enum { FEW_QUERIES = 16 }; /* fewer, as in generated text, are not worth a tile's copies */

sli_attention_head sli_find_head(const sli_attention_job *job, int64_t index)
{
    int64_t sample = index / job->heads, head = index % job->heads;
    int64_t d = job->head_width, key_head = head / (job->heads / job->key_heads);
    sli_attention_head h = {NULL};
    h.out_ld = job->heads * d;
    h.ld = h.out_ld + 2 * job->key_heads * d;
    h.kv_ld = job->kv ? 2 * job->key_heads * d : h.ld;
    h.q_at = sample * job->room * h.ld + head * d;
    h.k_at = sample * job->room * h.kv_ld + (job->kv ? 0 : h.out_ld) + key_head * d;
    h.v_at = h.k_at + job->key_heads * d;
    int64_t queries = job->positions - job->first_query;
    h.out_at = sample * queries * h.out_ld + head * d;
    h.q = job->kv ? job->qkv + sample * queries * h.ld + head * d
                  : job->qkv + h.q_at + job->first_query * h.ld;
    h.k = (job->kv ? job->kv : job->qkv) + h.k_at;
    h.v = (job->kv ? job->kv : job->qkv) + h.v_at;
    h.dropout_row = index * job->room;
    h.lse_at = index * queries;
    return h;
}

static sli_score_block score_block(const sli_attention_job *job, const sli_attention_head *h)
{
    return (sli_score_block){
        .rows = job->positions - job->first_query,
        .columns = job->positions,
        .ld = job->ld,
        .positions = job->room,
        .first_query = job->first_query,
        .dropout_row = h->dropout_row + job->first_query,
        .causal = job->causal,
        .scale = 1.0f / sqrtf((float)job->head_width),
        .dropout = job->dropout,
        .log_sum_exp = job->log_sum_exp ? job->log_sum_exp + h->lse_at : NULL,
    };
}

/* ---- Products --------------------------------------------------------------------------- */

static void multiply_matrices(sli_attention_job *job, sli_sgemm_shape shape, const float *a,
                              const float *b, float beta, float *c)
{
    int code = sli_sgemm(&shape, a, b, beta, c), none = 0;
    if (code)
        atomic_compare_exchange_strong(&job->code, &none, code);
}

/* `causal` is what is known of square scores. */
static void multiply_small(const sli_attention_job *job, sli_small_product product,
                           sli_triangle causal)
{
    product.triangle = job->causal && job->first_query == 0 ? causal : SLI_WHOLE;
    job->kernels->small_product(&product);
}

/* scores [rows, columns] = rows of a times rows of b: [rows, d] [columns, d]^T. `transposed`
 * [d, columns] is for own kernels. */
static void multiply_rows(sli_attention_job *job, const sli_score_block *block, const float *a,
                          int64_t lda, const float *b, int64_t ldb, float *transposed,
                          float *scores)
{
    int64_t d = job->head_width, columns = block->columns;
    if (!job->own_kernels) {
        sli_sgemm_shape shape = {false, true, block->rows, columns, d, lda, ldb, block->ld};
        multiply_matrices(job, shape, a, b, 0, scores);
        return;
    }
    job->kernels->transpose(columns, d, b, ldb, transposed);
    multiply_small(job,
                   (sli_small_product){.m = block->rows,
                                       .n = columns,
                                       .k = d,
                                       .a = a,
                                       .a_row = lda,
                                       .a_step = 1,
                                       .b = transposed,
                                       .ldb = columns,
                                       .c = scores,
                                       .ldc = block->ld},
                   SLI_C_LOWER);
}

/* to [rows, d] = scores [rows, columns] times b [columns, d]. */
static void multiply_scores(sli_attention_job *job, const sli_score_block *block,
                            const float *scores, const float *b, int64_t ldb, float *to,
                            int64_t ldto)
{
    int64_t d = job->head_width, columns = block->columns;
    if (!job->own_kernels) {
        sli_sgemm_shape shape = {false, false, block->rows, d, columns, block->ld, ldb, ldto};
        multiply_matrices(job, shape, scores, b, 0, to);
        return;
    }
    multiply_small(job,
                   (sli_small_product){.m = block->rows,
                                       .n = d,
                                       .k = columns,
                                       .a = scores,
                                       .a_row = block->ld,
                                       .a_step = 1,
                                       .b = b,
                                       .ldb = ldb,
                                       .c = to,
                                       .ldc = ldto},
                   SLI_A_LOWER);
}

/* multiply_transposed by an own kernel: what it adds goes through `room`, as heads may not be of
 * whole vectors. */
static void multiply_small_transposed(const sli_attention_job *job, const sli_score_block *block,
                                      const float *scores, const float *b, int64_t ldb, bool adds,
                                      float *to, int64_t ldto, float *room)
{
    int64_t d = job->head_width;
    multiply_small(job,
                   (sli_small_product){.m = block->columns,
                                       .n = d,
                                       .k = block->rows,
                                       .a = scores,
                                       .a_row = 1,
                                       .a_step = block->ld,
                                       .b = b,
                                       .ldb = ldb,
                                       .c = adds ? room : to,
                                       .ldc = adds ? d : ldto},
                   SLI_A_UPPER);
    for (int64_t i = 0; i < block->columns && adds; i++)
        for (int64_t l = 0; l < d; l++)
            to[i * ldto + l] += room[i * d + l];
}

/* to [columns, d] += scores^T [columns, rows] times b [rows, d]; stored if beta is 0. `room`
 * [columns, d] is for an own kernel. */
static void multiply_transposed(sli_attention_job *job, const sli_score_block *block,
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

/* A thread's workspace. Forward needs one matrix of scores. */
typedef struct workspace {
    float *transposed; /* [positions, d] or its transpose: for own kernels */
    float *scores, *grads;
} workspace;

static int64_t transposed_floats(const sli_attention_job *job)
{
    return job->own_kernels ? sli_divide_up(job->positions * job->head_width, 16) * 16 : 0;
}

static int64_t score_floats(const sli_attention_job *job)
{
    return sli_divide_up((job->positions - job->first_query) * job->ld, 16) * 16;
}

static workspace thread_workspace(const sli_attention_job *job, int thread)
{
    workspace w;
    w.transposed = job->workspace + thread * job->thread_floats;
    w.scores = w.transposed + transposed_floats(job);
    w.grads = w.scores + score_floats(job);
    return w;
}

static void forward_head(void *argument, int64_t task, int thread)
{
    sli_attention_job *job = argument;
    sli_attention_head h = sli_find_head(job, task);
    sli_score_block block = score_block(job, &h);
    workspace w = thread_workspace(job, thread);
    multiply_rows(job, &block, h.q, h.ld, h.k, h.kv_ld, w.transposed, w.scores);
    job->kernels->softmax(&block, w.scores);
    multiply_scores(job, &block, w.scores, h.v, h.kv_ld, job->to + h.out_at, h.out_ld);
}

static void backward_head(sli_attention_job *job, int64_t index, workspace w, float beta)
{
    sli_attention_head h = sli_find_head(job, index);
    sli_score_block block = score_block(job, &h);
    const float *grad_out = job->grad_out + h.out_at;
    float *grad_q = job->to + h.q_at + job->first_query * h.ld;
    float out_dot_grad[SLI_TILE];
    job->kernels->row_products(block.rows, job->head_width, h.out_ld, job->out + h.out_at, grad_out,
                               out_dot_grad);
    multiply_rows(job, &block, h.q, h.ld, h.k, h.ld, w.transposed, w.scores);
    multiply_rows(job, &block, grad_out, h.out_ld, h.v, h.ld, w.transposed, w.grads);
    job->kernels->softmax_backward(&block, w.scores, w.grads, out_dot_grad);
    multiply_transposed(job, &block, w.scores, grad_out, h.out_ld, beta, job->to + h.v_at, h.ld,
                        w.transposed);
    multiply_transposed(job, &block, w.grads, h.q, h.ld, beta, job->to + h.k_at, h.ld,
                        w.transposed);
    multiply_scores(job, &block, w.grads, h.k, h.ld, grad_q, h.ld);
}

/* The heads that share a head of keys, in their order. */
static void backward_key_head(void *argument, int64_t task, int thread)
{
    sli_attention_job *job = argument;
    workspace w = thread_workspace(job, thread);
    int64_t shared = job->heads / job->key_heads;
    for (int64_t i = 0; i < shared; i++)
        backward_head(job, task * shared + i, w, i > 0 || job->adds ? 1 : 0);
}

/* ---- The operations --------------------------------------------------------------------- */

static size_t workspace_bytes(const sli_attention_job *job)
{
    return (size_t)(job->thread_floats * job->device->threads + job->out_dot_grad_floats) *
           sizeof(float);
}

sl_status sli_attention_open_workspace(sli_attention_job *job)
{
    void *memory;
    SL_TRY(sli_device_allocate(job->device, SL_MEMORY_WORKSPACE, workspace_bytes(job), &memory));
    job->workspace = memory;
    job->out_dot_grad = job->workspace + job->thread_floats * job->device->threads;
    return SL_OK;
}

void sli_attention_close_workspace(sli_attention_job *job)
{
    sli_device_release(job->device, SL_MEMORY_WORKSPACE, job->workspace, workspace_bytes(job));
}

/* Runs the tasks with a workspace of `matrices` score matrices for each thread. */
static sl_status attend_to_short_rows(sli_attention_job *job, int64_t tasks, int matrices,
                                      sli_pool_task function)
{
    atomic_init(&job->code, 0);
    job->own_kernels = job->positions <= SLI_TILE && job->positions >= SLI_SMALL_LEAST &&
                       job->head_width >= SLI_SMALL_LEAST;
    job->ld = job->own_kernels ? sli_divide_up(job->positions, SLI_SMALL_LEAST) * SLI_SMALL_LEAST
                               : job->positions;
    job->thread_floats = matrices * score_floats(job) + transposed_floats(job);
    SL_TRY(sli_attention_open_workspace(job));
    sli_pool_run(sli_cpu(job->device)->pool, tasks, function, job);
    sli_attention_close_workspace(job);
    sli_sgemm_shape shape = {.m = job->positions, .n = job->positions, .k = job->head_width};
    return sli_sgemm_error("attention", &shape, atomic_load(&job->code));
}

static bool uses_amx(sl_device *device, bool bf16, int64_t head_width)
{
    return bf16 && device->has_bf16 && sli_cpu(device)->has_amx && head_width <= SLI_AMX_MOST;
}

/* What the arguments of forward and backward both have. */
#define COMMON_FIELDS(device_, arguments)                                                          \
    .device = (device_), .kernels = sli_cpu(device_)->kernels, .samples = (arguments)->samples,    \
    .positions = (arguments)->positions, .heads = (arguments)->heads,                              \
    .key_heads = (arguments)->key_heads, .head_width = (arguments)->head_width,                    \
    .first_query = (arguments)->first_query, .room = (arguments)->room,                            \
    .causal = (arguments)->causal, .qkv = (arguments)->qkv, .dropout = &(arguments)->dropout,      \
    .uses_amx = uses_amx(device_, (arguments)->bf16, (arguments)->head_width)

sl_status sli_cpu_attention(sl_device *device, const sli_attention *arguments)
{
    sli_attention_job job = {COMMON_FIELDS(device, arguments), .kv = arguments->kv,
                             .to = arguments->out, .log_sum_exp = arguments->log_sum_exp};
    bool is_few = job.positions - job.first_query < FEW_QUERIES && !job.log_sum_exp;
    if (device->batch_invariant || (job.positions > SLI_TILE && !is_few))
        return sli_attend_in_tiles(&job);
    return attend_to_short_rows(&job, job.samples * job.heads, 1, forward_head);
}

sl_status sli_cpu_attention_backward(sl_device *device, const sli_attention_backward *arguments)
{
    sli_attention_job job = {COMMON_FIELDS(device, arguments), .adds = arguments->adds,
                             .out = arguments->out, .grad_out = arguments->grad_out,
                             .to = arguments->grad_qkv,
                             /* Only read by backward. */
                             .log_sum_exp = (float *)arguments->log_sum_exp};
    /* With the products that forward had, whose sums log_sum_exp holds. */
    if (job.positions > SLI_TILE || (device->batch_invariant && job.uses_amx))
        return sli_attend_in_tiles_backward(&job);
    return attend_to_short_rows(&job, job.samples * job.key_heads, 2, backward_key_head);
}
