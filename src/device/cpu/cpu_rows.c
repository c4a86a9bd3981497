/* Operations on independent rows: embedding, residual + norm, cross entropy; and the sums over
 * rows that their gradients need.
 *
 * A sum over rows is cut into few blocks of rows. Each block sums into its own part of the device's
 * scratch, and the parts are added in order. Where a single block is enough, or its sums would not
 * fit into the scratch, it adds straight to the result. */
#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <string.h>

enum { MAX_BLOCKS = 16, COMBINE_COLUMNS = 2048 };

typedef struct row_job {
    const sli_cpu_kernels *kernels;
    sli_ranges pieces;
    const void *arguments;
} row_job;

static sl_status run(sl_device *device, row_job *job, sli_pool_task function)
{
    job->kernels = sli_cpu(device)->kernels;
    sli_pool_run(sli_cpu(device)->pool, job->pieces.count, function, job);
    return SL_OK;
}

/* ---- One pass over rows ----------------------------------------------------------------- */

static void embedding_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const row_job *job = argument;
    sli_range rows = sli_range_at(&job->pieces, piece);
    job->kernels->embedding(job->arguments, rows.first, rows.count);
}

sl_status sli_cpu_embedding(sl_device *device, const sli_embedding *arguments)
{
    row_job job = {.pieces = sli_ranges_of_rows(arguments->rows, arguments->width),
                   .arguments = arguments};
    return run(device, &job, embedding_piece);
}

/* The kernel is a product's, on a matrix that is its own panel. */
static void epilogue_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const row_job *job = argument;
    const sli_epilogue *e = job->arguments;
    sli_gemm whole = {.m = e->rows,
                      .n = e->columns,
                      .c = e->out,
                      .ldc = e->columns,
                      .bias = e->bias,
                      .preactivation = e->preactivation,
                      .activation = e->activation,
                      .dropout = e->dropout};
    sli_range rows = sli_range_at(&job->pieces, piece);
    job->kernels->epilogue(&whole, e->x + rows.first * e->columns, e->columns, rows.first,
                           rows.count, 0, e->columns);
}

sl_status sli_cpu_epilogue(sl_device *device, const sli_epilogue *arguments)
{
    row_job job = {.pieces = sli_ranges_of_rows(arguments->rows, arguments->columns),
                   .arguments = arguments};
    return run(device, &job, epilogue_piece);
}

static void add_dropout_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const row_job *job = argument;
    sli_range rows = sli_range_at(&job->pieces, piece);
    job->kernels->add_dropout(job->arguments, rows.first, rows.count);
}

sl_status sli_cpu_add_dropout(sl_device *device, const sli_add_dropout *arguments)
{
    row_job job = {.pieces = sli_ranges_of_rows(arguments->rows, arguments->width),
                   .arguments = arguments};
    return run(device, &job, add_dropout_piece);
}

static void add_norm_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const row_job *job = argument;
    sli_range rows = sli_range_at(&job->pieces, piece);
    job->kernels->add_norm(job->arguments, rows.first, rows.count);
}

sl_status sli_cpu_add_norm(sl_device *device, const sli_add_norm *arguments)
{
    row_job job = {.pieces = sli_ranges_of_rows(arguments->rows, arguments->width),
                   .arguments = arguments};
    return run(device, &job, add_norm_piece);
}

static void cross_entropy_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const row_job *job = argument;
    sli_range rows = sli_range_at(&job->pieces, piece);
    job->kernels->cross_entropy(job->arguments, rows.first, rows.count);
}

sl_status sli_cpu_cross_entropy(sl_device *device, const sli_cross_entropy *arguments)
{
    row_job job = {.pieces = sli_ranges_of_rows(arguments->rows, arguments->classes),
                   .arguments = arguments};
    return run(device, &job, cross_entropy_piece);
}

/* The same id may be in many rows, so a piece takes some columns of all rows, in order. */
static void embedding_backward_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const row_job *job = argument;
    sli_range columns = sli_range_at(&job->pieces, piece);
    job->kernels->embedding_backward(job->arguments, columns.first, columns.count);
}

sl_status sli_cpu_embedding_backward(sl_device *device, const sli_embedding_backward *arguments)
{
    int64_t columns = sli_smaller(512, sli_larger(64, arguments->width / 8));
    row_job job = {.pieces = sli_ranges_near(arguments->width, columns, 16),
                   .arguments = arguments};
    return run(device, &job, embedding_backward_piece);
}

/* ---- Sums over rows --------------------------------------------------------------------- */

/* `count` sums of `width` columns each over all rows. A block's sums lie together. */
typedef struct sum_job {
    row_job rows; /* its pieces are the blocks */
    int count;
    int64_t width;
    float *results[2]; /* [width] each; all NULL: nothing is summed */
    float beta;
    float *scratch; /* NULL: the only block adds to the results */
    sli_ranges columns;
} sum_job;

static sli_ranges blocks_of_rows(int64_t rows, int64_t width, int count)
{
    int64_t blocks = sli_smaller(MAX_BLOCKS, rows * width / SLI_RANGE_ELEMENTS);
    blocks = sli_smaller(blocks, SLI_SCRATCH_FLOATS / sli_larger(1, width * count));
    blocks = sli_larger(1, blocks);
    return sli_ranges_of(rows, sli_larger(1, sli_divide_up(rows, blocks)));
}

/* Where block `piece` puts its sum number `index`; zeros to begin with. */
static float *block_sums(const sum_job *job, int64_t piece, int index)
{
    if (!job->results[index])
        return NULL;
    if (!job->scratch)
        return job->results[index];
    return job->scratch + (piece * job->count + index) * job->width;
}

static void zero_block(const sum_job *job, int64_t piece)
{
    for (int index = 0; index < job->count; index++)
        if (job->results[index] && (job->scratch || job->beta == 0))
            memset(block_sums(job, piece, index), 0, (size_t)job->width * sizeof(float));
}

static void combine_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const sum_job *job = argument;
    sli_range columns = sli_range_at(&job->columns, piece);
    for (int index = 0; index < job->count; index++) {
        float *to = job->results[index];
        if (!to)
            continue;
        to += columns.first;
        if (job->beta == 0)
            memset(to, 0, (size_t)columns.count * sizeof *to);
        for (int64_t block = 0; block < job->rows.pieces.count; block++)
            job->rows.kernels->add(columns.count, to,
                                   block_sums(job, block, index) + columns.first);
    }
}

static sl_status run_sums(sl_device *device, sum_job *job, sli_pool_task block)
{
    sli_cpu_device *cpu = sli_cpu(device);
    job->rows.kernels = cpu->kernels;
    pthread_mutex_lock(&cpu->scratch_lock);
    job->scratch = job->rows.pieces.count > 1 ? cpu->scratch : NULL;
    if (job->rows.pieces.count == 0)
        zero_block(job, 0);
    sli_pool_run(cpu->pool, job->rows.pieces.count, block, job);
    if (job->scratch) {
        job->columns = sli_ranges_of(job->width, COMBINE_COLUMNS);
        sli_pool_run(cpu->pool, job->columns.count, combine_piece, job);
    }
    pthread_mutex_unlock(&cpu->scratch_lock);
    return SL_OK;
}

static void add_norm_backward_block(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const sum_job *job = argument;
    zero_block(job, piece);
    sli_range rows = sli_range_at(&job->rows.pieces, piece);
    job->rows.kernels->add_norm_backward(job->rows.arguments, rows.first, rows.count,
                                         block_sums(job, piece, 0), block_sums(job, piece, 1));
}

sl_status sli_cpu_add_norm_backward(sl_device *device, const sli_add_norm_backward *arguments)
{
    sum_job job = {.count = 2, .width = arguments->width, .beta = arguments->beta};
    job.rows.pieces = blocks_of_rows(arguments->rows, arguments->width, job.count);
    job.rows.arguments = arguments;
    job.results[0] = arguments->grad_weight;
    job.results[1] = arguments->grad_bias;
    return run_sums(device, &job, add_norm_backward_block);
}

static void epilogue_backward_block(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const sum_job *job = argument;
    zero_block(job, piece);
    sli_range rows = sli_range_at(&job->rows.pieces, piece);
    job->rows.kernels->epilogue_backward(job->rows.arguments, rows.first, rows.count,
                                         block_sums(job, piece, 0));
}

sl_status sli_cpu_epilogue_backward(sl_device *device, const sli_epilogue_backward *arguments)
{
    sum_job job = {.count = 1, .width = arguments->columns, .beta = arguments->beta};
    job.rows.pieces = blocks_of_rows(arguments->rows, arguments->columns, job.count);
    job.rows.arguments = arguments;
    job.results[0] = arguments->grad_bias;
    return run_sums(device, &job, epilogue_backward_block);
}
