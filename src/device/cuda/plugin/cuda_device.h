/* A CUDA device: two streams and a memory pool on one GPU. Operations are queued on `stream`; the
 * host waits only where it gets a result. */
#ifndef SLI_DEVICE_CUDA_PLUGIN_CUDA_DEVICE_H
#define SLI_DEVICE_CUDA_PLUGIN_CUDA_DEVICE_H

#include "device/cuda/cuda_plugin.h"

#include <cuda_runtime_api.h>

typedef struct sli_products sli_products;
typedef struct sli_pinned_ring sli_pinned_ring;
typedef struct sli_time_reference sli_time_reference;

typedef struct sli_cuda_device {
    sl_device base;
    struct sli_cuda_device *next; /* of those whose pool is opened (memory_pool.c) */
    char isa[16];
    int gpu;
    bool fill;
    cudaStream_t stream; /* of operations */
    cudaStream_t copies; /* what other devices take, and when its memory is free */
    cudaMemPool_t pool;
    sli_pinned_ring *ring;
    sli_time_reference *reference;
    sli_products *products;
} sli_cuda_device;

static inline sli_cuda_device *sli_cuda(sl_device *device)
{
    return (sli_cuda_device *)device;
}

/* SL_OK, or the error of a call of CUDA: "cuda:0: copy: an illegal memory access …". */
sl_status sli_cuda_check(const sl_device *device, const char *what, cudaError_t code);

#define SLI_CUDA_TRY(device, what, call) SL_TRY(sli_cuda_check(device, what, call))

/* Every function that calls CUDA begins with this: the GPU is the calling thread's. */
sl_status sli_cuda_enter(sl_device *device);

/* ---- Memory (memory_pool.c) ------------------------------------------------------------------ */

/* The device's own pool, which its GPU alone may access.
 * Errors: SL_ERR_UNSUPPORTED for a GPU without memory pools. */
sl_status sli_cuda_pool_create(sli_cuda_device *device);

/* Lets the GPUs of all devices for which this was called access each other's pools directly, where
 * they can, and compares what is copied between them then. Calls after the first do nothing.
 * Errors: SL_ERR_UNSUPPORTED where a copy arrives changed. */
sl_status sli_cuda_pool_open(sl_device *device);

/* Before the pool is destroyed: later devices are not connected to it. */
void sli_cuda_pool_disconnect(sli_cuda_device *device);

/* Memory for one operation, which goes back in the order of the stream. */
sl_status sli_cuda_scratch(sl_device *device, size_t bytes, void **out);
void sli_cuda_scratch_free(sl_device *device, void *scratch);

sl_status sli_cuda_allocate(sl_device *device, size_t bytes, void **out);
void sli_cuda_release(sl_device *device, void *memory, size_t bytes);
void sli_cuda_empty_cache(sl_device *device);
sl_status sli_cuda_copy(sl_device *device, void *to, const void *from, size_t bytes);
sl_status sli_cuda_zero(sl_device *device, void *to, size_t bytes);
sl_status sli_cuda_write(sl_device *device, void *to, const void *host, size_t bytes);
sl_status sli_cuda_read(sl_device *device, void *host, const void *from, size_t bytes);

/* ---- From the host (pinned_ring.c) ------------------------------------------------------ */

/* The GPU is the current one. After an error *out is to be destroyed. */
sl_status sli_pinned_ring_create(sl_device *device, sli_pinned_ring **out);

/* What was sent has been taken. */
void sli_pinned_ring_destroy(sli_pinned_ring **ring);

/* Queues a copy of memory of the host, which is the caller's again when the call returns. Waits for
 * earlier copies where too many are under way. Threads may call at the same time, with one stream.
 */
cudaError_t sli_pinned_ring_send(sli_pinned_ring *ring, void *to, const void *host, size_t bytes,
                                 cudaStream_t stream);

/* ---- Between devices (deliver.c) -------------------------------------------------------- */

/* Makes `waiting` wait for what is queued on `stream`, which belongs to the current GPU. */
cudaError_t sli_cuda_wait_for_stream(cudaStream_t waiting, cudaStream_t stream);

void *sli_cuda_mark(sl_device *device);
void sli_cuda_drop_mark(sl_device *device, void *mark);
sl_status sli_cuda_deliver(sl_device *device, void *mark, const void *from, sl_device *receiver,
                           void *memory, size_t bytes);
void sli_cuda_release_delivered(sl_device *device, void *memory, size_t bytes);

/* ---- Time (moments.c) ------------------------------------------------------------------- */

/* The GPU is the current one. After an error *out is to be destroyed. */
sl_status sli_time_reference_create(sl_device *device, sli_time_reference **out);
void sli_time_reference_destroy(sli_time_reference **reference);

void *sli_cuda_moment(sl_device *device);
sl_status sli_cuda_end_moment(sl_device *device, void *moment, double made, double *seconds);

/* ---- Between ranks (communicator.c) -------------------------------------------------------------
 */

extern const sli_nccl_ops sli_cuda_nccl;

/* ---- Products (products.c) -------------------------------------------------------------- */

sl_status sli_products_create(sl_device *device, sli_products **out);
void sli_products_destroy(sli_products **products);
sl_status sli_cuda_gemm(sl_device *device, const sli_gemm *g);

/* ---- Kernels (cuda_operations.c) ------------------------------------------------------------- */

sl_status sli_cuda_epilogue(sl_device *device, const sli_epilogue *arguments);
sl_status sli_cuda_epilogue_backward(sl_device *device, const sli_epilogue_backward *arguments);
sl_status sli_cuda_embedding(sl_device *device, const sli_embedding *arguments);
sl_status sli_cuda_embedding_backward(sl_device *device, const sli_embedding_backward *arguments);
sl_status sli_cuda_add_dropout(sl_device *device, const sli_add_dropout *arguments);
sl_status sli_cuda_swiglu(sl_device *device, const sli_swiglu *arguments);
sl_status sli_cuda_swiglu_backward(sl_device *device, const sli_swiglu_backward *arguments);
sl_status sli_cuda_rotary(sl_device *device, const sli_rotary *arguments);
sl_status sli_cuda_add_norm(sl_device *device, const sli_add_norm *arguments);
sl_status sli_cuda_add_norm_backward(sl_device *device, const sli_add_norm_backward *arguments);
sl_status sli_cuda_attention(sl_device *device, const sli_attention *arguments);
sl_status sli_cuda_attention_backward(sl_device *device, const sli_attention_backward *arguments);
sl_status sli_cuda_cross_entropy(sl_device *device, const sli_cross_entropy *arguments);
sl_status sli_cuda_convert(sl_device *device, const sli_convert *arguments);
sl_status sli_cuda_add(sl_device *device, int64_t count, float *to, const float *from);
sl_status sli_cuda_sgd(sl_device *device, const sli_sgd *arguments);
sl_status sli_cuda_adamw(sl_device *device, const sli_adamw *arguments);
sl_status sli_cuda_norm_terms(sl_device *device, const sli_norm_terms *arguments);
sl_status sli_cuda_initialize(sl_device *device, const sli_init *init, uint64_t seed, uint32_t site,
                              int64_t count, float *to);

#endif
