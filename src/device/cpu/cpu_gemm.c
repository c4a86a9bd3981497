/* Matrix products: oneDNN, or AMX, on panels of c, one thread each, and the epilogue while the
 * panel is in the cache.
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
 * The products of two bf16 values are exact in f32, so only the order of the sums differs. Panels
 * of f32 whose rows lie at a distance that slows dnnl_sgemm are copied in the same steps.
 *
 * On processors with AMX, products of bf16 are our own (amx.h), whose panels choose_amx_panels
 * cuts. Only a b^T of few rows stays a primitive's, into dense memory where it adds to nothing:
 * tiles are stored into the far rows of a wide c at half the rate.
 *
 * Where a row's bits may not depend on the other rows, columns are cut by b alone, and a panel is
 * multiplied with a height that gives each of its rows the bits of any other (heights.h); where
 * that is more than its rows, rows of zeros are added to a copy of them. The distance of a's and
 * c's rows decides nothing. */
#include "device/cpu/cpu_gemm.h"

#include "device/cpu/amx.h"

#include <assert.h>

/* The size of panels, unless that makes fewer than `fewest`; then down to the least size. */
typedef struct panel_rule {
    int64_t rows, columns;
    int64_t least_rows, least_columns;
    int64_t fewest;
} panel_rule;

static const panel_rule plain_rule = {88, 528, 56, 192, 4};          /* a b */
static const panel_rule transposed_a_rule = {512, 528, 48, 192, 4};  /* a^T b, a^T b^T */
static const panel_rule transposed_b_rule = {352, 528, 104, 192, 4}; /* a b^T, dnnl_sgemm */
static const panel_rule matmul_rule = {352, 192, 88, 48, 16};        /* a b^T, the primitive */
static const panel_rule bf16_rule = {352, 1024, 88, 96, 4};          /* bf16: a b and a b^T */
static const panel_rule bf16_amx_rule = {352, 256, 88, 96, 4};       /* a b^T of few rows, by AMX */
static const panel_rule bf16_transposed_rule = {512, 1024, 64, 96, 4}; /* a^T b, a^T b^T */

enum { ROW_GRAIN = 8, COLUMN_GRAIN = 16, MATMUL_LEAST_ROWS = 16 };
static const int64_t least_work = 1 << 20; /* multiply-adds that are worth another panel */

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

void sli_gemm_multiply_own_rows(sli_gemm_job *job)
{
    for (int i = 0; i < 4; i++)
        job->heights[i / 2][i % 2] = (sli_height){sli_end_range(&job->rows, i / 2).count, false};
}

/* As choose_panels below, by n and k alone, and rows in multiples of the height that panels of few
 * rows often get. */
static void choose_invariant_panels(sli_gemm_job *job, const panel_rule *rule)
{
    const sli_gemm *g = job->gemm;
    int64_t fewest = g->n * g->k < least_work / SLI_REFERENCE_ROWS ? 1 : rule->fewest;
    job->columns = divide_dimension(g->n, rule->columns, rule->least_columns, fewest, COLUMN_GRAIN);
    job->rows = sli_ranges_near(g->m, rule->rows / SLI_REFERENCE_ROWS * SLI_REFERENCE_ROWS,
                                SLI_REFERENCE_ROWS);
}

/* For example a^T b with m = n = 200 and k = 350: 1 x 1 panel of 512 x 528 would do, but with 14 M
 * multiply-adds 4 are wanted. 4 or 2 ranges of columns would be narrower than 192, so there is 1;
 * 4 ranges of rows are not lower than 48. That makes 4 panels of 200 columns, three of 48 rows and
 * one of 56. */
static void choose_panels(sli_gemm_job *job, const panel_rule *rule)
{
    const sli_gemm *g = job->gemm;
    int64_t fewest = rule->fewest;
    if (sli_gemm_is_invariant(job)) {
        choose_invariant_panels(job, rule);
        return;
    }
    while (fewest > 1 && g->m * g->n * g->k < fewest * least_work)
        fewest /= 2;
    job->rows = sli_ranges_near(g->m, rule->rows, ROW_GRAIN);
    job->columns = divide_dimension(g->n, rule->columns, rule->least_columns,
                                    sli_divide_up(fewest, job->rows.count), COLUMN_GRAIN);
    job->rows = divide_dimension(g->m, rule->rows, rule->least_rows,
                                 sli_divide_up(fewest, job->columns.count), ROW_GRAIN);
    sli_gemm_multiply_own_rows(job);
}

/* And which panels are copied. Widened ones always are, and are cut like those of f32. */
static void choose_sgemm_panels(sli_gemm_job *job)
{
    const sli_gemm *g = job->gemm;
    int64_t m = sli_gemm_is_invariant(job) ? INT64_MAX : g->m;
    bool copies_b = !g->transpose_b && sli_sgemm_is_slowed_by(g->ldb, g->transpose_a, m);
    job->copies_a = g->transpose_a && !job->widens && sli_sgemm_is_slowed_by(g->lda, true, m);
    job->copies_b = copies_b && !job->widens;
    if (g->transpose_a)
        choose_panels(job, &transposed_a_rule);
    else
        choose_panels(job, g->transpose_b || copies_b ? &transposed_b_rule : &plain_rule);
}

static bool suits_matmul(const sli_gemm_job *job)
{
    const sli_gemm *g = job->gemm;
    return !g->transpose_a && g->transpose_b && g->beta == 0 && g->ldb == g->k &&
           (sli_gemm_is_invariant(job) ||
            (g->lda == g->k && g->m >= MATMUL_LEAST_ROWS && g->m * g->n * g->k >= least_work));
}

static sli_matmul_shape panel_shape(const sli_gemm_job *job, sli_height height, int64_t columns)
{
    const sli_gemm *g = job->gemm;
    return (sli_matmul_shape){
        .bf16 = sli_gemm_uses_bf16(job),
        .adds = g->beta != 0,
        .m = height.rows,
        .n = columns,
        .k = g->k,
        .a_row = g->transpose_a     ? 1
                 : height.is_copied ? g->k
                                    : g->lda,
        .a_step = g->transpose_a ? g->lda : 1,
        .b_row = g->transpose_b ? 1 : g->ldb,
        .b_step = g->transpose_b ? g->ldb : 1,
        .ldc = job->is_apart || height.is_copied ? columns : g->ldc,
    };
}

/* The last range has another size than the others. */
static int64_t longest(const sli_ranges *ranges)
{
    return sli_larger(sli_end_range(ranges, 0).count, sli_end_range(ranges, 1).count);
}

void sli_gemm_set_floats(sli_gemm_job *job, int64_t scratch)
{
    int64_t step = sli_sgemm_step(job->gemm->transpose_a), k = job->gemm->k;
    int64_t most = sli_gemm_inner_count(job, 0) < k ? sli_smaller(k, 2 * step - 1) : k;
    /* A shorter range may have the longer distance: 512 rows are copied 528 apart, 520 rows 520. */
    int64_t height = 0, distance_a = 0, distance_b = 0;
    bool copies = false;
    for (int i = 0; i < 4; i++) {
        int64_t rows = job->heights[i / 2][i % 2].rows;
        int64_t columns = sli_end_range(&job->columns, i % 2).count;
        height = sli_larger(height, rows);
        distance_a = sli_larger(distance_a, sli_gemm_copy_distance(rows));
        distance_b = sli_larger(distance_b, sli_gemm_copy_distance(columns));
        copies |= job->heights[i / 2][i % 2].is_copied;
    }
    job->copy_floats = 0;
    if (job->widens || copies || job->copies_a)
        job->copy_floats += sli_aligned_floats(distance_a * most);
    if (job->widens || job->copies_b)
        job->copy_floats += sli_aligned_floats(distance_b * most);
    job->panel_floats =
        job->is_apart || copies ? sli_aligned_floats(height * longest(&job->columns)) : 0;
    job->thread_floats = job->copy_floats + job->panel_floats + sli_aligned_floats(scratch);
}

sl_status sli_gemm_find_primitives(sli_gemm_job *job)
{
    int64_t scratch = 0;
    job->use_matmul = true;
    for (int i = 0; i < 4 && job->use_matmul; i++) {
        const sli_matmul_primitive **size = &job->sizes[i / 2][i % 2];
        sli_matmul_shape shape =
            panel_shape(job, job->heights[i / 2][i % 2], sli_end_range(&job->columns, i % 2).count);
        SL_TRY(sli_matmul_find(job->cpu->matmul, &shape, size));
        job->use_matmul = *size != NULL;
        if (*size)
            scratch = sli_larger(scratch, sli_matmul_scratch_floats(*size));
    }
    sli_gemm_set_floats(job, scratch);
    return SL_OK;
}

/* ---- The product ------------------------------------------------------------------------ */

static void run_job(sli_gemm_job *job, sli_pool_task panel)
{
    sli_pool_run(job->cpu->pool, job->rows.count * job->columns.count, panel, job);
}

/* Panels differ in size from product to product, and blocks of all these sizes would stay in the
 * device's cache: they are in the device's scratch where it has the room. */
static sl_status run_panels(sl_device *device, sli_gemm_job *job, sli_pool_task panel)
{
    int64_t floats = job->thread_floats * device->threads;
    if (floats <= job->cpu->scratch_floats) {
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

static const panel_rule *choose_matmul_rule(const sli_gemm_job *job)
{
    if (!sli_gemm_uses_bf16(job))
        return &matmul_rule;
    if (job->gemm->transpose_a)
        return &bf16_transposed_rule;
    return job->cpu->has_amx ? &bf16_amx_rule : &bf16_rule;
}

/* Sets job->use_matmul if the product was done this way. */
static sl_status try_matmul(sl_device *device, sli_gemm_job *job)
{
    job->is_apart = !sli_gemm_uses_bf16(job) || (job->gemm->beta == 0 && job->cpu->has_amx);
    choose_panels(job, choose_matmul_rule(job));
    sli_matmul_lock(job->cpu->matmul);
    sl_status status;
    sli_pool_task panel = sli_gemm_uses_bf16(job) ? sli_bf16_panel : sli_matmul_panel;
    job->use_matmul = true;
    SL_TRY_OR_FAIL(sli_gemm_find_heights(device, job, panel));
    SL_TRY_OR_FAIL(sli_gemm_find_primitives(job));
    if (job->use_matmul)
        status = run_panels(device, job, panel);
    job->is_apart = job->is_apart && job->use_matmul;
fail:
    sli_matmul_unlock(job->cpu->matmul);
    return status;
}

/* At most `count` ranges, of which all but the last are whole pairs of blocks and steps. */
static sli_ranges divide_evenly(int64_t total, int64_t count)
{
    enum { GRAIN = 2 * SLI_AMX_BLOCK };
    static_assert(GRAIN % SLI_AMX_STEP == 0, "else a sum's bits depend on where terms are cut");
    return sli_ranges_of(total, sli_divide_up(sli_divide_up(total, count), GRAIN) * GRAIN);
}

/* Panels for AMX, which may depend on the number of threads: they do not change the bits. Each
 * copies its columns of b once, and all its rows of a; so panels are large, by the sizes that were
 * the fastest of those tried on two cores. Where they do not come out even, columns are divided
 * further while they stay wide, else rows while these stay many, else both. */
static void choose_amx_panels(sli_gemm_job *job)
{
    enum { ROWS = 1024, MANY_ROWS = 256, COLUMNS = 576, WIDE_COLUMNS = 384, LEAST = 64 };
    enum { MOST_OF_B = 600 * 1024 }; /* numbers: 1.2 MB of an L2 cache of 2 MiB */
    const sli_gemm *g = job->gemm;
    int64_t rows = sli_larger(1, (g->m + ROWS / 2) / ROWS);
    int64_t columns = sli_larger(1, (g->n + COLUMNS / 2) / COLUMNS);
    int64_t threads = sli_smaller(job->cpu->base.threads, g->m * g->n * g->k / least_work);
    if (threads > 1 && rows * columns % threads != 0) {
        int64_t more_columns = sli_divide_up(columns, threads) * threads;
        if (g->n >= more_columns * WIDE_COLUMNS) {
            columns = more_columns;
        } else if (g->m >= threads * MANY_ROWS) {
            rows = sli_divide_up(rows, threads) * threads;
        } else {
            columns = sli_smaller(more_columns, sli_divide_up(g->n, LEAST));
            rows = sli_smaller(sli_larger(rows, sli_divide_up(threads, columns)),
                               sli_divide_up(g->m, LEAST));
        }
    }
    job->rows = divide_evenly(g->m, rows);
    job->columns = divide_evenly(g->n, columns);
    int64_t terms = MOST_OF_B / job->columns.size / SLI_AMX_TERMS * SLI_AMX_TERMS;
    job->terms = divide_evenly(g->k, sli_divide_up(g->k, sli_larger(terms, SLI_AMX_TERMS)));
}

static sl_status multiply_by_amx(sl_device *device, sli_gemm_job *job)
{
    choose_amx_panels(job);
    int64_t room = sli_amx_count_room(job->columns.size, job->terms.size);
    job->copy_floats = sli_aligned_floats(room / 2); /* two bf16 numbers each */
    job->panel_floats = SLI_AMX_STRIP * job->columns.size;
    job->thread_floats = job->copy_floats + job->panel_floats;
    assert(job->thread_floats <= SLI_AMX_THREAD_FLOATS);
    return run_panels(device, job, sli_amx_panel);
}

/* oneDNN's primitives for a b^T of few rows use AMX as well, and take b without a copy in the L2
 * cache. */
static bool suits_amx(const sli_gemm_job *job)
{
    enum { FEW_ROWS = 256 };
    const sli_gemm *g = job->gemm;
    return job->cpu->has_amx &&
           (sli_gemm_is_invariant(job) || g->transpose_a || !g->transpose_b || g->m > FEW_ROWS);
}

sl_status sli_cpu_gemm(sl_device *device, const sli_gemm *arguments)
{
    sli_gemm_job job = {.cpu = sli_cpu(device), .gemm = arguments};
    atomic_init(&job.code, 0);
    bool is_bf16 = arguments->bf16 && arguments->k > 0;
    if (is_bf16 && device->has_bf16 && suits_amx(&job))
        return multiply_by_amx(device, &job);
    if (is_bf16 && device->has_bf16)
        SL_TRY(try_matmul(device, &job));
    job.widens = is_bf16 && !job.use_matmul;
    if ((!is_bf16 || job.widens) && suits_matmul(&job))
        SL_TRY(try_matmul(device, &job));
    if (!job.use_matmul) {
        choose_sgemm_panels(&job);
        SL_TRY(sli_gemm_find_heights(device, &job, sli_sgemm_panel));
        sli_gemm_set_floats(&job, 0);
        SL_TRY(run_panels(device, &job, sli_sgemm_panel));
    }
    sli_sgemm_shape shape = {.m = arguments->m, .n = arguments->n, .k = arguments->k};
    return sli_sgemm_error("gemm", &shape, atomic_load(&job.code));
}
