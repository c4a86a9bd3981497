/* Matrix products: oneDNN on panels of c, one thread each, and the epilogue while the panel is in
 * the cache.
 *
 * How c is cut follows from its shape. Panels should be large, so that what oneDNN rearranges for
 * one of them pays, and many and even, so that any number of threads ends together. What pays
 * depends on what must be rearranged:
 *   a b      little: rows may be few, but not below 56
 *   a^T b    both: many rows and columns. The gradient of a weight, whose rows are many
 *   a b^T    b. Forward. Not with dnnl_sgemm, if all is dense: see onednn.h. The primitive writes
 *            to dense memory, from where the epilogue moves the panel into c, and narrow panels
 *            suit it.
 *
 * Products of bf16 are primitives' as well, of any layout and straight into c. Where oneDNN has
 * none that uses the processor's instructions, the product is f32's: each thread widens what its
 * panel of c needs of a and b, a step of the inner dimension at a time where dnnl_sgemm multiplies.
 * The products of two bf16 values are exact in f32, so only the order of the sums differs. */
#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <stdatomic.h>

/* The size of panels, unless that makes fewer than `fewest`; then down to the least size. */
typedef struct panel_rule {
    int64_t rows, columns;
    int64_t least_rows, least_columns;
    int64_t fewest;
} panel_rule;

static const panel_rule plain_rule = {88, 528, 56, 192, 4};            /* a b */
static const panel_rule transposed_a_rule = {512, 528, 48, 192, 4};    /* a^T b, a^T b^T */
static const panel_rule transposed_b_rule = {352, 528, 104, 192, 4};   /* a b^T, dnnl_sgemm */
static const panel_rule matmul_rule = {352, 192, 88, 48, 16};          /* a b^T, the primitive */
static const panel_rule bf16_rule = {352, 1024, 88, 96, 4};            /* bf16: a b and a b^T */
static const panel_rule bf16_transposed_rule = {512, 1024, 64, 96, 4}; /* a^T b, a^T b^T */

enum { ROW_GRAIN = 8, COLUMN_GRAIN = 16, MATMUL_LEAST_ROWS = 16 };
static const int64_t least_work = 1 << 20; /* multiply-adds that are worth another panel */
/* Inner columns widened at a time: as many as dnnl_sgemm sums before it adds to c where it has
 * AVX-512, so that it then gives the bits of the f32 product. */
enum { WIDE_STEP = 384 };

typedef struct gemm_job {
    sli_cpu_device *cpu;
    const sli_gemm *gemm;
    bool widens; /* a and b are bf16 in a product of f32 */
    sli_ranges rows, columns;
    /* The primitives of panels [is in the last rows][is in the last columns]; else dnnl_sgemm. */
    bool use_matmul;
    const sli_matmul_primitive *sizes[2][2];
    /* [threads, thread_floats]: panels of a and b that were widened, then a panel of c in f32, then
     * the primitive's scratch. */
    float *workspace;
    int64_t wide_floats, panel_floats, thread_floats;
    atomic_int code; /* oneDNN's first error */
} gemm_job;

/* ---- Choosing panels -------------------------------------------------------------------- */

/* Even ranges of about `most`. Where these are fewer than `wanted`: that many, or half as many, or
 * a quarter …, so that each has about `least` at least. (Three ranges would leave one of two
 * threads idle.) */
static sli_ranges divide_dimension(int64_t total, int64_t most, int64_t least, int64_t wanted,
                                   int64_t grain)
{
    sli_ranges ranges = sli_ranges_near(total, most, grain);
    int64_t count = wanted;
    if (ranges.count >= wanted)
        return ranges;
    while (count > 1 && total + least / 2 < count * least)
        count /= 2;
    return sli_ranges_near(total, sli_divide_up(total, count), grain);
}

/* For example a^T b with m = n = 200 and k = 350: 1 x 1 panel of 512 x 528 would do, but with 14 M
 * multiply-adds 4 are wanted. 4 or 2 ranges of columns would be narrower than 192, so there is 1;
 * 4 ranges of rows are not lower than 48. That makes 4 panels of 200 columns, three of 48 rows and
 * one of 56. */
static void choose_panels(gemm_job *job, const panel_rule *rule)
{
    const sli_gemm *g = job->gemm;
    int64_t fewest = rule->fewest;
    while (fewest > 1 && g->m * g->n * g->k < fewest * least_work)
        fewest /= 2;
    job->rows = sli_ranges_near(g->m, rule->rows, ROW_GRAIN);
    job->columns = divide_dimension(g->n, rule->columns, rule->least_columns,
                                    sli_divide_up(fewest, job->rows.count), COLUMN_GRAIN);
    job->rows = divide_dimension(g->m, rule->rows, rule->least_rows,
                                 sli_divide_up(fewest, job->columns.count), ROW_GRAIN);
}

static const panel_rule *sgemm_rule(const sli_gemm *g)
{
    if (g->transpose_a)
        return &transposed_a_rule;
    return g->transpose_b ? &transposed_b_rule : &plain_rule;
}

static bool suits_matmul(const sli_gemm *g)
{
    return !g->transpose_a && g->transpose_b && g->beta == 0 && g->lda == g->k && g->ldb == g->k &&
           g->m >= MATMUL_LEAST_ROWS && g->m * g->n * g->k >= least_work;
}

static bool uses_bf16(const gemm_job *job)
{
    return job->gemm->bf16 && !job->widens;
}

/* An f32 panel is dense and apart from c; a bf16 panel lies within c. */
static sli_matmul_shape panel_shape(const gemm_job *job, int64_t rows, int64_t columns)
{
    const sli_gemm *g = job->gemm;
    return (sli_matmul_shape){
        .bf16 = uses_bf16(job),
        .adds = g->beta != 0,
        .m = rows,
        .n = columns,
        .k = g->k,
        .a_row = g->transpose_a ? 1 : g->lda,
        .a_step = g->transpose_a ? g->lda : 1,
        .b_row = g->transpose_b ? 1 : g->ldb,
        .b_step = g->transpose_b ? g->ldb : 1,
        .ldc = uses_bf16(job) ? g->ldc : columns,
    };
}

static int64_t aligned_floats(int64_t count)
{
    return sli_divide_up(count, 16) * 16;
}

/* How many of the inner dimension are widened from `first` on. */
static int64_t wide_count(const gemm_job *job, int64_t first)
{
    int64_t left = job->gemm->k - first;
    bool cuts = job->widens && !job->use_matmul && left >= 2 * WIDE_STEP;
    return cuts ? WIDE_STEP : left;
}

/* The last range has another size than the others. */
static int64_t longest(const sli_ranges *ranges)
{
    return sli_larger(sli_range_at(ranges, 0).count, sli_range_at(ranges, ranges->count - 1).count);
}

static void set_thread_floats(gemm_job *job, int64_t scratch)
{
    int64_t most = job->use_matmul ? job->gemm->k : sli_smaller(job->gemm->k, 2 * WIDE_STEP - 1);
    if (job->widens)
        job->wide_floats = aligned_floats(longest(&job->rows) * most) +
                           aligned_floats(longest(&job->columns) * most);
    job->thread_floats = job->wide_floats + job->panel_floats + aligned_floats(scratch);
}

/* Finds the primitives for the panels' sizes; job->use_matmul tells whether there are any. */
static sl_status find_primitives(gemm_job *job)
{
    int64_t scratch = 0;
    job->use_matmul = true;
    for (int i = 0; i < 4 && job->use_matmul; i++) {
        sli_range rows = sli_range_at(&job->rows, i / 2 ? job->rows.count - 1 : 0);
        sli_range columns = sli_range_at(&job->columns, i % 2 ? job->columns.count - 1 : 0);
        const sli_matmul_primitive **size = &job->sizes[i / 2][i % 2];
        sli_matmul_shape shape = panel_shape(job, rows.count, columns.count);
        SL_TRY(sli_matmul_find(job->cpu->matmul, &shape, size));
        job->use_matmul = *size != NULL;
        if (*size)
            scratch = sli_larger(scratch, sli_matmul_scratch_floats(*size));
        if (!uses_bf16(job))
            job->panel_floats = sli_larger(job->panel_floats, rows.count * columns.count);
    }
    job->panel_floats = aligned_floats(job->panel_floats);
    set_thread_floats(job, scratch);
    return SL_OK;
}

/* ---- Panels ----------------------------------------------------------------------------- */

static void store_error(gemm_job *job, int code)
{
    int none = 0;
    if (code)
        atomic_compare_exchange_strong(&job->code, &none, code);
}

static bool has_epilogue(const sli_gemm *g)
{
    return g->bias || g->preactivation || g->activation || g->dropout.p > 0;
}

/* Rows and columns of a or b, with the distance of rows from and to *ld. Where they are widened,
 * they go to *room, which moves on. */
static const float *panel_of(const gemm_job *job, const void *matrix, int64_t *ld, sli_range rows,
                             sli_range columns, float **room)
{
    int64_t first = rows.first * *ld + columns.first;
    if (!job->widens)
        return (const float *)matrix + first;
    float *to = *room;
    for (int64_t row = 0; row < rows.count; row++) {
        sli_convert convert = {.from_bf16 = true,
                               .from = (const uint16_t *)matrix + first + row * *ld,
                               .to = to + row * columns.count};
        job->cpu->kernels->convert(&convert, 0, columns.count);
    }
    *room += aligned_floats(rows.count * columns.count);
    *ld = columns.count;
    return to;
}

static const float *panel_of_a(const gemm_job *job, sli_range rows, sli_range inner, int64_t *ld,
                               float **room)
{
    const sli_gemm *g = job->gemm;
    *ld = g->lda;
    return g->transpose_a ? panel_of(job, g->a, ld, inner, rows, room)
                          : panel_of(job, g->a, ld, rows, inner, room);
}

static const float *panel_of_b(const gemm_job *job, sli_range inner, sli_range columns, int64_t *ld,
                               float **room)
{
    const sli_gemm *g = job->gemm;
    *ld = g->ldb;
    return g->transpose_b ? panel_of(job, g->b, ld, columns, inner, room)
                          : panel_of(job, g->b, ld, inner, columns, room);
}

static float *workspace_of(const gemm_job *job, int thread)
{
    return job->workspace ? job->workspace + thread * job->thread_floats : NULL;
}

static void sgemm_panel(void *argument, int64_t panel, int thread)
{
    gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    sli_range rows = sli_range_at(&job->rows, panel % job->rows.count);
    sli_range columns = sli_range_at(&job->columns, panel / job->rows.count);
    float *c = g->c + rows.first * g->ldc + columns.first, beta = g->beta;
    sli_range inner = {0, 0};
    do {
        inner = (sli_range){inner.first + inner.count, wide_count(job, inner.first + inner.count)};
        sli_sgemm_shape shape = {
            g->transpose_a, g->transpose_b, rows.count, columns.count, inner.count, 0, 0, g->ldc};
        float *room = workspace_of(job, thread);
        const float *a = panel_of_a(job, rows, inner, &shape.lda, &room);
        const float *b = panel_of_b(job, inner, columns, &shape.ldb, &room);
        store_error(job, sli_sgemm(&shape, a, b, beta, c));
        beta = 1;
    } while (inner.first + inner.count < g->k);
    if (has_epilogue(g))
        job->cpu->kernels->epilogue(g, c, g->ldc, rows.first, rows.count, columns.first,
                                    columns.count);
}

/* The ranges of a panel, and the product that has its size. */
static const sli_matmul_primitive *find_panel(const gemm_job *job, int64_t panel, sli_range *rows,
                                              sli_range *columns)
{
    int64_t row = panel % job->rows.count, column = panel / job->rows.count;
    *rows = sli_range_at(&job->rows, row);
    *columns = sli_range_at(&job->columns, column);
    return job->sizes[row == job->rows.count - 1][column == job->columns.count - 1];
}

static void matmul_panel(void *argument, int64_t panel, int thread)
{
    gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    sli_range rows, columns;
    const sli_matmul_primitive *size = find_panel(job, panel, &rows, &columns);
    float *room = workspace_of(job, thread), *product = room + job->wide_floats;
    sli_range inner = {0, g->k};
    int64_t ld;
    const float *a = panel_of_a(job, rows, inner, &ld, &room);
    const float *b = panel_of_b(job, inner, columns, &ld, &room);
    store_error(job, sli_matmul_run(job->cpu->matmul, size, thread, a, b, product,
                                    product + job->panel_floats));
    job->cpu->kernels->epilogue(g, product, columns.count, rows.first, rows.count, columns.first,
                                columns.count);
}

static void bf16_panel(void *argument, int64_t panel, int thread)
{
    gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    sli_range rows, columns;
    const sli_matmul_primitive *size = find_panel(job, panel, &rows, &columns);
    const uint16_t *a = (const uint16_t *)g->a + rows.first * (g->transpose_a ? 1 : g->lda);
    const uint16_t *b = (const uint16_t *)g->b + columns.first * (g->transpose_b ? g->ldb : 1);
    float *c = g->c + rows.first * g->ldc + columns.first;
    float *scratch = workspace_of(job, thread);
    store_error(job, sli_matmul_run(job->cpu->matmul, size, thread, a, b, c, scratch));
    if (has_epilogue(g))
        job->cpu->kernels->epilogue(g, c, g->ldc, rows.first, rows.count, columns.first,
                                    columns.count);
}

/* ---- The product ------------------------------------------------------------------------ */

static void run_job(gemm_job *job, sli_pool_task panel)
{
    sli_pool_run(job->cpu->pool, job->rows.count * job->columns.count, panel, job);
}

/* Widened panels differ in size from product to product, and blocks of all these sizes would stay
 * in the device's cache: they are in the device's scratch where it has the room. */
static sl_status run_panels(sl_device *device, gemm_job *job, sli_pool_task panel)
{
    int64_t floats = job->thread_floats * device->threads;
    if (job->widens && floats <= SLI_SCRATCH_FLOATS) {
        pthread_mutex_lock(&job->cpu->scratch_lock);
        job->workspace = job->cpu->scratch;
        run_job(job, panel);
        pthread_mutex_unlock(&job->cpu->scratch_lock);
        return SL_OK;
    }
    size_t bytes = (size_t)floats * sizeof(float);
    void *workspace;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &workspace));
    job->workspace = workspace;
    run_job(job, panel);
    sli_device_release(device, SL_MEMORY_WORKSPACE, workspace, bytes);
    return SL_OK;
}

/* Sets job->use_matmul if the product was done this way. */
static sl_status try_matmul(sl_device *device, gemm_job *job, const panel_rule *rule)
{
    choose_panels(job, rule);
    sli_matmul_lock(job->cpu->matmul);
    sl_status status;
    SLI_TRY_OR_FAIL(find_primitives(job));
    if (job->use_matmul)
        status = run_panels(device, job, uses_bf16(job) ? bf16_panel : matmul_panel);
fail:
    sli_matmul_unlock(job->cpu->matmul);
    return status;
}

sl_status sli_cpu_gemm(sl_device *device, const sli_gemm *arguments)
{
    gemm_job job = {.cpu = sli_cpu(device), .gemm = arguments};
    atomic_init(&job.code, 0);
    bool is_bf16 = arguments->bf16 && arguments->k > 0;
    if (is_bf16 && device->has_bf16)
        SL_TRY(
            try_matmul(device, &job, arguments->transpose_a ? &bf16_transposed_rule : &bf16_rule));
    job.widens = is_bf16 && !job.use_matmul;
    if ((!is_bf16 || job.widens) && suits_matmul(arguments))
        SL_TRY(try_matmul(device, &job, &matmul_rule));
    if (!job.use_matmul) {
        choose_panels(&job, sgemm_rule(arguments));
        job.panel_floats = 0;
        set_thread_floats(&job, 0);
        SL_TRY(run_panels(device, &job, sgemm_panel));
    }
    sli_sgemm_shape shape = {.m = arguments->m, .n = arguments->n, .k = arguments->k};
    return sli_sgemm_error("gemm", &shape, atomic_load(&job.code));
}
