/* How a tensor gets to another device.
 *
 *     sender's stream     ── forward m ──●──── forward m + 1 ────
 *                                   mark │ waited for
 *     receiver's stream   ───────────────●─ copy ─●─ forward m ──
 *                                                 │ waited for
 *     sender's `copies`   ────────────────────────●─ release ────
 *
 * The receiver's host thread queues the copy when it takes the tensor, so that its stream waits for
 * what was queued before the mark and for nothing else. The sender's memory is free when `copies`
 * has come by: its stream never waits. A device that is not CUDA's gets the bytes from the host. */
#include "device/cuda/plugin/cuda_device.h"

cudaError_t sli_cuda_wait_for_stream(cudaStream_t waiting, cudaStream_t stream)
{
    cudaEvent_t event;
    cudaError_t code = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (code != cudaSuccess)
        return code;
    code = cudaEventRecord(event, stream);
    if (code == cudaSuccess)
        code = cudaStreamWaitEvent(waiting, event, 0);
    (void)cudaEventDestroy(event); /* once it has come */
    return code;
}

void *sli_cuda_mark(sl_device *device)
{
    cudaEvent_t event = NULL;
    cudaStream_t stream = sli_cuda(device)->stream;
    if (sli_cuda_enter(device) != SL_OK)
        return NULL;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
        cudaEventRecord(event, stream) == cudaSuccess)
        return event;
    if (event)
        (void)cudaEventDestroy(event);
    (void)cudaStreamSynchronize(stream); /* its error is the next operation's */
    return NULL;
}

void sli_cuda_drop_mark(sl_device *device, void *mark)
{
    (void)device;
    if (mark)
        (void)cudaEventDestroy(mark);
}

static cudaError_t copy_to_host(sli_cuda_device *self, cudaEvent_t mark, const void *from,
                                void *memory, size_t bytes)
{
    cudaError_t code = mark ? cudaStreamWaitEvent(self->copies, mark, 0) : cudaSuccess;
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(memory, from, bytes, cudaMemcpyDeviceToHost, self->copies);
    return code == cudaSuccess ? cudaStreamSynchronize(self->copies) : code;
}

/* On the receiver's GPU, which is the current one. */
static cudaError_t copy_to_gpu(sli_cuda_device *self, cudaEvent_t mark, const void *from,
                               sli_cuda_device *receiver, void *memory, size_t bytes)
{
    cudaError_t code = mark ? cudaStreamWaitEvent(receiver->stream, mark, 0) : cudaSuccess;
    if (code == cudaSuccess)
        code = cudaMemcpyPeerAsync(memory, receiver->gpu, from, self->gpu, bytes, receiver->stream);
    return code == cudaSuccess ? sli_cuda_wait_for_stream(self->copies, receiver->stream) : code;
}

sl_status sli_cuda_deliver(sl_device *device, void *mark, const void *from, sl_device *receiver,
                           void *memory, size_t bytes)
{
    sli_cuda_device *self = sli_cuda(device);
    bool is_cuda = receiver->ops == device->ops;
    SL_TRY(sli_cuda_enter(is_cuda ? receiver : device));
    return sli_cuda_check(device, "copy to another device",
                          is_cuda ? copy_to_gpu(self, mark, from, sli_cuda(receiver), memory, bytes)
                                  : copy_to_host(self, mark, from, memory, bytes));
}

void sli_cuda_release_delivered(sl_device *device, void *memory, size_t bytes)
{
    sli_cuda_device *self = sli_cuda(device);
    (void)bytes;
    if (sli_cuda_enter(device) == SL_OK &&
        sli_cuda_wait_for_stream(self->copies, self->stream) == cudaSuccess)
        (void)cudaFreeAsync(memory, self->copies);
}
