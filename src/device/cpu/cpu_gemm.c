/* Matrix products: oneDNN on panels of c, one thread each, and the epilogue while the panel is in
 * the cache. */
#include "device/cpu/cpu_device.h"
#include "device/cpu/pieces.h"
#include "device/cpu/sgemm.h"

#include <stdatomic.h>

enum { PANEL_ROWS = 352, PANEL_COLUMNS = 512, ROW_GRAIN = 16, COLUMN_GRAIN = 64, FEWEST = 4 };

typedef struct gemm_job {
    const sli_cpu_kernels *kernels;
    const sli_gemm *gemm;
    sli_pieces rows, columns;
    atomic_int code; /* oneDNN's first error */
} gemm_job;

/* Even pieces of at most `most`, multiples of `grain`. */
static sli_pieces even_pieces(int64_t total, int64_t most, int64_t grain)
{
    int64_t count = sli_divide_up(total, most);
    int64_t size = sli_divide_up(sli_divide_up(total, count), grain) * grain;
    return sli_pieces_of(total, size);
}

/* Panels of about PANEL_ROWS x PANEL_COLUMNS; fewer columns where that would give less than FEWEST
 * of them. */
static void choose_panels(gemm_job *job)
{
    const sli_gemm *gemm = job->gemm;
    int64_t columns = PANEL_COLUMNS;
    job->rows = even_pieces(gemm->m, PANEL_ROWS, ROW_GRAIN);
    while (columns > COLUMN_GRAIN && job->rows.count * sli_divide_up(gemm->n, columns) < FEWEST)
        columns /= 2;
    job->columns = even_pieces(gemm->n, columns, COLUMN_GRAIN);
}

static void panel_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    gemm_job *job = argument;
    const sli_gemm *g = job->gemm;
    sli_range rows = sli_piece_range(&job->rows, piece / job->columns.count);
    sli_range columns = sli_piece_range(&job->columns, piece % job->columns.count);
    sli_sgemm_shape shape = {g->transpose_a, g->transpose_b, rows.count, columns.count,
                             g->k,           g->lda,         g->ldb,     g->ldc};
    const float *a = g->a + rows.first * (g->transpose_a ? 1 : g->lda);
    const float *b = g->b + columns.first * (g->transpose_b ? g->ldb : 1);
    float *c = g->c + rows.first * g->ldc + columns.first;
    int code = sli_sgemm(&shape, a, b, g->beta, c), none = 0;
    if (code)
        atomic_compare_exchange_strong(&job->code, &none, code);
    if (g->bias || g->preactivation || g->activation || g->dropout.p > 0)
        job->kernels->epilogue(g, rows.first, rows.count, columns.first, columns.count);
}

sl_status sli_cpu_gemm(sl_device *device, const sli_gemm *arguments)
{
    if (arguments->m == 0 || arguments->n == 0)
        return SL_OK;
    gemm_job job = {.kernels = sli_cpu(device)->kernels, .gemm = arguments};
    atomic_init(&job.code, 0);
    choose_panels(&job);
    sli_pool_run(sli_cpu(device)->pool, job.rows.count * job.columns.count, panel_piece, &job);
    sli_sgemm_shape shape = {.m = arguments->m, .n = arguments->n, .k = arguments->k};
    return sli_sgemm_error("gemm", &shape, atomic_load(&job.code));
}
