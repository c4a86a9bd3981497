/* What a run's devices can do at best: the rate of large matrix products. */
#include "train/plan/profile.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/threads.h"
#include "device/device.h"

#include <math.h>
#include <stdlib.h>

enum { SMALLEST = 128, LARGEST = 4096, STEP = 128 };

/* A product that takes less is too small for the best rate; and where devices share cores, it may
 * have them for itself. */
static const double least_seconds = 0.008, all_seconds = 0.05;

typedef struct probe {
    sl_device *device;
    sl_precision precision;
    double end;  /* of the measurement */
    double best; /* FLOP/s so far */
    sli_worker *worker;
    sli_error_copy error;
} probe;

/* c = a b, all of them [size, size]. A device may only queue the product: a number of its result is
 * waited for. */
static sl_status time_product(const probe *p, sl_tensor *const *abc, int64_t size, double *seconds)
{
    float result;
    double start = sli_clock_seconds();
    SL_TRY(sli_device_gemm(p->device, &(sli_gemm){.bf16 = p->precision == SL_PRECISION_BF16,
                                                  .tf32 = p->precision == SL_PRECISION_TF32,
                                                  .m = size,
                                                  .n = size,
                                                  .k = size,
                                                  .a = sl_tensor_data(abc[0]),
                                                  .lda = size,
                                                  .b = sl_tensor_data(abc[1]),
                                                  .ldb = size,
                                                  .c = sl_tensor_f32(abc[2]),
                                                  .ldc = size}));
    SL_TRY(sli_device_read(p->device, &result, sl_tensor_data(abc[2]), sizeof result));
    *seconds = sli_clock_seconds() - start;
    return SL_OK;
}

/* The first product of a size, for which a device may make a kernel, does not count. */
static sl_status time_products(probe *p, sl_tensor *const *abc, int64_t size, double *seconds)
{
    SL_TRY(time_product(p, abc, size, seconds));
    do {
        SL_TRY(time_product(p, abc, size, seconds));
        p->best = fmax(p->best, 2.0 * pow((double)size, 3) / *seconds);
    } while ((*seconds >= least_seconds || size == LARGEST) && sli_clock_seconds() < p->end);
    return SL_OK;
}

static sl_status probe_size(probe *p, int64_t size, double *seconds)
{
    sl_tensor *abc[3] = {NULL};
    sl_shape shape = sl_shape_2d(size, size);
    bool is_bf16 = p->precision == SL_PRECISION_BF16;
    sl_status status;
    for (int i = 0; i < 3; i++)
        SL_TRY_OR_FAIL(sl_tensor_create_zero(p->device, SL_MEMORY_WORKSPACE,
                                             is_bf16 && i < 2 ? SL_BF16 : SL_F32, &shape, &abc[i]));
    status = time_products(p, abc, size, seconds);
fail:
    for (int i = 0; i < 3; i++)
        sl_tensor_destroy(&abc[i]);
    return status;
}

/* The next size to try: one that takes long enough, as far as the last says. 0: there is none. */
static int64_t next_size(int64_t size, double seconds)
{
    double growth = fmin(2, cbrt(least_seconds / seconds));
    int64_t next = (int64_t)ceil(growth * (double)size / STEP) * STEP;
    if (seconds >= least_seconds || size == LARGEST)
        return 0;
    return next < LARGEST ? next : LARGEST;
}

static void run_probe(void *arg)
{
    probe *p = arg;
    double seconds = 0;
    sl_status status = SL_OK;
    p->end = sli_clock_seconds() + all_seconds;
    for (int64_t size = SMALLEST; status == SL_OK && size > 0; size = next_size(size, seconds))
        status = probe_size(p, size, &seconds);
    if (status == SL_ERR_MEMORY && p->best > 0)
        status = SL_OK; /* a smaller product is the best that there is memory for */
    sli_error_save(&p->error, status);
    sli_device_empty_cache(p->device);
    sl_device_reset_peak(p->device); /* the run's own memory is counted */
}

sl_status sli_measure_peak(sl_device *const *devices, int count, sl_precision precision,
                           double *flops_per_s)
{
    probe *probes = calloc((size_t)count, sizeof *probes);
    sl_status status = SL_OK;
    *flops_per_s = 0;
    if (!probes)
        return sli_no_memory(NULL, "the peak of %d devices", count);
    for (int i = 0; i < count; i++) {
        probes[i].device = devices[i];
        probes[i].precision = precision;
        SL_TRY_OR_FAIL(sli_worker_create(sli_device_bind_thread, devices[i], &probes[i].worker));
        sli_worker_start(probes[i].worker, run_probe, &probes[i]);
    }
fail:
    for (int i = 0; i < count && probes[i].worker; i++) {
        sli_worker_wait(probes[i].worker);
        sli_worker_destroy(&probes[i].worker);
        status = status == SL_OK ? sli_error_restore(&probes[i].error) : status;
        *flops_per_s += probes[i].best;
    }
    free(probes);
    return status;
}
