/* Memory comes from a pool of CUDA's for each device, in the order of its stream: what is released
 * while operations that use it are queued is handed out again behind them, without any wait.
 *
 * The list of opened pools is shared by all threads of the process. No object of the library could
 * own it: ranks that are threads open and close device lists of their own at any time, without
 * knowing of each other, and access between two pools is a matter of the process, as CUDA's
 * contexts are. Each device is in the list from sli_cuda_pool_open until it is destroyed. */
#include "device/cuda/plugin/cuda_device.h"

#include <pthread.h>

/* ---- Access from other GPUs ------------------------------------------------------------- */

/* Only its own GPU may access a pool's memory until cudaMemPoolSetAccess allows another:
 * cudaDeviceEnablePeerAccess does not apply to pools. Copies to another device need no access. NCCL
 * does: it accesses the memory of ranks that are threads directly. Those join in any order, so each
 * device whose pool is opened is connected to all that are.
 *
 * Some drivers leave zeros where a peer copy into an opened pool should have written (NVIDIA bug
 * 6098762), so a pattern is copied each way before anything depends on it. */
static struct {
    pthread_mutex_t lock; /* guards `first` and each device's `next` */
    sli_cuda_device *first;
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* False where it cannot be: NCCL then takes another way. */
static bool allow_access(cudaMemPool_t pool, int owner, int gpu)
{
    int can = 0;
    const struct cudaMemAccessDesc access = {
        .location = {.type = cudaMemLocationTypeDevice, .id = gpu},
        .flags = cudaMemAccessFlagsProtReadWrite,
    };
    if (cudaDeviceCanAccessPeer(&can, gpu, owner) == cudaSuccess && can &&
        cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess)
        return true;
    (void)cudaGetLastError(); /* it was this call's */
    return false;
}

static sl_status copy_pattern(sl_device *sender, void *source, sl_device *receiver, void *target)
{
    enum { WORDS = 4096 };
    uint32_t pattern[WORDS], got[WORDS];
    for (uint32_t i = 0; i < WORDS; i++)
        pattern[i] = (i + 1) * 2654435761u;
    SL_TRY(sli_cuda_write(sender, source, pattern, sizeof pattern));
    void *mark = sli_cuda_mark(sender);
    sl_status status = sli_cuda_deliver(sender, mark, source, receiver, target, sizeof pattern);
    sli_cuda_drop_mark(sender, mark);
    SL_TRY(status);
    SL_TRY(sli_cuda_read(receiver, got, target, sizeof got));
    for (int i = 0; i < WORDS; i++)
        if (got[i] != pattern[i])
            return sl_error(SL_ERR_UNSUPPORTED,
                            "copies from %s to %s arrive changed (word %d is %08x, expected %08x): "
                            "the driver is faulty where one GPU may access another's memory pool; "
                            "give each GPU a process of its own, or a newer driver",
                            sender->name, receiver->name, i, (unsigned)got[i],
                            (unsigned)pattern[i]);
    return SL_OK;
}

static sl_status check_copies(sl_device *sender, sl_device *receiver)
{
    enum { BYTES = 4096 * sizeof(uint32_t) };
    void *source, *target = NULL;
    SL_TRY(sli_cuda_scratch(sender, BYTES, &source));
    sl_status status;
    SL_TRY_OR_FAIL(sli_cuda_scratch(receiver, BYTES, &target));
    status = copy_pattern(sender, source, receiver, target);
fail:
    sli_cuda_scratch_free(receiver, target);
    sli_cuda_scratch_free(sender, source);
    return status;
}

static sl_status connect_pools(sli_cuda_device *one, sli_cuda_device *other)
{
    if (one->gpu == other->gpu)
        return SL_OK;
    bool there = allow_access(other->pool, other->gpu, one->gpu);
    bool back = allow_access(one->pool, one->gpu, other->gpu);
    if (!there && !back)
        return SL_OK;
    SL_TRY(check_copies(&one->base, &other->base));
    return check_copies(&other->base, &one->base);
}

static bool is_in_list(const sli_cuda_device *device)
{
    const sli_cuda_device *known = opened.first;
    while (known && known != device)
        known = known->next;
    return known != NULL;
}

/* Adds it to the list, connected with all that are in it; the lock is held. */
static sl_status connect_device(sli_cuda_device *device)
{
    if (is_in_list(device))
        return SL_OK;
    for (sli_cuda_device *other = opened.first; other; other = other->next)
        SL_TRY(connect_pools(device, other));
    device->next = opened.first;
    opened.first = device;
    return SL_OK;
}

sl_status sli_cuda_pool_open(sl_device *device)
{
    pthread_mutex_lock(&opened.lock);
    sl_status status = connect_device(sli_cuda(device));
    pthread_mutex_unlock(&opened.lock);
    return status;
}

void sli_cuda_pool_disconnect(sli_cuda_device *device)
{
    pthread_mutex_lock(&opened.lock);
    sli_cuda_device **link = &opened.first;
    while (*link && *link != device)
        link = &(*link)->next;
    if (*link)
        *link = device->next;
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

/* Gives the free blocks back to the GPU, then tries again: the memory may suffice in one piece. */
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

/* The next operation reports the errors of what is queued. */
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

/* The host's memory is the caller's again when this returns. Pinned memory needs no ring. */
sl_status sli_cuda_write(sl_device *device, void *to, const void *host, size_t bytes)
{
    cudaStream_t stream = sli_cuda(device)->stream;
    struct cudaPointerAttributes attributes;
    SL_TRY(sli_cuda_enter(device));
    SLI_CUDA_TRY(device, "write", cudaPointerGetAttributes(&attributes, host));
    if (attributes.type == cudaMemoryTypeUnregistered)
        return sli_cuda_check(device, "write",
                              sli_pinned_ring_send(sli_cuda(device)->ring, to, host, bytes,
                                                   stream));
    SLI_CUDA_TRY(device, "write", cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream));
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
