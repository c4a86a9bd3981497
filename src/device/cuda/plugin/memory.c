/* Memory comes from a pool of CUDA's for each device, in the order of its stream: what is released
 * while operations that use it are queued is handed out again behind them, without any wait.
 *
 * The list of open devices is shared by all threads of the process. No object of the library could
 * own it: ranks that are threads open and close device lists of their own at any time, without
 * knowing of each other, and access between two pools is a matter of the process, as CUDA's
 * contexts are. Each device is in the list from sli_cuda_pool_create to sli_cuda_pool_disconnect.
 */
#include "device/cuda/plugin/cuda_device.h"

#include <pthread.h>

/* ---- Access from other GPUs ------------------------------------------------------------- */

/* Only its own GPU may access a pool's memory until cudaMemPoolSetAccess allows another:
 * cudaDeviceEnablePeerAccess does not apply to pools. Copies to another device need no access, but
 * can be direct with it. NCCL may access the memory of ranks that are threads directly, and those
 * open their devices in any order: so each device that opens is connected to all that are open. */
static struct {
    pthread_mutex_t lock; /* guards `first` and each device's `next` */
    sli_cuda_device *first;
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Without an error where it cannot be: copies then take another way. */
static void allow_access(cudaMemPool_t pool, int owner, int gpu)
{
    int can = 0;
    const struct cudaMemAccessDesc access = {
        .location = {.type = cudaMemLocationTypeDevice, .id = gpu},
        .flags = cudaMemAccessFlagsProtReadWrite,
    };
    if (cudaDeviceCanAccessPeer(&can, gpu, owner) != cudaSuccess ||
        (can && cudaMemPoolSetAccess(pool, &access, 1) != cudaSuccess))
        (void)cudaGetLastError(); /* it was this call's */
}

static void connect_pool(sli_cuda_device *device)
{
    pthread_mutex_lock(&opened.lock);
    for (sli_cuda_device *other = opened.first; other; other = other->next) {
        if (other->gpu == device->gpu)
            continue;
        allow_access(device->pool, device->gpu, other->gpu);
        allow_access(other->pool, other->gpu, device->gpu);
    }
    device->next = opened.first;
    opened.first = device;
    pthread_mutex_unlock(&opened.lock);
}

void sli_cuda_pool_disconnect(sli_cuda_device *device)
{
    pthread_mutex_lock(&opened.lock);
    sli_cuda_device **at = &opened.first;
    while (*at && *at != device)
        at = &(*at)->next;
    if (*at)
        *at = device->next;
    pthread_mutex_unlock(&opened.lock);
}

/* ---- The pool --------------------------------------------------------------------------- */

sl_status sli_cuda_pool_create(sli_cuda_device *device)
{
    const sl_device *base = &device->base;
    int supported = 0;
    uint64_t keep = UINT64_MAX; /* what was released stays for the next step */
    struct cudaMemPoolProps properties = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = device->gpu},
    };
    SLI_CUDA_TRY(base, "its attributes",
                 cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device->gpu));
    if (!supported)
        return sl_error(SL_ERR_UNSUPPORTED, "%s: the GPU has no memory pools", base->name);
    SLI_CUDA_TRY(base, "create a memory pool", cudaMemPoolCreate(&device->pool, &properties));
    SLI_CUDA_TRY(base, "create a memory pool",
                 cudaMemPoolSetAttribute(device->pool, cudaMemPoolAttrReleaseThreshold, &keep));
    connect_pool(device);
    return SL_OK;
}

/* The bytes that the pool has of the GPU. A failure to read them is no failure of what asked. */
static void count_reserved(sli_cuda_device *device)
{
    uint64_t bytes;
    if (cudaMemPoolGetAttribute(device->pool, cudaMemPoolAttrReservedMemCurrent, &bytes) ==
        cudaSuccess)
        atomic_store(&device->base.reserved_bytes, bytes);
}

static cudaError_t trim_pool(sli_cuda_device *device)
{
    cudaError_t code = cudaStreamSynchronize(device->copies);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(device->stream);
    return code == cudaSuccess ? cudaMemPoolTrimTo(device->pool, 0) : code;
}

/* Once more after what is free has gone back to the GPU: in other sizes it may be enough. */
static cudaError_t allocate_again(sli_cuda_device *device, size_t bytes, void **out)
{
    (void)cudaGetLastError(); /* it was this call's */
    cudaError_t code = trim_pool(device);
    if (code == cudaSuccess)
        code = cudaMallocFromPoolAsync(out, bytes, device->pool, device->stream);
    return code;
}

static sl_status allocate(sl_device *device, size_t bytes, void **out)
{
    sli_cuda_device *self = sli_cuda(device);
    *out = NULL;
    SL_TRY(sli_cuda_enter(device));
    cudaError_t code = cudaMallocFromPoolAsync(out, bytes, self->pool, self->stream);
    if (code == cudaErrorMemoryAllocation)
        code = allocate_again(self, bytes, out);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return SL_ERR_MEMORY;
    }
    count_reserved(self);
    return sli_cuda_check(device, "allocate memory", code);
}

sl_status sli_cuda_allocate(sl_device *device, size_t bytes, void **out)
{
    SL_TRY(allocate(device, bytes, out));
    if (!sli_cuda(device)->fill)
        return SL_OK;
    return sli_cuda_check(device, "fill memory",
                          cudaMemsetAsync(*out, 0xFF, bytes, sli_cuda(device)->stream));
}

/* An error of what is queued is that of the next operation. */
void sli_cuda_release(sl_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    sli_cuda_scratch_free(device, memory);
}

void sli_cuda_empty_cache(sl_device *device)
{
    if (sli_cuda_enter(device) != SL_OK)
        return;
    if (trim_pool(sli_cuda(device)) == cudaSuccess)
        count_reserved(sli_cuda(device));
    else
        (void)cudaGetLastError(); /* it was this call's */
}

sl_status sli_cuda_scratch(sl_device *device, size_t bytes, void **out)
{
    *out = NULL;
    if (bytes == 0)
        return SL_OK;
    sl_status status = allocate(device, bytes, out);
    if (status == SL_ERR_MEMORY)
        return sli_device_out_of_memory(device, "an operation's scratch space", bytes);
    return status;
}

void sli_cuda_scratch_free(sl_device *device, void *scratch)
{
    if (scratch && sli_cuda_enter(device) == SL_OK)
        (void)cudaFreeAsync(scratch, sli_cuda(device)->stream);
}

/* ---- Copies ----------------------------------------------------------------------------- */

sl_status sli_cuda_copy(sl_device *device, void *to, const void *from, size_t bytes)
{
    SL_TRY(sli_cuda_enter(device));
    return sli_cuda_check(device, "copy",
                          cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                          sli_cuda(device)->stream));
}

sl_status sli_cuda_zero(sl_device *device, void *to, size_t bytes)
{
    SL_TRY(sli_cuda_enter(device));
    return sli_cuda_check(device, "zero", cudaMemsetAsync(to, 0, bytes, sli_cuda(device)->stream));
}

/* Pageable memory has been read when the call returns; but a caller's memory may be pinned. */
sl_status sli_cuda_write(sl_device *device, void *to, const void *host, size_t bytes)
{
    cudaStream_t stream = sli_cuda(device)->stream;
    struct cudaPointerAttributes attributes;
    SL_TRY(sli_cuda_enter(device));
    SLI_CUDA_TRY(device, "write", cudaPointerGetAttributes(&attributes, host));
    SLI_CUDA_TRY(device, "write", cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream));
    if (attributes.type == cudaMemoryTypeUnregistered)
        return SL_OK;
    return sli_cuda_check(device, "write", cudaStreamSynchronize(stream));
}

sl_status sli_cuda_read(sl_device *device, void *host, const void *from, size_t bytes)
{
    cudaStream_t stream = sli_cuda(device)->stream;
    SL_TRY(sli_cuda_enter(device));
    SLI_CUDA_TRY(device, "read",
                 cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream));
    return sli_cuda_check(device, "read", cudaStreamSynchronize(stream));
}
