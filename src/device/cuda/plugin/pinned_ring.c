/* Memory of the host on its way to a GPU.
 *
 * A copy from pageable memory goes through a buffer of the driver, whose size and waits nobody
 * knows. Here the bytes are copied into a ring of pinned memory, and the stream takes them from
 * there, so that the host goes on at once and a large copy is read and sent at the same time:
 *
 *     entry:     oldest            newest
 *     memory: ───[█████][███████][██]──────────    an entry is free when the stream has come to
 *                                   head           the event behind its copy
 *
 * An entry does not wrap around: what is left at the end of the memory goes with it. */
#include "device/cuda/plugin/cuda_device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RING_BYTES = 4 << 20, COPY_BYTES = RING_BYTES / 4, MOST_ENTRIES = 64 };

typedef struct entry {
    size_t bytes; /* of the ring, with what was left at its end */
    cudaEvent_t taken;
} entry;

struct sli_pinned_ring {
    pthread_mutex_t lock; /* guards what follows */
    char *memory;         /* [RING_BYTES] pinned */
    size_t head, used;    /* where the next entry begins; bytes of all entries */
    int first, count;     /* entries that are not free, in a ring of their own */
    entry entries[MOST_ENTRIES];
};

sl_status sli_pinned_ring_create(sl_device *device, sli_pinned_ring **out)
{
    sli_pinned_ring *ring = *out = calloc(1, sizeof *ring);
    if (!ring)
        return sl_error(SL_ERR_MEMORY, "sl_device: no memory for %s's own records", device->name);
    pthread_mutex_init(&ring->lock, NULL);
    SLI_CUDA_TRY(device, "pin memory of the host",
                 cudaHostAlloc((void **)&ring->memory, RING_BYTES, cudaHostAllocDefault));
    for (int i = 0; i < MOST_ENTRIES; i++)
        SLI_CUDA_TRY(device, "create an event",
                     cudaEventCreateWithFlags(&ring->entries[i].taken, cudaEventDisableTiming));
    return SL_OK;
}

void sli_pinned_ring_destroy(sli_pinned_ring **ring)
{
    sli_pinned_ring *dead = *ring;
    *ring = NULL;
    if (!dead)
        return;
    for (int i = 0; i < MOST_ENTRIES; i++)
        if (dead->entries[i].taken)
            (void)cudaEventDestroy(dead->entries[i].taken);
    if (dead->memory)
        (void)cudaFreeHost(dead->memory);
    pthread_mutex_destroy(&dead->lock);
    free(dead);
}

/* The oldest entries are waited for until there is room for `bytes` more and for an entry. */
static cudaError_t make_room(sli_pinned_ring *ring, size_t bytes)
{
    while (ring->used + bytes > RING_BYTES || ring->count == MOST_ENTRIES) {
        entry *oldest = &ring->entries[ring->first];
        cudaError_t code = cudaEventSynchronize(oldest->taken);
        if (code != cudaSuccess)
            return code;
        ring->used -= oldest->bytes;
        ring->first = (ring->first + 1) % MOST_ENTRIES;
        ring->count--;
    }
    return cudaSuccess;
}

static cudaError_t send_entry(sli_pinned_ring *ring, void *to, const void *host, size_t bytes,
                              cudaStream_t stream)
{
    size_t left = RING_BYTES - ring->head, skipped = left < bytes ? left : 0;
    cudaError_t code = make_room(ring, skipped + bytes);
    if (code != cudaSuccess)
        return code;
    size_t start = (ring->head + skipped) % RING_BYTES;
    entry *newest = &ring->entries[(ring->first + ring->count) % MOST_ENTRIES];
    memcpy(ring->memory + start, host, bytes);
    code = cudaMemcpyAsync(to, ring->memory + start, bytes, cudaMemcpyHostToDevice, stream);
    if (code == cudaSuccess)
        code = cudaEventRecord(newest->taken, stream);
    if (code != cudaSuccess)
        return code;
    newest->bytes = skipped + bytes;
    ring->head = (start + bytes) % RING_BYTES;
    ring->used += newest->bytes;
    ring->count++;
    return cudaSuccess;
}

cudaError_t sli_pinned_ring_send(sli_pinned_ring *ring, void *to, const void *host, size_t bytes,
                                 cudaStream_t stream)
{
    cudaError_t code = cudaSuccess;
    pthread_mutex_lock(&ring->lock);
    for (size_t sent = 0; sent < bytes && code == cudaSuccess; sent += COPY_BYTES) {
        size_t count = bytes - sent < COPY_BYTES ? bytes - sent : COPY_BYTES;
        code = send_entry(ring, (char *)to + sent, (const char *)host + sent, count, stream);
    }
    pthread_mutex_unlock(&ring->lock);
    return code;
}
