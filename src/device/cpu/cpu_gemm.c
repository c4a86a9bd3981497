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
 * none that uses the processor's instructions, the matrices become f32 first: the products of two
 * bf16 values are exact in f32, so only the order of the sums differs. */
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

typedef struct gemm_job {
    sli_cpu_device *cpu;
    const sli_gemm *gemm;
    sli_ranges rows, columns;
    /* The primitives of panels [is in the last rows][is in the last columns]; else dnnl_sgemm. */
    bool use_matmul;
    const sli_matmul_primitive *sizes[2][2];
    float *workspace; /* [threads, thread_floats]: a panel of f32, then the primitive's scratch */
    int64_t panel_floats, thread_floats;
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

/* Of f32, a dense panel of its own; of bf16, one within c. */
static sli_matmul_shape panel_shape(const sli_gemm *g, int64_t rows, int64_t columns)
{
    return (sli_matmul_shape){
        .bf16 = g->bf16,
        .adds = g->beta != 0,
        .m = rows,
        .n = columns,
        .k = g->k,
        .a_row = g->transpose_a ? 1 : g->lda,
        .a_step = g->transpose_a ? g->lda : 1,
        .b_row = g->transpose_b ? 1 : g->ldb,
        .b_step = g->transpose_b ? g->ldb : 1,
        .ldc = g->bf16 ? g->ldc : columns,
    };
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
        sli_matmul_shape shape = panel_shape(job->gemm, rows.count, columns.count);
        SL_TRY(sli_matmul_find(job->cpu->matmul, &shape, size));
        job->use_matmul = *size != NULL;
        if (*size)
            scratch = sli_larger(scratch, sli_matmul_scratch_floats(*size));
        if (!job->gemm->bf16)
            job->panel_floats = sli_larger(job->panel_floats, rows.count * columns.count);
    }
    job->panel_floats = sli_divide_up(job->panel_floats, 16) * 16;
    job->thread_floats = job->panel_floats + sli_divide_up(scratch, 16) * 16;
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

static void sgemm_panel(void *argument, int64_t panel, int thread)
{
    (void)thread;
    gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    sli_range rows = sli_range_at(&job->rows, panel % job->rows.count);
    sli_range columns = sli_range_at(&job->columns, panel / job->rows.count);
    sli_sgemm_shape shape = {g->transpose_a, g->transpose_b, rows.count, columns.count,
                             g->k,           g->lda,         g->ldb,     g->ldc};
    const float *a = (const float *)g->a + rows.first * (g->transpose_a ? 1 : g->lda);
    const float *b = (const float *)g->b + columns.first * (g->transpose_b ? g->ldb : 1);
    float *c = g->c + rows.first * g->ldc + columns.first;
    store_error(job, sli_sgemm(&shape, a, b, g->beta, c));
    if (has_epilogue(g))
        job->cpu->kernels->epilogue(g, c, g->ldc, rows.first, rows.count, columns.first,
                                    columns.count);
}

static void matmul_panel(void *argument, int64_t panel, int thread)
{
    gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    int64_t row = panel % job->rows.count, column = panel / job->rows.count;
    sli_range rows = sli_range_at(&job->rows, row);
    sli_range columns = sli_range_at(&job->columns, column);
    const sli_matmul_primitive *size =
        job->sizes[row == job->rows.count - 1][column == job->columns.count - 1];
    float *product = job->workspace + thread * job->thread_floats;
    store_error(job, sli_matmul_run(job->cpu->matmul, size, thread,
                                    (const float *)g->a + rows.first * g->lda,
                                    (const float *)g->b + columns.first * g->ldb, product,
                                    product + job->panel_floats));
    job->cpu->kernels->epilogue(g, product, columns.count, rows.first, rows.count, columns.first,
                                columns.count);
}

static void bf16_panel(void *argument, int64_t panel, int thread)
{
    gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    int64_t row = panel % job->rows.count, column = panel / job->rows.count;
    sli_range rows = sli_range_at(&job->rows, row);
    sli_range columns = sli_range_at(&job->columns, column);
    const sli_matmul_primitive *size =
        job->sizes[row == job->rows.count - 1][column == job->columns.count - 1];
    const uint16_t *a = (const uint16_t *)g->a + rows.first * (g->transpose_a ? 1 : g->lda);
    const uint16_t *b = (const uint16_t *)g->b + columns.first * (g->transpose_b ? g->ldb : 1);
    float *c = g->c + rows.first * g->ldc + columns.first;
    float *scratch = job->workspace + thread * job->thread_floats + job->panel_floats;
    store_error(job, sli_matmul_run(job->cpu->matmul, size, thread, a, b, c, scratch));
    if (has_epilogue(g))
        job->cpu->kernels->epilogue(g, c, g->ldc, rows.first, rows.count, columns.first,
                                    columns.count);
}

/* ---- The product ------------------------------------------------------------------------ */

static sl_status run_matmul(sl_device *device, gemm_job *job)
{
    size_t bytes = (size_t)(job->thread_floats * device->threads) * sizeof(float);
    void *workspace;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &workspace));
    job->workspace = workspace;
    sli_pool_run(job->cpu->pool, job->rows.count * job->columns.count,
                 job->gemm->bf16 ? bf16_panel : matmul_panel, job);
    sli_device_release(device, SL_MEMORY_WORKSPACE, workspace, bytes);
    return SL_OK;
}

/* Sets job->use_matmul if the product was done this way. */
static sl_status try_matmul(sl_device *device, gemm_job *job, const panel_rule *rule)
{
    choose_panels(job, rule);
    sli_matmul_lock(job->cpu->matmul);
    sl_status status = find_primitives(job);
    if (status == SL_OK && job->use_matmul)
        status = run_matmul(device, job);
    sli_matmul_unlock(job->cpu->matmul);
    return status;
}

/* From a matrix's first element to its last: nothing behind the last row need be there. */
static int64_t matrix_extent(int64_t rows, int64_t columns, int64_t ld)
{
    return rows > 0 ? (rows - 1) * ld + columns : 0;
}

/* Runs the product on f32 copies of its matrices. */
static sl_status multiply_widened(sl_device *device, const sli_gemm *arguments)
{
    sli_gemm wide = *arguments;
    int64_t a = wide.transpose_a ? matrix_extent(wide.k, wide.m, wide.lda)
                                 : matrix_extent(wide.m, wide.k, wide.lda);
    int64_t b = wide.transpose_b ? matrix_extent(wide.n, wide.k, wide.ldb)
                                 : matrix_extent(wide.k, wide.n, wide.ldb);
    size_t bytes = (size_t)(a + b) * sizeof(float);
    void *room;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &room));
    wide.bf16 = false;
    wide.a = room;
    wide.b = (float *)room + a;
    sli_convert of_a = {.count = a, .from_bf16 = true, .from = arguments->a, .to = room};
    sli_convert of_b = {.count = b,
                        .from_bf16 = true,
                        .from = arguments->b,
                        .to = (float *)room + a};
    sl_status status = sli_device_convert(device, &of_a);
    if (status == SL_OK)
        status = sli_device_convert(device, &of_b);
    if (status == SL_OK)
        status = sli_cpu_gemm(device, &wide);
    sli_device_release(device, SL_MEMORY_WORKSPACE, room, bytes);
    return status;
}

sl_status sli_cpu_gemm(sl_device *device, const sli_gemm *arguments)
{
    gemm_job job = {.cpu = sli_cpu(device), .gemm = arguments};
    atomic_init(&job.code, 0);
    if (arguments->bf16 && arguments->k > 0) {
        if (device->has_bf16)
            SL_TRY(try_matmul(device, &job,
                              arguments->transpose_a ? &bf16_transposed_rule : &bf16_rule));
        if (!job.use_matmul)
            return multiply_widened(device, arguments);
    } else if (suits_matmul(arguments)) {
        SL_TRY(try_matmul(device, &job, &matmul_rule));
    }
    if (!job.use_matmul) {
        choose_panels(&job, sgemm_rule(arguments));
        sli_pool_run(job.cpu->pool, job.rows.count * job.columns.count, sgemm_panel, &job);
    }
    sli_sgemm_shape shape = {.m = arguments->m, .n = arguments->n, .k = arguments->k};
    return sli_sgemm_error("gemm", &shape, atomic_load(&job.code));
}
