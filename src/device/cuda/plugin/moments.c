/* When a stream comes to an event, on the host's clock.
 *
 * CUDA tells how much time lies between two events. The device keeps one event whose time on the
 * host's clock it knows, its reference: first one for which the host waited when the device was
 * opened, then the latest moment that was asked for, since differences are floats, exact to half a
 * microsecond up to some seconds alone. Two clocks drift apart; but no moment is before the host
 * asked for its event, nor after the host has seen it. */
#include "core/clock.h"
#include "device/cuda/plugin/cuda_device.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

struct sli_time_reference {
    pthread_mutex_t lock; /* guards what follows */
    cudaEvent_t event;
    double seconds;
};

void *sli_cuda_moment(sl_device *device)
{
    cudaEvent_t event = NULL;
    if (sli_cuda_enter(device) == SL_OK && cudaEventCreate(&event) == cudaSuccess &&
        cudaEventRecord(event, sli_cuda(device)->stream) == cudaSuccess)
        return event;
    (void)cudaGetLastError(); /* it was this call's */
    if (event)
        (void)cudaEventDestroy(event);
    return NULL;
}

sl_status sli_time_reference_create(sl_device *device, sli_time_reference **out)
{
    sli_time_reference *reference = *out = calloc(1, sizeof *reference);
    if (!reference)
        return sl_error(SL_ERR_MEMORY, "sl_device: no memory for %s's own records", device->name);
    pthread_mutex_init(&reference->lock, NULL);
    SLI_CUDA_TRY(device, "create an event", cudaEventCreate(&reference->event));
    SLI_CUDA_TRY(device, "record an event",
                 cudaEventRecord(reference->event, sli_cuda(device)->stream));
    SLI_CUDA_TRY(device, "wait for an event", cudaEventSynchronize(reference->event));
    reference->seconds = sli_clock_seconds();
    return SL_OK;
}

void sli_time_reference_destroy(sli_time_reference **reference)
{
    sli_time_reference *dead = *reference;
    *reference = NULL;
    if (!dead)
        return;
    if (dead->event)
        (void)cudaEventDestroy(dead->event);
    pthread_mutex_destroy(&dead->lock);
    free(dead);
}

sl_status sli_cuda_end_moment(sl_device *device, void *moment, double made, double *seconds)
{
    sli_time_reference *reference = sli_cuda(device)->reference;
    cudaEvent_t event = moment, free_event = event;
    float milliseconds = 0;
    *seconds = made;
    SL_TRY(sli_cuda_enter(device));
    cudaError_t code = cudaEventSynchronize(event);
    double seen = sli_clock_seconds();
    pthread_mutex_lock(&reference->lock);
    if (code == cudaSuccess)
        code = cudaEventElapsedTime(&milliseconds, reference->event, event);
    if (code == cudaSuccess)
        *seconds = fmin(fmax(reference->seconds + milliseconds / 1e3, made), seen);
    if (code == cudaSuccess && *seconds > reference->seconds) {
        free_event = reference->event;
        reference->event = event;
        reference->seconds = *seconds;
    }
    pthread_mutex_unlock(&reference->lock);
    (void)cudaEventDestroy(free_event);
    return sli_cuda_check(device, "read a time", code);
}
