/* Multi-head self-attention.
 *
 * Forward, a task has a block of queries of one head, so that its scores are a few rows of as many
 * columns as there are keys: the memory grows with the length, not with its square. With the causal
 * mask a block looks only at the keys up to its last query, rounded up to whole panels. Before,
 * keys and values are packed for the products, once for all blocks of all heads that share them. A
 * query's result is a function of the query and of the keys that it sees (isa/packed.c): it is the
 * same in any block, beside any other queries, and alone behind kept keys and values.
 *
 * Backward, a task is a head of keys, and works on blocks of BLOCK queries.
 *
 * q, k and v stay where the projection put them: their rows are (heads + 2 key_heads) * head_width
 * apart. Where one block is all, a head's matrices are so small that kernels without packing
 * multiply them (small_product); they skip what the causal mask makes zero.
 *
 * Backward, with P = softmax(S), M the dropout multipliers, O = (P M) V and a gradient dO:
 *   dV = (P M)^T dO,  d(P M) = dO V^T,  dS = P (M d(P M) - D),  dQ = dS K,  dK = dS^T Q
 * where D, the sum of P M d(P M) over a row, equals the sum of O dO over it: O already carries the
 * dropout. (Dao et al., "FlashAttention", 2022, appendix B.) */
#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <math.h>
#include <stdatomic.h>

enum { BLOCK = 64 };
/* Of forward: a block's scores should stay in the second cache, and so should a step's values. */
enum { ROW_GRAIN = 24, MOST_ROWS = 72, SCORE_FLOATS = 128 * 1024, KEYS = 256 };

typedef struct attention_job {
    const sli_cpu_kernels *kernels;
    int64_t first_sample, samples; /* that a job works on */
    int64_t positions, heads, key_heads, head_width;
    int64_t first_query, room;
    bool causal;
    const float *qkv, *out, *grad_out;
    const sli_dropout *dropout;
    float *to; /* out, or grad_qkv */
    float *log_sum_exp;
    float *workspace; /* [threads, thread_floats] */
    int64_t thread_floats;
    bool small;           /* one block, multiplied without packing */
    sli_ranges steps;     /* of keys that are packed together */
    int64_t rows, blocks; /* of a forward's block, and how many of these a head has */
    float *packed;        /* [samples, key_heads, packed_floats]: keys, then values */
    int64_t packed_floats;
    atomic_int code;
} attention_job;

/* One sample's head: where its matrices are. */
typedef struct head {
    const float *q, *k, *v;
    int64_t ld, out_ld;       /* row distances of q, k, v and of out */
    int64_t q_at, k_at, v_at; /* offsets of the first elements in qkv */
    int64_t out_at;           /* and in out */
    int64_t row;              /* of query 0 in the dropout's numbering and in log_sum_exp */
} head;

static head find_head(const attention_job *job, int64_t task)
{
    int64_t sample = task / job->heads, index = task % job->heads;
    int64_t d = job->head_width, key_index = index / (job->heads / job->key_heads);
    head h;
    h.out_ld = job->heads * d;
    h.ld = h.out_ld + 2 * job->key_heads * d;
    h.q_at = sample * job->room * h.ld + index * d;
    h.k_at = sample * job->room * h.ld + h.out_ld + key_index * d;
    h.v_at = h.k_at + job->key_heads * d;
    h.out_at = sample * (job->positions - job->first_query) * h.out_ld + index * d;
    h.q = job->qkv + h.q_at;
    h.k = job->qkv + h.k_at;
    h.v = job->qkv + h.v_at;
    h.row = task * job->positions;
    return h;
}

static int64_t packed_columns(int64_t columns)
{
    return sli_divide_up(columns, SLI_PACK_COLUMNS) * SLI_PACK_COLUMNS;
}

/* As many columns have room in memory, packed. */
static int64_t packed_width(int64_t columns)
{
    return sli_divide_up(columns, SLI_PACK_WIDTH) * SLI_PACK_WIDTH;
}

/* Up to `rows` queries from `first` on, and the keys that they see; where these are packed, the
 * rest of their panel too. */
static sli_score_block score_block(const attention_job *job, const head *h, int64_t first,
                                   int64_t rows)
{
    sli_score_block block = {.rows = sli_smaller(rows, job->positions - first)};
    int64_t seen = job->causal ? first + block.rows : job->positions;
    block.columns = job->small ? seen : sli_smaller(packed_columns(seen), job->positions);
    block.ld = job->positions;
    block.positions = job->positions;
    block.first_query = first;
    block.dropout_row = h->row + first;
    block.causal = job->causal;
    block.scale = 1.0f / sqrtf((float)job->head_width);
    block.dropout = job->dropout;
    block.log_sum_exp = job->log_sum_exp ? job->log_sum_exp + h->row + first : NULL;
    return block;
}

static void multiply_matrices(attention_job *job, sli_sgemm_shape shape, const float *a,
                              const float *b, float beta, float *c)
{
    int code = sli_sgemm(&shape, a, b, beta, c), none = 0;
    if (code)
        atomic_compare_exchange_strong(&job->code, &none, code);
}

static void multiply_small(const attention_job *job, sli_small_product product, sli_triangle causal)
{
    product.triangle = job->causal && job->first_query == 0 ? causal : SLI_WHOLE;
    job->kernels->small_product(&product);
}

/* ---- Packed keys and values --------------------------------------------------------------- */

/* Rows of k or v for multiply_rows: their transpose, of packed_floats. */
static void pack_rows(const attention_job *job, sli_range rows, const float *b, int64_t ldb,
                      float *to)
{
    sli_pack pack = {.n = rows.count,
                     .k = job->head_width,
                     .b = b + rows.first * ldb,
                     .ldb = ldb,
                     .transposed = true,
                     .to = to + rows.first * job->head_width};
    job->kernels->pack(&pack);
}

/* A step of rows of k or v for multiply_scores. It lies behind those of the steps before it. */
static void pack_step(const attention_job *job, sli_range step, const float *b, int64_t ldb,
                      float *to)
{
    sli_pack pack = {.n = job->head_width,
                     .k = step.count,
                     .b = b + step.first * ldb,
                     .ldb = ldb,
                     .to = to + step.first * packed_width(job->head_width)};
    job->kernels->pack(&pack);
}

/* Floats of all positions' rows, and of their steps, packed. */
static int64_t packed_rows_floats(const attention_job *job)
{
    return packed_width(job->positions) * job->head_width;
}

static int64_t packed_steps_floats(const attention_job *job)
{
    return job->positions * packed_width(job->head_width);
}

/* ---- Products ----------------------------------------------------------------------------- */

/* scores [rows, columns] = rows of a times rows of b: [rows, d] [columns, d]^T. b is packed, or
 * `turned` [d, positions] is for its transpose. */
static void multiply_rows(const attention_job *job, const sli_score_block *block, const float *a,
                          int64_t lda, const float *b, int64_t ldb, float *turned, float *scores)
{
    int64_t d = job->head_width;
    if (job->small) {
        job->kernels->transpose(block->columns, d, b, ldb, turned);
        sli_small_product product = {block->rows, block->columns, d,      a,         lda,      1,
                                     turned,      block->columns, scores, block->ld, SLI_WHOLE};
        multiply_small(job, product, SLI_C_LOWER);
        return;
    }
    sli_packed_product product = {block->rows, block->columns, d,         a,    lda, turned,
                                  d,           scores,         block->ld, false};
    job->kernels->multiply_packed(&product);
}

/* to [rows, d] = scores [rows, columns] times b [columns, d], which is packed in steps or not. */
static void multiply_scores(const attention_job *job, const sli_score_block *block,
                            const float *scores, const float *b, int64_t ldb, float *to,
                            int64_t ldto)
{
    int64_t d = job->head_width;
    if (job->small) {
        sli_small_product product = {block->rows, d,  block->columns, scores,   block->ld, 1, b,
                                     ldb,         to, ldto,           SLI_WHOLE};
        multiply_small(job, product, SLI_A_LOWER);
        return;
    }
    for (int64_t i = 0; i < job->steps.count; i++) {
        sli_range step = sli_range_at(&job->steps, i);
        if (step.first >= block->columns)
            break;
        sli_packed_product product = {.m = block->rows,
                                      .n = d,
                                      .k = sli_smaller(step.count, block->columns - step.first),
                                      .a = scores + step.first,
                                      .lda = block->ld,
                                      .b = b + step.first * packed_width(d),
                                      .packed = step.count,
                                      .c = to,
                                      .ldc = ldto,
                                      .adds = i > 0};
        job->kernels->multiply_packed(&product);
    }
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
    multiply_small(job, product, SLI_A_UPPER);
    for (int64_t i = 0; i < block->columns && adds; i++)
        for (int64_t l = 0; l < d; l++)
            to[i * ldto + l] += room[i * d + l];
}

/* to [columns, d] += scores^T [columns, rows] times b [rows, d]; stored if beta is 0. `room`
 * [columns, d] is for a small product. */
static void multiply_transposed(attention_job *job, const sli_score_block *block,
                                const float *scores, const float *b, int64_t ldb, float beta,
                                float *to, int64_t ldto, float *room)
{
    int64_t d = job->head_width;
    if (job->small) {
        multiply_small_transposed(job, block, scores, b, ldb, beta != 0, to, ldto, room);
        return;
    }
    sli_sgemm_shape shape = {true, false, block->columns, d, block->rows, block->ld, ldb, ldto};
    multiply_matrices(job, shape, scores, b, beta, to);
}

/* ---- One head --------------------------------------------------------------------------- */

/* A thread's workspace. Where nothing is packed, `turned` is a matrix [positions, d] or its
 * transpose, and the pointers behind it are q's. */
typedef struct workspace {
    float *turned;   /* or k for multiply_rows, */
    float *turned_v; /* and v, */
    float *steps;    /* and k for multiply_scores */
    float *scores, *grads;
} workspace;

static int64_t block_floats(const attention_job *job, int64_t rows)
{
    return sli_divide_up(sli_smaller(rows, job->positions) * job->positions, 16) * 16;
}

static void forward_head(void *argument, int64_t task, int thread)
{
    attention_job *job = argument;
    head h = find_head(job, task);
    float *turned = job->workspace + thread * job->thread_floats;
    float *scores = turned + job->head_width * job->positions;
    sli_score_block block = score_block(job, &h, job->first_query, BLOCK);
    multiply_rows(job, &block, h.q + job->first_query * h.ld, h.ld, h.k, h.ld, turned, scores);
    job->kernels->softmax(&block, scores);
    multiply_scores(job, &block, scores, h.v, h.ld, job->to + h.out_at, h.out_ld);
}

/* ---- Forward in blocks -------------------------------------------------------------------- */

/* Packs a step of a head of keys, and its values behind all keys. */
static void pack_keys(void *argument, int64_t task, int thread)
{
    (void)thread;
    const attention_job *job = argument;
    int64_t index = task / job->steps.count, shared = job->heads / job->key_heads;
    sli_range step = sli_range_at(&job->steps, task % job->steps.count);
    head h = find_head(job, job->first_sample * job->heads + index * shared);
    float *keys = job->packed + index * job->packed_floats;
    pack_rows(job, step, h.k, h.ld, keys);
    pack_step(job, step, h.v, h.ld, keys + packed_rows_floats(job));
}

/* The last queries of all heads come first, since they see the most keys. */
static void forward_block(void *argument, int64_t task, int thread)
{
    attention_job *job = argument;
    int64_t heads = job->samples * job->heads, index = task % heads;
    int64_t at = (job->blocks - 1 - task / heads) * job->rows;
    head h = find_head(job, job->first_sample * job->heads + index);
    float *keys = job->packed + index / (job->heads / job->key_heads) * job->packed_floats;
    float *scores = job->workspace + thread * job->thread_floats;
    float *out = job->to + h.out_at + at * h.out_ld;
    sli_score_block block = score_block(job, &h, job->first_query + at, job->rows);
    multiply_rows(job, &block, h.q + block.first_query * h.ld, h.ld, h.k, h.ld, keys, scores);
    job->kernels->softmax(&block, scores);
    multiply_scores(job, &block, scores, keys + packed_rows_floats(job), h.ld, out, h.out_ld);
}

/* So many samples at a time as there is memory for. */
static void run_samples(sli_pool *pool, attention_job *job, float *memory, int64_t samples,
                        int64_t at_once)
{
    job->packed = memory;
    job->workspace = memory + at_once * job->key_heads * job->packed_floats;
    for (job->first_sample = 0; job->first_sample < samples; job->first_sample += at_once) {
        job->samples = sli_smaller(at_once, samples - job->first_sample);
        sli_pool_run(pool, job->samples * job->key_heads * job->steps.count, pack_keys, job);
        sli_pool_run(pool, job->samples * job->heads * job->blocks, forward_block, job);
    }
}

/* In the device's scratch, where it has the room for a sample. */
static sl_status run_blocks(sl_device *device, attention_job *job, int64_t samples)
{
    sli_cpu_device *cpu = sli_cpu(device);
    int64_t queries = job->positions - job->first_query;
    int64_t most = SCORE_FLOATS / job->positions / ROW_GRAIN * ROW_GRAIN;
    job->rows = sli_smaller(queries, sli_smaller(MOST_ROWS, sli_larger(ROW_GRAIN, most)));
    job->blocks = sli_divide_up(queries, job->rows);
    job->packed_floats = packed_rows_floats(job) + packed_steps_floats(job);
    job->thread_floats = block_floats(job, job->rows);
    int64_t rooms = job->thread_floats * device->threads;
    int64_t sample_floats = job->key_heads * job->packed_floats;
    int64_t at_once = sli_smaller(samples, (SLI_SCRATCH_FLOATS - rooms) / sample_floats);
    if (at_once > 0) {
        pthread_mutex_lock(&cpu->scratch_lock);
        run_samples(cpu->pool, job, cpu->scratch, samples, at_once);
        pthread_mutex_unlock(&cpu->scratch_lock);
        return SL_OK;
    }
    size_t bytes = (size_t)(sample_floats + rooms) * sizeof(float);
    void *memory;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &memory));
    run_samples(cpu->pool, job, memory, samples, 1);
    sli_device_release(device, SL_MEMORY_WORKSPACE, memory, bytes);
    return SL_OK;
}

/* ---- Backward of a head ------------------------------------------------------------------- */

static workspace thread_workspace(const attention_job *job, int thread)
{
    workspace w;
    float *begin = job->workspace + thread * job->thread_floats;
    int64_t rows = job->small ? 0 : packed_rows_floats(job);
    w.turned = begin;
    w.turned_v = begin + rows;
    w.steps = w.turned_v + rows;
    w.scores =
        job->small ? begin + job->head_width * job->positions : w.steps + packed_steps_floats(job);
    w.grads = w.scores + block_floats(job, BLOCK);
    return w;
}

static void pack_head(const attention_job *job, const head *h, workspace w)
{
    pack_rows(job, (sli_range){0, job->positions}, h->k, h->ld, w.turned);
    pack_rows(job, (sli_range){0, job->positions}, h->v, h->ld, w.turned_v);
    for (int64_t i = 0; i < job->steps.count; i++)
        pack_step(job, sli_range_at(&job->steps, i), h->k, h->ld, w.steps);
}

/* The last block comes first: it sees all keys, so its products set the gradients of k and v where
 * beta is 0, and the others add to them. */
static void backward_head(attention_job *job, int64_t index, workspace w, float beta)
{
    head h = find_head(job, index);
    float *grad_q = job->to + h.q_at, *grad_k = job->to + h.k_at, *grad_v = job->to + h.v_at;
    const float *k = job->small ? h.k : w.steps;
    float inner[BLOCK];
    for (int64_t first = (job->positions - 1) / BLOCK * BLOCK; first >= 0; first -= BLOCK) {
        sli_score_block block = score_block(job, &h, first, BLOCK);
        const float *q = h.q + first * h.ld;
        const float *out = job->out + h.out_at + first * h.out_ld;
        const float *grad_out = job->grad_out + h.out_at + first * h.out_ld;
        job->kernels->row_products(block.rows, job->head_width, h.out_ld, out, grad_out, inner);
        multiply_rows(job, &block, q, h.ld, h.k, h.ld, w.turned, w.scores);
        multiply_rows(job, &block, grad_out, h.out_ld, h.v, h.ld, w.turned_v, w.grads);
        job->kernels->softmax_backward(&block, w.scores, w.grads, inner);
        multiply_transposed(job, &block, w.scores, grad_out, h.out_ld, beta, grad_v, h.ld,
                            w.turned);
        multiply_transposed(job, &block, w.grads, q, h.ld, beta, grad_k, h.ld, w.turned);
        multiply_scores(job, &block, w.grads, k, h.ld, grad_q + first * h.ld, h.ld);
        beta = 1;
    }
}

/* The heads that share a head of keys, in their order. */
static void backward_key_head(void *argument, int64_t task, int thread)
{
    attention_job *job = argument;
    workspace w = thread_workspace(job, thread);
    int64_t shared = job->heads / job->key_heads;
    head h = find_head(job, task * shared);
    if (!job->small)
        pack_head(job, &h, w);
    for (int64_t i = 0; i < shared; i++)
        backward_head(job, task * shared + i, w, i > 0 ? 1 : 0);
}

/* Runs the tasks with a workspace of `matrices` score blocks for each thread. */
static sl_status run_heads(sl_device *device, attention_job *job, int64_t tasks, int matrices,
                           sli_pool_task function)
{
    atomic_init(&job->code, 0);
    job->thread_floats = matrices * block_floats(job, BLOCK);
    job->thread_floats += job->small ? job->head_width * job->positions
                                     : 2 * packed_rows_floats(job) + packed_steps_floats(job);
    size_t bytes = (size_t)(job->thread_floats * device->threads) * sizeof(float);
    void *memory;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &memory));
    job->workspace = memory;
    sli_pool_run(sli_cpu(device)->pool, tasks, function, job);
    sli_device_release(device, SL_MEMORY_WORKSPACE, memory, bytes);
    sli_sgemm_shape shape = {.m = job->positions, .n = job->positions, .k = job->head_width};
    return sli_sgemm_error("attention", &shape, atomic_load(&job->code));
}

static void choose_products(attention_job *job)
{
    job->small = job->positions <= BLOCK && job->positions >= SLI_SMALL_LEAST &&
                 job->head_width >= SLI_SMALL_LEAST;
    job->steps = sli_ranges_of(job->positions, packed_columns(KEYS));
}

sl_status sli_cpu_attention(sl_device *device, const sli_attention *arguments)
{
    attention_job job = {.kernels = sli_cpu(device)->kernels,
                         .samples = arguments->samples,
                         .positions = arguments->positions,
                         .heads = arguments->heads,
                         .key_heads = arguments->key_heads,
                         .head_width = arguments->head_width,
                         .first_query = arguments->first_query,
                         .room = arguments->room ? arguments->room : arguments->positions,
                         .causal = arguments->causal,
                         .qkv = arguments->qkv,
                         .dropout = &arguments->dropout,
                         .to = arguments->out,
                         .log_sum_exp = arguments->log_sum_exp};
    choose_products(&job);
    return job.small ? run_heads(device, &job, job.samples * job.heads, 1, forward_head)
                     : run_blocks(device, &job, arguments->samples);
}

sl_status sli_cpu_attention_backward(sl_device *device, const sli_attention_backward *arguments)
{
    attention_job job = {.kernels = sli_cpu(device)->kernels,
                         .samples = arguments->samples,
                         .positions = arguments->positions,
                         .heads = arguments->heads,
                         .key_heads = arguments->key_heads,
                         .head_width = arguments->head_width,
                         .room = arguments->positions,
                         .causal = arguments->causal,
                         .qkv = arguments->qkv,
                         .out = arguments->out,
                         .grad_out = arguments->grad_out,
                         .dropout = &arguments->dropout,
                         .to = arguments->grad_qkv,
                         /* Only read by backward. */
                         .log_sum_exp = (float *)arguments->log_sum_exp};
    choose_products(&job);
    return run_heads(device, &job, job.samples * job.key_heads, 2, backward_key_head);
}
