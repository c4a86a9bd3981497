/* Products a b and a b^T by own kernels (isa/packed.c): those of a layer's forward and of its
 * input's gradient, whose rows are positions of a text.
 *
 * A row of c has the same bits whatever the number of rows and wherever it stands: every element is
 * one sum over k in order. So a position's forward does not depend on what else is in its batch.
 *
 * A thread makes a panel of c: it packs the panel's columns of b, a step of the inner dimension at
 * a time, and multiplies blocks of rows of a by them. Both stay in the nearer caches, and so do the
 * panel's sums, which lie together: stores to c itself would each meet another page. */
#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <string.h>

/* For one row, the step's columns of b are packed, read once, and should not leave the first
 * cache. */
enum { STEP = 256, SHORT_STEP = 64, FEW_ROWS = 16, STEP_GRAIN = 8, BLOCK_ROWS = 96 };
enum { ROW_GRAIN = 24, LEAST_ROWS = 176, MOST_ROWS = 352, MANY = 24, ENOUGH = 16 };
static const int64_t least_work = 1 << 20; /* multiply-adds that are worth another panel */

typedef struct packed_job {
    const sli_cpu_kernels *kernels;
    const sli_gemm *gemm;
    sli_cpu_panels panels; /* a thread's room: sums, a step of b, packed, a block of a, widened */
    sli_ranges steps;      /* of the inner dimension */
    int64_t sum_floats, pack_floats;
} packed_job;

/* Narrow panels where wide ones would be few, lower ones where these still are. */
static void choose_panels(packed_job *job)
{
    const sli_gemm *g = job->gemm;
    int64_t wanted = sli_smaller(ENOUGH, g->m * g->n * g->k / least_work), height = MOST_ROWS;
    job->panels.rows = sli_ranges_near(g->m, height, ROW_GRAIN);
    job->panels.columns = sli_ranges_near(g->n, 2 * SLI_PACK_COLUMNS, SLI_PACK_COLUMNS);
    if (job->panels.rows.count * job->panels.columns.count < MANY)
        job->panels.columns = sli_ranges_near(g->n, SLI_PACK_COLUMNS, SLI_PACK_COLUMNS);
    while (job->panels.rows.count * job->panels.columns.count < wanted &&
           height / 2 >= LEAST_ROWS) {
        height /= 2;
        job->panels.rows = sli_ranges_near(g->m, height, ROW_GRAIN);
    }
    int64_t step = g->m <= FEW_ROWS ? SHORT_STEP : STEP;
    int64_t even = sli_divide_up(g->k, sli_larger(1, sli_divide_up(g->k, step)));
    job->steps = sli_ranges_of(g->k, sli_larger(1, sli_divide_up(even, STEP_GRAIN)) * STEP_GRAIN);
}

/* Rows of a step of a in f32. */
static const float *block_of_a(const packed_job *job, sli_range rows, sli_range inner, float *room,
                               int64_t *ld)
{
    const sli_gemm *g = job->gemm;
    int64_t first = rows.first * g->lda + inner.first;
    *ld = g->lda;
    if (!g->bf16)
        return (const float *)g->a + first;
    *ld = job->steps.size;
    for (int64_t row = 0; row < rows.count; row++) {
        sli_convert convert = {.from_bf16 = true,
                               .from = (const uint16_t *)g->a + first + row * g->lda,
                               .to = room + row * *ld};
        job->kernels->convert(&convert, 0, inner.count);
    }
    return room;
}

static void pack_step(const packed_job *job, sli_range columns, sli_range inner, float *to)
{
    const sli_gemm *g = job->gemm;
    int64_t first = g->transpose_b ? columns.first * g->ldb + inner.first
                                   : inner.first * g->ldb + columns.first;
    sli_pack pack = {.n = columns.count,
                     .k = inner.count,
                     .b = (const char *)g->b + first * (g->bf16 ? 2 : 4),
                     .ldb = g->ldb,
                     .transposed = g->transpose_b,
                     .bf16 = g->bf16,
                     .to = to};
    job->kernels->pack(&pack);
}

/* Adds a step's products to a panel's sums [rows, columns]. */
static void multiply_step(const packed_job *job, sli_range rows, sli_range columns, sli_range inner,
                          bool adds, float *sums)
{
    float *packed = sums + job->sum_floats;
    sli_packed_product product = {.n = columns.count,
                                  .k = inner.count,
                                  .b = packed,
                                  .packed = inner.count,
                                  .ldc = columns.count,
                                  .adds = adds};
    pack_step(job, columns, inner, packed);
    for (int64_t done = 0; done < rows.count; done += BLOCK_ROWS) {
        sli_range block = {rows.first + done, sli_smaller(BLOCK_ROWS, rows.count - done)};
        product.m = block.count;
        product.a = block_of_a(job, block, inner, packed + job->pack_floats, &product.lda);
        product.c = sums + done * columns.count;
        job->kernels->multiply_packed(&product);
    }
}

/* What a panel's sums begin with, where that is not nothing. */
static bool begin_sums(const packed_job *job, sli_range rows, sli_range columns, float *sums)
{
    const sli_gemm *g = job->gemm;
    size_t bytes = (size_t)columns.count * sizeof *sums;
    if (g->beta == 0 && g->k > 0)
        return false;
    for (int64_t row = 0; row < rows.count; row++) {
        const float *c = g->c + (rows.first + row) * g->ldc + columns.first;
        if (g->beta == 0)
            memset(sums + row * columns.count, 0, bytes);
        else
            memcpy(sums + row * columns.count, c, bytes);
    }
    return true;
}

static void make_panel(void *argument, int64_t panel, int thread)
{
    const packed_job *job = argument;
    const sli_gemm *g = job->gemm;
    sli_range rows = sli_range_at(&job->panels.rows, panel % job->panels.rows.count);
    sli_range columns = sli_range_at(&job->panels.columns, panel / job->panels.rows.count);
    float *sums = sli_cpu_panel_room(&job->panels, thread);
    bool adds = begin_sums(job, rows, columns, sums);
    for (int64_t step = 0; step < job->steps.count; step++)
        multiply_step(job, rows, columns, sli_range_at(&job->steps, step), adds || step > 0, sums);
    job->kernels->epilogue(g, sums, columns.count, rows.first, rows.count, columns.first,
                           columns.count);
}

/* The last range may be the longest. */
static int64_t longest(const sli_ranges *ranges)
{
    return sli_larger(ranges->size, sli_range_at(ranges, ranges->count - 1).count);
}

sl_status sli_cpu_packed_gemm(sl_device *device, const sli_gemm *arguments)
{
    packed_job job = {.kernels = sli_cpu(device)->kernels, .gemm = arguments};
    if (arguments->m == 0 || arguments->n == 0)
        return SL_OK;
    choose_panels(&job);
    int64_t columns = longest(&job.panels.columns), rows = longest(&job.panels.rows);
    job.sum_floats = sli_divide_up(rows * columns, 16) * 16;
    job.pack_floats = sli_divide_up(columns, SLI_PACK_WIDTH) * SLI_PACK_WIDTH * job.steps.size;
    job.panels.thread_floats = job.sum_floats + job.pack_floats;
    if (arguments->bf16)
        job.panels.thread_floats += sli_smaller(BLOCK_ROWS, rows) * job.steps.size;
    return sli_cpu_run_panels(device, &job.panels, make_panel, &job);
}
