/* One panel of a product: what it reads, by oneDNN or AMX, and the epilogue. */
#include "device/cpu/cpu_gemm.h"

#include "device/cpu/amx.h"

#include <assert.h>
#include <string.h>

int64_t sli_gemm_inner_count(const sli_gemm_job *job, int64_t first)
{
    int64_t left = job->gemm->k - first, step = sli_sgemm_step(job->gemm->transpose_a);
    bool copies = job->widens || job->copies_a || job->copies_b;
    return copies && !job->use_matmul && left >= 2 * step ? step : left;
}

int64_t sli_gemm_copy_distance(int64_t columns)
{
    return columns % 512 == 0 ? columns + 16 : columns;
}

static void store_error(sli_gemm_job *job, int code)
{
    int none = 0;
    if (code)
        atomic_compare_exchange_strong(&job->code, &none, code);
}

static bool has_epilogue(const sli_gemm *g)
{
    return g->bias || g->preactivation || g->activation || g->dropout.p > 0;
}

/* `height` rows and `columns` of a or b, with the distance of rows from and to *ld; rows beyond
 * `rows` are zeros. Where they are widened or copied, they go to *room, which moves on, `distance`
 * apart. */
static const float *panel_of(const sli_gemm_job *job, const void *matrix, int64_t *ld,
                             sli_range rows, sli_range columns, sli_height height, int64_t distance,
                             float **room)
{
    int64_t first = rows.first * *ld + columns.first;
    if (!job->widens && !height.is_copied)
        return (const float *)matrix + first;
    float *to = *room;
    assert(to);
    for (int64_t row = 0; row < rows.count; row++) {
        int64_t begin = first + row * *ld;
        sli_convert convert = {.from_bf16 = true,
                               .from = (const uint16_t *)matrix + begin,
                               .to = to + row * distance};
        if (job->widens)
            job->cpu->kernels->convert(&convert, 0, columns.count);
        else
            memcpy(convert.to, (const float *)matrix + begin, (size_t)columns.count * sizeof *to);
    }
    memset(to + rows.count * distance, 0,
           (size_t)((height.rows - rows.count) * distance) * sizeof *to);
    *room += sli_aligned_floats(height.rows * distance);
    *ld = distance;
    return to;
}

/* A panel with one row for each term of a sum. */
static const float *panel_of_terms(const sli_gemm_job *job, const void *matrix, int64_t *ld,
                                   sli_range inner, sli_range columns, bool copies, float **room)
{
    return panel_of(job, matrix, ld, inner, columns, (sli_height){inner.count, copies},
                    sli_gemm_copy_distance(columns.count), room);
}

static const float *panel_of_a(const sli_gemm_job *job, sli_range rows, sli_range inner,
                               sli_height height, int64_t *ld, float **room)
{
    const sli_gemm *g = job->gemm;
    *ld = g->lda;
    return g->transpose_a ? panel_of_terms(job, g->a, ld, inner, rows, job->copies_a, room)
                          : panel_of(job, g->a, ld, rows, inner, height, inner.count, room);
}

static const float *panel_of_b(const sli_gemm_job *job, sli_range inner, sli_range columns,
                               int64_t *ld, float **room)
{
    const sli_gemm *g = job->gemm;
    *ld = g->ldb;
    return g->transpose_b ? panel_of(job, g->b, ld, columns, inner,
                                     (sli_height){columns.count, false}, inner.count, room)
                          : panel_of_terms(job, g->b, ld, inner, columns, job->copies_b, room);
}

/* One panel of c. */
typedef struct c_panel {
    sli_range rows, columns;
    sli_height height;
    const sli_matmul_primitive *size;
    float *c; /* in c, or a copied one's own memory */
    int64_t ldc;
    float *room;  /* for copies of a and b */
    float *apart; /* for a panel of c */
    float *scratch;
} c_panel;

/* Some of c's rows in the panel, from where they will be added to, rows `ld` apart. */
static void copy_c(const sli_gemm *g, const c_panel *p, int64_t first, int64_t rows, int64_t ld)
{
    const float *c = g->c + (p->rows.first + first) * g->ldc + p->columns.first;
    for (int64_t i = 0; i < rows; i++)
        memcpy(p->apart + i * ld, c + i * g->ldc, (size_t)p->columns.count * sizeof *c);
}

/* A panel that is made apart begins with what it adds to, where that is anything. */
static void make_apart(const sli_gemm_job *job, c_panel *p)
{
    const sli_gemm *g = job->gemm;
    size_t bytes = (size_t)p->columns.count * sizeof(float);
    if (p->height.is_copied)
        memset(p->apart, 0, (size_t)p->height.rows * bytes);
    if (g->beta != 0)
        copy_c(g, p, 0, p->rows.count, p->columns.count);
    p->c = p->apart;
    p->ldc = p->columns.count;
}

static c_panel find_panel(const sli_gemm_job *job, int64_t index, int thread)
{
    const sli_gemm *g = job->gemm;
    int64_t row = index % job->rows.count, column = index / job->rows.count;
    bool last_row = row == job->rows.count - 1, last_column = column == job->columns.count - 1;
    c_panel p = {.rows = sli_range_at(&job->rows, row),
                 .columns = sli_range_at(&job->columns, column),
                 .height = job->heights[last_row][last_column],
                 .size = job->sizes[last_row][last_column],
                 .ldc = g->ldc};
    p.c = g->c + p.rows.first * g->ldc + p.columns.first;
    if (!job->workspace)
        return p;
    p.room = job->workspace + thread * job->thread_floats;
    p.apart = p.room + job->copy_floats;
    p.scratch = p.apart + job->panel_floats;
    if (p.height.is_copied || job->is_apart)
        make_apart(job, &p);
    return p;
}

static void finish_panel(const sli_gemm_job *job, const c_panel *p)
{
    if (has_epilogue(job->gemm) || p->c == p->apart)
        job->cpu->kernels->epilogue(job->gemm, p->c, p->ldc, p->rows.first, p->rows.count,
                                    p->columns.first, p->columns.count);
}

void sli_sgemm_panel(void *argument, int64_t index, int thread)
{
    sli_gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    c_panel p = find_panel(job, index, thread);
    float beta = g->beta;
    sli_range inner = {0, 0};
    do {
        inner = (sli_range){inner.first + inner.count,
                            sli_gemm_inner_count(job, inner.first + inner.count)};
        sli_sgemm_shape shape = {
            g->transpose_a, g->transpose_b, p.height.rows, p.columns.count, inner.count, 0, 0,
            p.ldc};
        float *room = p.room;
        const float *a = panel_of_a(job, p.rows, inner, p.height, &shape.lda, &room);
        const float *b = panel_of_b(job, inner, p.columns, &shape.ldb, &room);
        store_error(job, sli_sgemm(&shape, a, b, beta, p.c));
        beta = 1;
    } while (inner.first + inner.count < g->k);
    finish_panel(job, &p);
}

void sli_matmul_panel(void *argument, int64_t index, int thread)
{
    sli_gemm_job *job = argument;
    c_panel p = find_panel(job, index, thread);
    sli_range inner = {0, job->gemm->k};
    int64_t ld;
    const float *a = panel_of_a(job, p.rows, inner, p.height, &ld, &p.room);
    const float *b = panel_of_b(job, inner, p.columns, &ld, &p.room);
    store_error(job, sli_matmul_run(job->cpu->matmul, p.size, thread, a, b, p.c, p.scratch));
    finish_panel(job, &p);
}

/* The panel's rows of a bf16 matrix a, in `room` with rows of zeros behind them. */
static const uint16_t *copy_bf16(const sli_gemm *g, const c_panel *p)
{
    assert(p->room);
    uint16_t *to = (uint16_t *)(void *)p->room;
    for (int64_t row = 0; row < p->rows.count; row++)
        memcpy(to + row * g->k, (const uint16_t *)g->a + (p->rows.first + row) * g->lda,
               (size_t)g->k * sizeof *to);
    memset(to + p->rows.count * g->k, 0,
           (size_t)((p->height.rows - p->rows.count) * g->k) * sizeof *to);
    return to;
}

void sli_bf16_panel(void *argument, int64_t index, int thread)
{
    sli_gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    c_panel p = find_panel(job, index, thread);
    const uint16_t *a = p.height.is_copied
                            ? copy_bf16(g, &p)
                            : (const uint16_t *)g->a + p.rows.first * (g->transpose_a ? 1 : g->lda);
    const uint16_t *b = (const uint16_t *)g->b + p.columns.first * (g->transpose_b ? g->ldb : 1);
    store_error(job, sli_matmul_run(job->cpu->matmul, p.size, thread, a, b, p.c, p.scratch));
    finish_panel(job, &p);
}

/* Rows of a bf16 matrix from `row` on, and the terms from `term` on. */
static sli_amx_matrix rows_of(const void *matrix, bool has_term_rows, int64_t ld, int64_t row,
                              int64_t term)
{
    int64_t at = has_term_rows ? term * ld + row : row * ld + term;
    return (sli_amx_matrix){(const uint16_t *)matrix + at, true, has_term_rows, ld};
}

/* Adds the products of these terms, a strip of rows at a time; with the last ones the epilogue. */
static void add_terms(const sli_gemm_job *job, const c_panel *p, sli_range terms)
{
    const sli_gemm *g = job->gemm, sums_alone = {.n = g->n, .c = g->c, .ldc = g->ldc};
    const sli_gemm *epilogue = terms.first + terms.count < g->k ? &sums_alone : g;
    int64_t ld = sli_aligned_floats(p->columns.count);
    sli_amx_product product = {
        .n = p->columns.count,
        .k = terms.count,
        .a = rows_of(g->a, g->transpose_a, g->lda, p->rows.first, terms.first),
        .b = rows_of(g->b, !g->transpose_b, g->ldb, p->columns.first, terms.first),
        .adds = g->beta != 0 || terms.first > 0,
        .room = (uint16_t *)(void *)p->room,
    };
    sli_amx_begin(&product);
    for (int64_t row = 0; row < p->rows.count; row += SLI_AMX_STRIP) {
        int64_t rows = sli_smaller(p->rows.count - row, SLI_AMX_STRIP);
        if (product.adds)
            copy_c(g, p, row, rows, ld);
        sli_amx_multiply(&product, row, rows, p->apart, ld);
        job->cpu->kernels->epilogue(epilogue, p->apart, ld, p->rows.first + row, rows,
                                    p->columns.first, p->columns.count);
    }
    sli_amx_end();
}

void sli_amx_panel(void *argument, int64_t index, int thread)
{
    sli_gemm_job *job = argument;
    c_panel p = find_panel(job, index, thread);
    for (int64_t i = 0; i < job->terms.count; i++)
        add_terms(job, &p, sli_range_at(&job->terms, i));
}
