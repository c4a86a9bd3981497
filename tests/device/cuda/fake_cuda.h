/* A CUDA runtime without a GPU: what sluice_cuda.so calls, on the CPU, so that tests run the code
 * of cuda/plugin/ as it is. Two GPUs, whose memory is the host's; with FAKE_CUDA_CLOSED set in the
 * environment it is closed to it, so that a direct access ends the process. With
 * FAKE_CUDA_ANY_MEMORY all memory of the process counts as the GPUs', too; with FAKE_CUDA_ZEROING
 * copies into opened pools leave zeros.
 *
 * Work is queued, as on a GPU, and done as late or as early as the rules allow, in an order drawn
 * from a seed: a queue goes on when the host waits for it, when another queue waits for an event
 * of it, and at random calls. Memory that is given back is filled with NaN when its queue comes to
 * that. So where the code lacks a wait, a result is wrong. */
#ifndef TESTS_DEVICE_CUDA_FAKE_CUDA_H
#define TESTS_DEVICE_CUDA_FAKE_CUDA_H

#include "device/cuda/fake_cuda_state.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

bool fake_is_device_memory(const void *memory);

/* Of cudaHostAlloc: a queued copy reads it when its turn comes. Other memory of the host is read by
 * the call. */
bool fake_is_pinned(const void *memory);

/* Queues work(argument) on a stream; the argument's bytes are copied. Work that returns
 * cudaErrorNotReady waits for another rank, and is called again. */
typedef cudaError_t fake_enqueue_function(cudaStream_t stream, cudaError_t (*work)(void *argument),
                                          const void *argument, size_t bytes);
fake_enqueue_function fake_enqueue;

struct CUstream_st {
    fake_enqueue_function *enqueue; /* for the fake NCCL, which is another shared object */
    struct fake_task *first, *last;
};

#endif
