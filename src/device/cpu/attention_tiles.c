/* Attention of long rows: tiles of SLI_TILE queries by SLI_TILE keys, so that a thread's workspace
 * stays in its cache and does not grow with the rows. (Dao et al., "FlashAttention", 2022.)
 *
 * A tile of scores has keys as rows: S^T = K Q^T. Then queries and their gradients alone are
 * transposed, once for all tiles of keys, and the softmax is a matter of rows:
 *   forward     O += (P^T)^T V, after O is multiplied by what the largest scores have grown
 *   backward    dV += P^T dO,  dP^T = V dO^T,  dK += dS^T Q,  dQ += dS^T^T K
 * What a product reads many times is copied to dense rows, heads of any width to whole vectors. The
 * rows that come next are asked for meanwhile.
 *
 * Forward, a task is a tile of queries of all heads that share keys; it goes through the keys from
 * position 0 on. All sums of a query run over keys in this order, or over the head's width, and
 * nothing else has a part in them: so these kernels also serve where a query's bits may not depend
 * on others.
 *
 * Backward, a task is a cell: SPAN queries by SPAN keys, for all heads that share the keys, since
 * their gradients of k and v have one sum. Cells of one wave have no query and no key in common, so
 * any thread may run any; waves come one after the other, which gives each sum one order. With n
 * spans, wave w has the cells (key span j, query span (j + w) mod n); here n = 4, and the cells
 * that a causal mask leaves are in parentheses:
 *
 *     key span         0    1    2    3
 *     query span 0    (0)   3    2    1
 *                1    (1)  (0)   3    2
 *                2    (2)  (1)  (0)   3
 *                3    (3)  (2)  (1)  (0) */
#include "device/cpu/amx.h"
#include "device/cpu/cpu_attention.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { SPAN = 256 }; /* positions: four tiles */

static int64_t whole_vectors(int64_t count)
{
    return sli_divide_up(count, SLI_SMALL_LEAST) * SLI_SMALL_LEAST;
}

/* Rows [count, d] to [rows, width], with zeros behind. */
static void copy_rows(const float *from, int64_t ld, int64_t count, int64_t d, int64_t rows,
                      int64_t width, float *to)
{
    assert(to);
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * width, from + i * ld, (size_t)d * sizeof *to);
    for (int64_t i = 0; i < count && d < width; i++)
        memset(to + i * width + d, 0, (size_t)(width - d) * sizeof *to);
    memset(to + count * width, 0, (size_t)((rows - count) * width) * sizeof *to);
}

static void copy_values(const float *from, int64_t count, int64_t all, float *to)
{
    memcpy(to, from, (size_t)count * sizeof *to);
    memset(to + count, 0, (size_t)(all - count) * sizeof *to);
}

enum { PREFETCH_LISTS = 3 };

/* Rows that will soon be read or written. They lie far apart, so that a processor does not foresee
 * them; asked for a few at a time between products, they come while it multiplies. */
typedef struct prefetch_rows {
    const float *next; /* where one is left */
    int64_t ld, width, left;
} prefetch_rows;

/* Asks for the next of the lists, in their order. */
static void prefetch_some(prefetch_rows lists[PREFETCH_LISTS])
{
    enum { AT_ONCE = 8, LINE_FLOATS = 16 };
    prefetch_rows *rows = lists, *last = lists + PREFETCH_LISTS - 1;
    for (int i = 0; i < AT_ONCE; i++) {
        while (rows < last && rows->left == 0)
            rows++;
        if (rows->left == 0)
            return;
        for (int64_t column = 0; column < rows->width; column += LINE_FLOATS)
            __builtin_prefetch(rows->next + column);
        if (--rows->left > 0)
            rows->next += rows->ld;
    }
}

/* A thread's workspace. */
typedef struct workspace {
    float *queries;             /* [SLI_TILE, width] */
    float *queries_transposed;  /* [head_width, SLI_TILE]; forward: of each head */
    float *scores;              /* [SLI_TILE, SLI_TILE], as all tiles */
    float *drawn, *multipliers; /* tiles, with dropout */
    float *keys, *values;       /* [SLI_TILE, width]; backward: [SPAN, width] */

    /* Forward. */
    float *largest, *sums; /* [SLI_TILE] of each head */
    float *factors;        /* [SLI_TILE] */
    float *out;            /* [SLI_TILE, width] of each head */

    /* Backward. */
    float *log_sum_exp;         /* [SLI_TILE] */
    float *out_dot_grad;        /* [SLI_TILE]: sums of out times its gradient */
    float *grad_out;            /* [SLI_TILE, width] */
    float *grad_out_transposed; /* [head_width, SLI_TILE] */
    float *grad_scores;         /* a tile */
    float *grad_q;              /* [SLI_TILE, width] */
    float *grad_k, *grad_v;     /* [SPAN, width] */
} workspace;

typedef struct layout {
    float *base; /* NULL: only counts */
    int64_t floats;
} layout;

static float *place(layout *room, int64_t floats)
{
    float *own = room->base ? room->base + room->floats : NULL;
    room->floats += floats;
    return own;
}

/* Returns how many floats it has. */
static int64_t lay_out(const sli_attention_job *job, bool is_backward, float *base, workspace *w)
{
    layout room = {base, 0};
    int64_t tile = SLI_TILE * SLI_TILE, rows = SLI_TILE * job->width;
    int64_t heads = is_backward ? 1 : job->heads / job->key_heads;
    memset(w, 0, sizeof *w);
    w->queries = place(&room, rows);
    w->queries_transposed = place(&room, heads * rows);
    w->scores = place(&room, tile);
    if (job->dropout->p > 0) {
        w->drawn = place(&room, tile);
        w->multipliers = place(&room, tile);
    }
    if (!is_backward) {
        w->largest = place(&room, heads * SLI_TILE);
        w->sums = place(&room, heads * SLI_TILE);
        w->factors = place(&room, SLI_TILE);
        w->keys = place(&room, rows);
        w->values = place(&room, rows);
        w->out = place(&room, heads * rows);
        return room.floats;
    }
    w->log_sum_exp = place(&room, SLI_TILE);
    w->out_dot_grad = place(&room, SLI_TILE);
    w->keys = place(&room, SPAN * job->width);
    w->values = place(&room, SPAN * job->width);
    w->grad_k = place(&room, SPAN * job->width);
    w->grad_v = place(&room, SPAN * job->width);
    w->grad_out = place(&room, rows);
    w->grad_out_transposed = place(&room, rows);
    w->grad_scores = place(&room, tile);
    w->grad_q = place(&room, rows);
    return room.floats;
}

/* ---- Tiles ------------------------------------------------------------------------------ */

/* Some queries of a sample's head. */
typedef struct queries {
    sli_attention_head head;
    int64_t first, count; /* positions */
    int64_t lanes;
} queries;

static queries queries_from(const sli_attention_job *job, int64_t head, int64_t first, int64_t end)
{
    queries q = {.head = sli_find_head(job, head), .first = first};
    q.count = sli_smaller(SLI_TILE, end - first);
    q.lanes = whole_vectors(q.count);
    return q;
}

/* Where positions end that one of the queries sees. */
static int64_t end_of_keys(const sli_attention_job *job, const queries *q)
{
    return job->causal ? q->first + q->count : job->positions;
}

static sli_score_tile score_tile(const sli_attention_job *job, const queries *q, int64_t first_key,
                                 int64_t keys, const workspace *w)
{
    sli_score_tile tile = {.keys = keys,
                           .lanes = q->lanes,
                           .distance = job->causal ? q->first - first_key : keys,
                           .scale = 1.0f / sqrtf((float)job->head_width)};
    if (w->drawn) {
        job->kernels->multipliers(job->dropout, job->room, q->head.dropout_row + q->first, q->count,
                                  first_key, keys, w->drawn);
        memset(w->drawn + q->count * keys, 0,
               (size_t)((q->lanes - q->count) * keys) * sizeof(float));
        job->kernels->transpose(q->lanes, keys, w->drawn, keys, w->multipliers);
        tile.multipliers = w->multipliers;
    }
    return tile;
}

/* The same triangle for tiles on the diagonal; others have all. */
static sli_triangle triangle_of(const sli_attention_job *job, const sli_score_tile *tile,
                                sli_triangle diagonal)
{
    return job->causal && tile->distance == 0 ? diagonal : SLI_WHOLE;
}

static void multiply(const sli_attention_job *job, const sli_small_product *product)
{
    if (job->uses_amx)
        sli_amx_small_product(product);
    else
        job->kernels->small_product(product);
}

/* scores [keys, lanes] = rows [keys, width] times transposed [d, lanes]. */
static void multiply_keys(const sli_attention_job *job, const sli_score_tile *tile,
                          const float *rows, const float *transposed, float *scores)
{
    multiply(job, &(sli_small_product){.m = tile->keys,
                                       .n = tile->lanes,
                                       .k = job->head_width,
                                       .a = rows,
                                       .a_row = job->width,
                                       .a_step = 1,
                                       .b = transposed,
                                       .ldb = tile->lanes,
                                       .c = scores,
                                       .ldc = tile->lanes,
                                       .triangle = triangle_of(job, tile, SLI_C_UPPER)});
}

/* to [queries, width] = or += the transpose of scores [keys, lanes] times rows [keys, width]. */
static void sum_over_keys(const sli_attention_job *job, const sli_score_tile *tile,
                          int64_t query_count, const float *scores, const float *rows, bool adds,
                          float *to)
{
    multiply(job, &(sli_small_product){.m = query_count,
                                       .n = job->width,
                                       .k = tile->keys,
                                       .a = scores,
                                       .a_row = 1,
                                       .a_step = tile->lanes,
                                       .b = rows,
                                       .ldb = job->width,
                                       .c = to,
                                       .ldc = job->width,
                                       .triangle = triangle_of(job, tile, SLI_A_LOWER),
                                       .adds = adds});
}

/* to [keys, width] += scores [keys, lanes] times rows [queries, width]. */
static void sum_over_queries(const sli_attention_job *job, const sli_score_tile *tile,
                             int64_t query_count, const float *scores, const float *rows, float *to)
{
    multiply(job, &(sli_small_product){.m = tile->keys,
                                       .n = job->width,
                                       .k = query_count,
                                       .a = scores,
                                       .a_row = tile->lanes,
                                       .a_step = 1,
                                       .b = rows,
                                       .ldb = job->width,
                                       .c = to,
                                       .ldc = job->width,
                                       .triangle = triangle_of(job, tile, SLI_A_UPPER),
                                       .adds = true});
}

/* ---- Forward ---------------------------------------------------------------------------- */

/* The queries of a head that shares keys with others: those that are its own in a workspace. */
static workspace workspace_of_head(const sli_attention_job *job, workspace w, int64_t index)
{
    w.queries_transposed += index * SLI_TILE * job->width;
    w.out += index * SLI_TILE * job->width;
    w.largest += index * SLI_TILE;
    w.sums += index * SLI_TILE;
    return w;
}

static void load_queries(const sli_attention_job *job, const queries *q, const workspace *w)
{
    const sli_attention_head *h = &q->head;
    copy_rows(h->q + (q->first - job->first_query) * h->ld, h->ld, q->count, job->head_width,
              q->lanes, job->width, w->queries);
    job->kernels->transpose(q->lanes, job->head_width, w->queries, job->width,
                            w->queries_transposed);
    for (int64_t i = 0; i < q->lanes; i++) {
        w->largest[i] = -INFINITY;
        w->sums[i] = 0;
    }
}

static void forward_tile(const sli_attention_job *job, const queries *q, const workspace *w,
                         int64_t first_key, int64_t keys, prefetch_rows lists[PREFETCH_LISTS])
{
    sli_score_tile tile = score_tile(job, q, first_key, keys, w);
    prefetch_some(lists);
    multiply_keys(job, &tile, w->keys, w->queries_transposed, w->scores);
    prefetch_some(lists);
    prefetch_some(lists);
    job->kernels->softmax_tile(&tile, w->scores, w->largest, w->sums, w->factors);
    if (first_key > 0)
        job->kernels->scale_rows(q->count, job->width, w->out, w->factors);
    prefetch_some(lists);
    prefetch_some(lists);
    sum_over_keys(job, &tile, q->count, w->scores, w->values, first_key > 0, w->out);
}

/* w->out, by the sums. */
static void store_out(const sli_attention_job *job, const queries *q, const workspace *w)
{
    int64_t later = q->first - job->first_query;
    float scale = 1.0f / sqrtf((float)job->head_width);
    for (int64_t i = 0; i < q->count; i++)
        w->factors[i] = 1.0f / w->sums[i];
    job->kernels->scale_rows(q->count, job->width, w->out, w->factors);
    for (int64_t i = 0; i < q->count; i++)
        memcpy(job->to + q->head.out_at + (later + i) * q->head.out_ld, w->out + i * job->width,
               (size_t)job->head_width * sizeof(float));
    for (int64_t i = 0; i < q->count && job->log_sum_exp; i++)
        job->log_sum_exp[q->head.lse_at + later + i] = w->largest[i] + logf(w->sums[i]) / scale;
}

/* The last queries, which see most keys, come first. */
static void forward_queries(void *argument, int64_t task, int thread)
{
    const sli_attention_job *job = argument;
    int64_t groups = job->samples * job->key_heads, shared = job->heads / job->key_heads;
    int64_t tiles = sli_divide_up(job->positions - job->first_query, SLI_TILE);
    int64_t first = job->first_query + (tiles - 1 - task / groups) * SLI_TILE;
    queries q = queries_from(job, task % groups * shared, first, job->positions);
    sli_attention_head h = q.head;
    workspace all;
    lay_out(job, false, job->workspace + thread * job->thread_floats, &all);
    for (int64_t i = 0; i < shared; i++) {
        workspace w = workspace_of_head(job, all, i);
        q.head = sli_find_head(job, task % groups * shared + i);
        load_queries(job, &q, &w);
    }
    for (int64_t key = 0; key < end_of_keys(job, &q); key += SLI_TILE) {
        int64_t keys = sli_smaller(SLI_TILE, end_of_keys(job, &q) - key), at = key * h.kv_ld;
        copy_rows(h.k + at, h.kv_ld, keys, job->head_width, keys, job->width, all.keys);
        copy_rows(h.v + at, h.kv_ld, keys, job->head_width, keys, job->width, all.values);
        int64_t left = sli_smaller(SLI_TILE, end_of_keys(job, &q) - key - keys);
        int64_t later = left > 0 ? at + keys * h.kv_ld : 0;
        prefetch_rows lists[PREFETCH_LISTS] = {{h.k + later, h.kv_ld, job->head_width, left},
                                               {h.v + later, h.kv_ld, job->head_width, left}};
        for (int64_t i = 0; i < shared; i++) {
            workspace w = workspace_of_head(job, all, i);
            q.head = sli_find_head(job, task % groups * shared + i);
            forward_tile(job, &q, &w, key, keys, lists);
        }
    }
    for (int64_t i = 0; i < shared; i++) {
        workspace w = workspace_of_head(job, all, i);
        q.head = sli_find_head(job, task % groups * shared + i);
        store_out(job, &q, &w);
    }
}

sl_status sli_attend_in_tiles(sli_attention_job *job)
{
    workspace none;
    job->width = whole_vectors(job->head_width);
    job->thread_floats = lay_out(job, false, NULL, &none);
    int64_t tiles = sli_divide_up(job->positions - job->first_query, SLI_TILE);
    SL_TRY(sli_attention_open_workspace(job));
    sli_pool_run(sli_cpu(job->device)->pool, tiles * job->samples * job->key_heads, forward_queries,
                 job);
    sli_attention_close_workspace(job);
    return SL_OK;
}

/* ---- Backward --------------------------------------------------------------------------- */

/* A span's keys in the cell. */
typedef struct key_span {
    int64_t first, end;
} key_span;

/* Whether earlier waves, or whoever cleared it, have written the gradient. */
static bool gradient_is_there(const sli_attention_job *job)
{
    return job->wave > 0 || job->adds || job->first_query > 0;
}

/* Adds rows [count, width] to the gradient's at `to`, or stores them there. */
static void add_rows(const sli_attention_job *job, const float *from, int64_t count, float *to,
                     int64_t ld)
{
    int64_t d = job->head_width;
    for (int64_t i = 0; i < count; i++)
        if (gradient_is_there(job))
            job->kernels->add(d, to + i * ld, from + i * job->width);
        else
            memcpy(to + i * ld, from + i * job->width, (size_t)d * sizeof *to);
}

static void backward_tile(const sli_attention_job *job, const queries *q, const workspace *w,
                          const key_span *span, int64_t first_key,
                          prefetch_rows lists[PREFETCH_LISTS])
{
    int64_t end = sli_smaller(span->end, end_of_keys(job, q));
    int64_t keys = sli_smaller(SLI_TILE, end - first_key);
    int64_t at = (first_key - span->first) * job->width;
    sli_score_tile tile = score_tile(job, q, first_key, keys, w);
    prefetch_some(lists);
    multiply_keys(job, &tile, w->keys + at, w->queries_transposed, w->scores);
    prefetch_some(lists);
    multiply_keys(job, &tile, w->values + at, w->grad_out_transposed, w->grad_scores);
    prefetch_some(lists);
    job->kernels->softmax_tile_backward(&tile, w->scores, w->grad_scores, w->log_sum_exp,
                                        w->out_dot_grad);
    prefetch_some(lists);
    sum_over_queries(job, &tile, q->count, w->scores, w->grad_out, w->grad_v + at);
    prefetch_some(lists);
    sum_over_queries(job, &tile, q->count, w->grad_scores, w->queries, w->grad_k + at);
    prefetch_some(lists);
    sum_over_keys(job, &tile, q->count, w->grad_scores, w->keys + at, first_key > span->first,
                  w->grad_q);
}

/* The first wave, whose cells have all queries, leaves the sums of out times its gradient to the
 * others. */
static void load_out_dot_grad(const sli_attention_job *job, const queries *q, const workspace *w)
{
    const sli_attention_head *h = &q->head;
    int64_t later = q->first - job->first_query, out_at = h->out_at + later * h->out_ld;
    float *out_dot_grad = job->out_dot_grad + h->lse_at + later;
    if (job->wave == 0)
        job->kernels->row_products(q->count, job->head_width, h->out_ld, job->out + out_at,
                                   job->grad_out + out_at, out_dot_grad);
    copy_values(out_dot_grad, q->count, q->lanes, w->out_dot_grad);
}

/* `next` are the queries that follow. */
static void backward_queries(const sli_attention_job *job, const queries *q, const workspace *w,
                             const key_span *span, const queries *next)
{
    const sli_attention_head *h = &q->head;
    int64_t d = job->head_width, later = q->first - job->first_query;
    float *grad_q = job->to + h->q_at + q->first * h->ld;
    copy_rows(h->q + later * h->ld, h->ld, q->count, d, q->lanes, job->width, w->queries);
    copy_rows(job->grad_out + h->out_at + later * h->out_ld, h->out_ld, q->count, d, q->lanes,
              job->width, w->grad_out);
    job->kernels->transpose(q->lanes, d, w->queries, job->width, w->queries_transposed);
    job->kernels->transpose(q->lanes, d, w->grad_out, job->width, w->grad_out_transposed);
    copy_values(job->log_sum_exp + h->lse_at + later, q->count, q->lanes, w->log_sum_exp);
    load_out_dot_grad(job, q, w);
    const sli_attention_head *n = &next->head;
    int64_t next_later = next->first - job->first_query;
    prefetch_rows lists[PREFETCH_LISTS] = {{grad_q, h->ld, d, q->count},
                                           {n->q + next_later * n->ld, n->ld, d, next->count},
                                           {job->grad_out + n->out_at + next_later * n->out_ld,
                                            n->out_ld, d, next->count}};
    for (int64_t key = span->first; key < sli_smaller(span->end, end_of_keys(job, q));
         key += SLI_TILE)
        backward_tile(job, q, w, span, key, lists);
    add_rows(job, w->grad_q, q->count, grad_q, h->ld);
}

/* Tile `index` of the queries from `first` to `end` - 1, of one head after the other. */
static queries tile_of_cell(const sli_attention_job *job, int64_t first_head, int64_t index,
                            int64_t first, int64_t end)
{
    int64_t tiles = sli_divide_up(end - first, SLI_TILE);
    return queries_from(job, first_head + index / tiles, first + index % tiles * SLI_TILE, end);
}

static void backward_cell(void *argument, int64_t task, int thread)
{
    const sli_attention_job *job = argument;
    int64_t spans = sli_divide_up(job->positions, SPAN), shared = job->heads / job->key_heads;
    int64_t group = task / spans, column = task % spans, row = (column + job->wave) % spans;
    key_span span = {column * SPAN, sli_smaller((column + 1) * SPAN, job->positions)};
    int64_t first = job->first_query + row * SPAN;
    int64_t end = sli_smaller(first + SPAN, job->positions);
    if (first >= end || (job->causal && span.first >= end))
        return;
    workspace w;
    lay_out(job, true, job->workspace + thread * job->thread_floats, &w);
    sli_attention_head h = sli_find_head(job, group * shared);
    int64_t keys = span.end - span.first, at = span.first * h.ld;
    copy_rows(h.k + at, h.ld, keys, job->head_width, keys, job->width, w.keys);
    copy_rows(h.v + at, h.ld, keys, job->head_width, keys, job->width, w.values);
    memset(w.grad_k, 0, (size_t)(keys * job->width) * sizeof *w.grad_k);
    memset(w.grad_v, 0, (size_t)(keys * job->width) * sizeof *w.grad_v);
    int64_t tiles = sli_divide_up(end - first, SLI_TILE);
    for (int64_t i = 0; i < shared * tiles; i++) {
        queries q = tile_of_cell(job, group * shared, i, first, end), next = q;
        if (i + 1 < shared * tiles)
            next = tile_of_cell(job, group * shared, i + 1, first, end);
        if (!job->causal || end_of_keys(job, &q) > span.first)
            backward_queries(job, &q, &w, &span, &next);
    }
    add_rows(job, w.grad_k, keys, job->to + h.k_at + at, h.ld);
    add_rows(job, w.grad_v, keys, job->to + h.v_at + at, h.ld);
}

/* Where the first wave does not reach all rows: a position's gradients of its queries, and of keys
 * and values that are not added to. */
static void clear_position(void *argument, int64_t task, int thread)
{
    const sli_attention_job *job = argument;
    (void)thread;
    int64_t sample = task / job->positions, position = task % job->positions;
    int64_t d = job->head_width, queries_end = job->heads * d;
    int64_t all = queries_end + 2 * job->key_heads * d;
    int64_t first = position < job->first_query ? queries_end : 0;
    int64_t end = job->adds ? queries_end : all;
    float *row = job->to + (sample * job->room + position) * all;
    if (first < end)
        memset(row + first, 0, (size_t)(end - first) * sizeof *row);
}

sl_status sli_attend_in_tiles_backward(sli_attention_job *job)
{
    workspace none;
    sli_pool *pool = sli_cpu(job->device)->pool;
    int64_t spans = sli_divide_up(job->positions, SPAN);
    job->width = whole_vectors(job->head_width);
    job->thread_floats = lay_out(job, true, NULL, &none);
    job->out_dot_grad_floats = job->samples * job->heads * (job->positions - job->first_query);
    SL_TRY(sli_attention_open_workspace(job));
    if (gradient_is_there(job))
        sli_pool_run(pool, job->samples * job->positions, clear_position, job);
    for (job->wave = 0; job->wave < spans; job->wave++)
        sli_pool_run(pool, job->samples * job->key_heads * spans, backward_cell, job);
    sli_attention_close_workspace(job);
    return SL_OK;
}
