/* Operations that are one pass over ranges of rows, columns or elements, and the sums over rows
 * that their gradients need.
 *
 * A sum over rows is cut into few blocks of rows. Each block has its own sums in the device's
 * scratch memory, and these are added in order. Where a single block is enough, or its sums would
 * not fit into the scratch memory, it adds straight to the result. */
#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <string.h>

enum {
    MAX_TERMS = 256,
    MAX_RANGES = 4096,
    COPY_BYTES = 1 << 18,
    MAX_BLOCKS = 16,
    COMBINE_COLUMNS = 2048
};

typedef struct range_job {
    const sli_cpu_kernels *kernels;
    sli_ranges ranges;
    const void *arguments;
} range_job;

static sl_status run_job(sl_device *device, sli_ranges ranges, const void *arguments,
                         sli_pool_task task)
{
    range_job job = {sli_cpu(device)->kernels, ranges, arguments};
    sli_pool_run(sli_cpu(device)->pool, ranges.count, task, &job);
    return SL_OK;
}

/* KERNEL_range: one range of a kernel that takes the operation's own arguments. */
#define RANGE_TASK(kernel)                                                                         \
    static void kernel##_range(void *argument, int64_t index, int thread)                          \
    {                                                                                              \
        (void)thread;                                                                              \
        const range_job *job = argument;                                                           \
        sli_range range = sli_range_at(&job->ranges, index);                                       \
        job->kernels->kernel(job->arguments, range.first, range.count);                            \
    }
RANGE_TASK(embedding)
RANGE_TASK(embedding_backward)
RANGE_TASK(add_dropout)
RANGE_TASK(add_norm)
RANGE_TASK(swiglu)
RANGE_TASK(swiglu_backward)
RANGE_TASK(rotary)
RANGE_TASK(convert)
RANGE_TASK(sgd)
RANGE_TASK(adamw)

/* ---- Rows ------------------------------------------------------------------------------- */

sl_status sli_cpu_embedding(sl_device *device, const sli_embedding *arguments)
{
    return run_job(device, sli_ranges_of_rows(arguments->rows, arguments->width), arguments,
                   embedding_range);
}

/* The same id may be in many rows, so a range has some columns of all rows, in order. */
sl_status sli_cpu_embedding_backward(sl_device *device, const sli_embedding_backward *arguments)
{
    int64_t columns = sli_smaller(512, sli_larger(64, arguments->width / 8));
    return run_job(device, sli_ranges_near(arguments->width, columns, 16), arguments,
                   embedding_backward_range);
}

sl_status sli_cpu_add_dropout(sl_device *device, const sli_add_dropout *arguments)
{
    return run_job(device, sli_ranges_of_rows(arguments->rows, arguments->width), arguments,
                   add_dropout_range);
}

sl_status sli_cpu_add_norm(sl_device *device, const sli_add_norm *arguments)
{
    return run_job(device, sli_ranges_of_rows(arguments->rows, arguments->width), arguments,
                   add_norm_range);
}

sl_status sli_cpu_swiglu(sl_device *device, const sli_swiglu *arguments)
{
    return run_job(device, sli_ranges_of_rows(arguments->rows, arguments->width), arguments,
                   swiglu_range);
}

sl_status sli_cpu_swiglu_backward(sl_device *device, const sli_swiglu_backward *arguments)
{
    return run_job(device, sli_ranges_of_rows(arguments->rows, arguments->width), arguments,
                   swiglu_backward_range);
}

sl_status sli_cpu_rotary(sl_device *device, const sli_rotary *arguments)
{
    return run_job(device,
                   sli_ranges_of_rows(arguments->rows, arguments->heads * arguments->head_width),
                   arguments, rotary_range);
}

static void cross_entropy_range(void *argument, int64_t index, int thread)
{
    (void)thread;
    const range_job *job = argument;
    sli_range rows = sli_range_at(&job->ranges, index);
    job->kernels->cross_entropy(job->arguments, rows.first, rows.count, NULL);
}

sl_status sli_cpu_cross_entropy(sl_device *device, const sli_cross_entropy *arguments)
{
    return run_job(device, sli_ranges_of_rows(arguments->rows, arguments->classes), arguments,
                   cross_entropy_range);
}

/* out = scale x, of these rows; where that is the epilogue's input. */
static const float *scale_rows(const sli_epilogue *e, sli_range rows)
{
    const float *x = e->x + rows.first * e->columns;
    float *out = e->out + rows.first * e->columns;
    if (e->scale == 0)
        return x;
    for (int64_t i = 0; i < rows.count * e->columns; i++)
        out[i] = e->scale * x[i];
    return out;
}

/* The kernel is a product's, on a matrix that is its own panel. */
static void epilogue_range(void *argument, int64_t index, int thread)
{
    (void)thread;
    const range_job *job = argument;
    const sli_epilogue *e = job->arguments;
    sli_gemm whole = {.m = e->rows,
                      .n = e->columns,
                      .c = e->out,
                      .ldc = e->columns,
                      .bias = e->bias,
                      .preactivation = e->preactivation,
                      .activation = e->activation,
                      .dropout = e->dropout};
    sli_range rows = sli_range_at(&job->ranges, index);
    job->kernels->epilogue(&whole, scale_rows(e, rows), e->columns, rows.first, rows.count, 0,
                           e->columns);
}

sl_status sli_cpu_epilogue(sl_device *device, const sli_epilogue *arguments)
{
    return run_job(device, sli_ranges_of_rows(arguments->rows, arguments->columns), arguments,
                   epilogue_range);
}

/* ---- Elements --------------------------------------------------------------------------- */

sl_status sli_cpu_convert(sl_device *device, const sli_convert *arguments)
{
    return run_job(device, sli_ranges_of_elements(arguments->count, MAX_RANGES), arguments,
                   convert_range);
}

sl_status sli_cpu_sgd(sl_device *device, const sli_sgd *arguments)
{
    return run_job(device, sli_ranges_of_elements(arguments->count, MAX_RANGES), arguments,
                   sgd_range);
}

sl_status sli_cpu_adamw(sl_device *device, const sli_adamw *arguments)
{
    return run_job(device, sli_ranges_of_elements(arguments->count, MAX_RANGES), arguments,
                   adamw_range);
}

typedef struct copy_arguments {
    char *to;
    const char *from; /* NULL: zeros */
} copy_arguments;

static void copy_range(void *argument, int64_t index, int thread)
{
    (void)thread;
    const range_job *job = argument;
    const copy_arguments *copy = job->arguments;
    sli_range bytes = sli_range_at(&job->ranges, index);
    if (copy->from)
        memcpy(copy->to + bytes.first, copy->from + bytes.first, (size_t)bytes.count);
    else
        memset(copy->to + bytes.first, 0, (size_t)bytes.count);
}

sl_status sli_cpu_copy(sl_device *device, void *to, const void *from, size_t bytes)
{
    copy_arguments copy = {to, from};
    return run_job(device, sli_ranges_of((int64_t)bytes, COPY_BYTES), &copy, copy_range);
}

sl_status sli_cpu_zero(sl_device *device, void *to, size_t bytes)
{
    return sli_cpu_copy(device, to, NULL, bytes);
}

typedef struct add_arguments {
    float *to;
    const float *from;
} add_arguments;

static void add_range(void *argument, int64_t index, int thread)
{
    (void)thread;
    const range_job *job = argument;
    const add_arguments *add = job->arguments;
    sli_range range = sli_range_at(&job->ranges, index);
    job->kernels->add(range.count, add->to + range.first, add->from + range.first);
}

sl_status sli_cpu_add(sl_device *device, int64_t count, float *to, const float *from)
{
    add_arguments add = {to, from};
    return run_job(device, sli_ranges_of_elements(count, MAX_RANGES), &add, add_range);
}

typedef struct norm_arguments {
    sli_norm_kind kind;
    const float *x;
    double *terms; /* one for each range */
} norm_arguments;

static void norm_range(void *argument, int64_t index, int thread)
{
    (void)thread;
    const range_job *job = argument;
    const norm_arguments *norm = job->arguments;
    sli_range range = sli_range_at(&job->ranges, index);
    norm->terms[index] = job->kernels->norm_term(norm->kind, range.count, norm->x + range.first);
}

static sl_status norm_term(sl_device *device, sli_norm_kind kind, const sli_norm_array *array,
                           double *out)
{
    double terms[MAX_TERMS];
    norm_arguments norm = {kind, array->x, terms};
    sli_ranges ranges = sli_ranges_of_elements(array->count, MAX_TERMS);
    SL_TRY(run_job(device, ranges, &norm, norm_range));
    double result = 0;
    for (int64_t i = 0; i < ranges.count; i++) {
        if (kind != SLI_NORM_INF)
            result += terms[i];
        else if (!(terms[i] <= result) && result == result) /* a NaN wins, and stays */
            result = terms[i];
    }
    *out = result;
    return SL_OK;
}

sl_status sli_cpu_norm_terms(sl_device *device, const sli_norm_terms *arguments)
{
    for (int i = 0; i < arguments->count; i++)
        SL_TRY(norm_term(device, arguments->kind, &arguments->arrays[i], &arguments->out[i]));
    return SL_OK;
}

typedef struct initialize_arguments {
    const sli_init *init;
    sli_philox_key key;
    uint32_t site;
    float *to;
} initialize_arguments;

static void initialize_range(void *argument, int64_t index, int thread)
{
    (void)thread;
    const range_job *job = argument;
    const initialize_arguments *a = job->arguments;
    sli_range range = sli_range_at(&job->ranges, index);
    job->kernels->initialize(a->init, a->key, a->site, range.first, range.count, a->to);
}

sl_status sli_cpu_initialize(sl_device *device, const sli_init *init, uint64_t seed, uint32_t site,
                             int64_t count, float *to)
{
    initialize_arguments arguments = {init, sli_philox_key_make(seed, SLI_RANDOM_INIT), site, to};
    return run_job(device, sli_ranges_of_elements(count, MAX_RANGES), &arguments, initialize_range);
}

/* ---- Sums over rows --------------------------------------------------------------------- */

/* `count` sums of `width` columns each over all rows. A block's sums lie together. */
typedef struct sum_job {
    const sli_cpu_kernels *kernels;
    const void *arguments;
    sli_ranges blocks; /* of rows */
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

int64_t sli_cpu_sums_bytes(int64_t rows, int64_t width)
{
    int64_t blocks = blocks_of_rows(rows, width, 1).count;
    return blocks > 1 ? blocks * width * (int64_t)sizeof(float) : 0;
}

/* Where the block puts its sum number `which`. */
static float *block_sums(const sum_job *job, int64_t block, int which)
{
    if (!job->results[which])
        return NULL;
    if (!job->scratch)
        return job->results[which];
    return job->scratch + (block * job->count + which) * job->width;
}

static void zero_block_sums(const sum_job *job, int64_t block)
{
    for (int which = 0; which < job->count; which++)
        if (job->results[which] && (job->scratch || job->beta == 0))
            memset(block_sums(job, block, which), 0, (size_t)job->width * sizeof(float));
}

static void combine_range(void *argument, int64_t index, int thread)
{
    (void)thread;
    const sum_job *job = argument;
    sli_range columns = sli_range_at(&job->columns, index);
    for (int which = 0; which < job->count; which++) {
        float *to = job->results[which];
        if (!to)
            continue;
        to += columns.first;
        if (job->beta == 0)
            memset(to, 0, (size_t)columns.count * sizeof *to);
        for (int64_t block = 0; block < job->blocks.count; block++)
            job->kernels->add(columns.count, to, block_sums(job, block, which) + columns.first);
    }
}

static sl_status run_sums(sl_device *device, sum_job *job, sli_pool_task task)
{
    sli_cpu_device *cpu = sli_cpu(device);
    job->kernels = cpu->kernels;
    pthread_mutex_lock(&cpu->scratch_lock);
    job->scratch = job->blocks.count > 1 ? cpu->scratch : NULL;
    if (job->blocks.count == 0)
        zero_block_sums(job, 0);
    sli_pool_run(cpu->pool, job->blocks.count, task, job);
    if (job->scratch) {
        job->columns = sli_ranges_of(job->width, COMBINE_COLUMNS);
        sli_pool_run(cpu->pool, job->columns.count, combine_range, job);
    }
    pthread_mutex_unlock(&cpu->scratch_lock);
    return SL_OK;
}

static void add_norm_backward_block(void *argument, int64_t block, int thread)
{
    (void)thread;
    const sum_job *job = argument;
    zero_block_sums(job, block);
    sli_range rows = sli_range_at(&job->blocks, block);
    job->kernels->add_norm_backward(job->arguments, rows.first, rows.count,
                                    block_sums(job, block, 0), block_sums(job, block, 1));
}

sl_status sli_cpu_add_norm_backward(sl_device *device, const sli_add_norm_backward *arguments)
{
    sum_job job = {.arguments = arguments,
                   .blocks = blocks_of_rows(arguments->rows, arguments->width, 2),
                   .count = 2,
                   .width = arguments->width,
                   .results = {arguments->grad_weight, arguments->grad_bias},
                   .beta = arguments->beta};
    return run_sums(device, &job, add_norm_backward_block);
}

static void epilogue_backward_block(void *argument, int64_t block, int thread)
{
    (void)thread;
    const sum_job *job = argument;
    zero_block_sums(job, block);
    sli_range rows = sli_range_at(&job->blocks, block);
    job->kernels->epilogue_backward(job->arguments, rows.first, rows.count,
                                    block_sums(job, block, 0));
}

sl_status sli_cpu_epilogue_backward(sl_device *device, const sli_epilogue_backward *arguments)
{
    sum_job job = {.arguments = arguments,
                   .blocks = blocks_of_rows(arguments->rows, arguments->columns, 1),
                   .count = 1,
                   .width = arguments->columns,
                   .results = {arguments->grad_bias},
                   .beta = arguments->beta};
    return run_sums(device, &job, epilogue_backward_block);
}

static void cross_entropy_block(void *argument, int64_t block, int thread)
{
    (void)thread;
    const sum_job *job = argument;
    zero_block_sums(job, block);
    sli_range rows = sli_range_at(&job->blocks, block);
    job->kernels->cross_entropy(job->arguments, rows.first, rows.count, block_sums(job, block, 0));
}

sl_status sli_cpu_cross_entropy_bias(sl_device *device, const sli_cross_entropy *arguments)
{
    sum_job job = {.arguments = arguments,
                   .blocks = blocks_of_rows(arguments->rows, arguments->classes, 1),
                   .count = 1,
                   .width = arguments->classes,
                   .results = {arguments->grad_bias},
                   .beta = arguments->beta};
    return run_sums(device, &job, cross_entropy_block);
}
