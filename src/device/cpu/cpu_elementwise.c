/* Copies, sums, optimizer updates, norms and initial values: work on flat arrays. */
#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <string.h>

enum { MAX_TERMS = 256, MAX_PIECES = 4096, COPY_PIECE_BYTES = 1 << 18 };

typedef struct flat_job {
    const sli_cpu_kernels *kernels;
    sli_ranges pieces;
    union {
        struct {
            char *to;
            const char *from; /* NULL: zeros */
        } copy;
        struct {
            float *to;
            const float *from;
        } add;
        const sli_sgd *sgd;
        const sli_adamw *adamw;
        struct {
            sli_norm_kind kind;
            const float *x;
            double terms[MAX_TERMS];
        } norm;
        struct {
            const sli_init *init;
            sli_philox_key key;
            uint32_t site;
            float *to;
        } initialize;
    } as;
} flat_job;

static sl_status run(sl_device *device, flat_job *job, sli_pool_task function)
{
    job->kernels = sli_cpu(device)->kernels;
    sli_pool_run(sli_cpu(device)->pool, job->pieces.count, function, job);
    return SL_OK;
}

/* ---- Copies ----------------------------------------------------------------------------- */

static void copy_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const flat_job *job = argument;
    sli_range bytes = sli_range_at(&job->pieces, piece);
    char *to = job->as.copy.to + bytes.first;
    if (job->as.copy.from)
        memcpy(to, job->as.copy.from + bytes.first, (size_t)bytes.count);
    else
        memset(to, 0, (size_t)bytes.count);
}

sl_status sli_cpu_copy(sl_device *device, void *to, const void *from, size_t bytes)
{
    flat_job job = {.pieces = sli_ranges_of((int64_t)bytes, COPY_PIECE_BYTES)};
    job.as.copy.to = to;
    job.as.copy.from = from;
    return run(device, &job, copy_piece);
}

sl_status sli_cpu_zero(sl_device *device, void *to, size_t bytes)
{
    return sli_cpu_copy(device, to, NULL, bytes);
}

/* ---- Sums and updates ------------------------------------------------------------------- */

static void add_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const flat_job *job = argument;
    sli_range range = sli_range_at(&job->pieces, piece);
    job->kernels->add(range.count, job->as.add.to + range.first, job->as.add.from + range.first);
}

sl_status sli_cpu_add(sl_device *device, int64_t count, float *to, const float *from)
{
    flat_job job = {.pieces = sli_ranges_of_elements(count, MAX_PIECES)};
    job.as.add.to = to;
    job.as.add.from = from;
    return run(device, &job, add_piece);
}

static void sgd_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const flat_job *job = argument;
    sli_range range = sli_range_at(&job->pieces, piece);
    job->kernels->sgd(job->as.sgd, range.first, range.count);
}

sl_status sli_cpu_sgd(sl_device *device, const sli_sgd *arguments)
{
    flat_job job = {.pieces = sli_ranges_of_elements(arguments->count, MAX_PIECES)};
    job.as.sgd = arguments;
    return run(device, &job, sgd_piece);
}

static void adamw_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const flat_job *job = argument;
    sli_range range = sli_range_at(&job->pieces, piece);
    job->kernels->adamw(job->as.adamw, range.first, range.count);
}

sl_status sli_cpu_adamw(sl_device *device, const sli_adamw *arguments)
{
    flat_job job = {.pieces = sli_ranges_of_elements(arguments->count, MAX_PIECES)};
    job.as.adamw = arguments;
    return run(device, &job, adamw_piece);
}

/* ---- Norms ------------------------------------------------------------------------------ */

static void norm_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    flat_job *job = argument;
    sli_range range = sli_range_at(&job->pieces, piece);
    job->as.norm.terms[piece] =
        job->kernels->norm_term(job->as.norm.kind, range.count, job->as.norm.x + range.first);
}

sl_status sli_cpu_norm_term(sl_device *device, sli_norm_kind kind, int64_t count, const float *x,
                            double *out)
{
    flat_job job = {.pieces = sli_ranges_of_elements(count, MAX_TERMS)};
    job.as.norm.kind = kind;
    job.as.norm.x = x;
    SL_TRY(run(device, &job, norm_piece));
    double result = 0;
    for (int64_t piece = 0; piece < job.pieces.count; piece++) {
        double term = job.as.norm.terms[piece];
        if (kind != SLI_NORM_INF)
            result += term;
        else if (!(term <= result) && result == result) /* a NaN wins, and stays */
            result = term;
    }
    *out = result;
    return SL_OK;
}

/* ---- Initial values --------------------------------------------------------------------- */

static void initialize_piece(void *argument, int64_t piece, int thread)
{
    (void)thread;
    const flat_job *job = argument;
    sli_range range = sli_range_at(&job->pieces, piece);
    job->kernels->initialize(job->as.initialize.init, job->as.initialize.key,
                             job->as.initialize.site, range.first, range.count,
                             job->as.initialize.to);
}

sl_status sli_cpu_initialize(sl_device *device, const sli_init *init, uint64_t seed, uint32_t site,
                             int64_t count, float *to)
{
    flat_job job = {.pieces = sli_ranges_of_elements(count, MAX_PIECES)};
    job.as.initialize.init = init;
    job.as.initialize.key = sli_philox_key_make(seed, SLI_RANDOM_INIT);
    job.as.initialize.site = site;
    job.as.initialize.to = to;
    return run(device, &job, initialize_piece);
}
