/* Blocks come in size classes: multiples of 64 bytes up to 2 KiB, then 32 classes for each power of
 * two. A request's class follows from its size alone, so a block needs no header and a released
 * one fits every later request of its class. Free blocks of a class form a list through their first
 * word. Large blocks are huge pages: a training step touches them all.
 *
 * Under AddressSanitizer nothing is cached, so that it sees every wrong access. */
#include "device/cpu/cpu_device.h"

#include "core/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALLEST = 64,
    FINE_LOG = 11,
    FINE_LIMIT = 1 << FINE_LOG,
    STEPS = 32,
    POWERS = 47, /* of two, beyond FINE_LIMIT */
    CLASSES = FINE_LIMIT / SMALLEST + POWERS * STEPS
};
static const size_t largest = (size_t)1 << (FINE_LOG + POWERS);

#if defined(__SANITIZE_ADDRESS__)
static const bool caching = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
static const bool caching = false;
#else
static const bool caching = true;
#endif
#else
static const bool caching = true;
#endif

typedef struct free_block {
    struct free_block *next;
} free_block;

struct sli_memory_cache {
    _Atomic uint64_t *reserved_bytes;
    bool fill;
    sli_memory_bound *bound;
    pthread_mutex_t lock; /* guards `lists` */
    free_block *lists[CLASSES];
};

typedef struct size_class {
    int index;
    size_t bytes;
} size_class;

static size_class class_of(size_t bytes)
{
    if (bytes <= FINE_LIMIT) {
        size_t index = bytes ? (bytes - 1) / SMALLEST : 0;
        return (size_class){(int)index, (index + 1) * SMALLEST};
    }
    int log = 63 - __builtin_clzll((unsigned long long)bytes - 1); /* 2^log < bytes <= 2^(log+1) */
    size_t step = ((size_t)1 << log) / STEPS;
    size_t steps = (bytes - ((size_t)1 << log) + step - 1) / step; /* 1 … STEPS */
    int index = FINE_LIMIT / SMALLEST + (log - FINE_LOG) * STEPS + (int)steps - 1;
    return (size_class){index, ((size_t)1 << log) + steps * step};
}

size_t sli_memory_block_bytes(size_t bytes)
{
    return class_of(bytes).bytes;
}

sli_memory_cache *sli_memory_cache_create(_Atomic uint64_t *reserved_bytes, bool fill,
                                          sli_memory_bound *bound)
{
    sli_memory_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return NULL;
    cache->reserved_bytes = reserved_bytes;
    cache->fill = fill;
    cache->bound = bound;
    pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

static void *allocate_block(sli_memory_cache *cache, size_t bytes)
{
    if (!sli_memory_bound_reserve(cache->bound, bytes))
        return NULL;
    void *block = sli_huge_pages_alloc(bytes);
    if (block)
        atomic_fetch_add(cache->reserved_bytes, bytes);
    else
        sli_memory_bound_release(cache->bound, bytes);
    return block;
}

static void return_block(sli_memory_cache *cache, void *block, size_t bytes)
{
    free(block);
    atomic_fetch_sub(cache->reserved_bytes, bytes);
    sli_memory_bound_release(cache->bound, bytes);
}

static size_t bytes_of_class(int index)
{
    int fine = FINE_LIMIT / SMALLEST;
    if (index < fine)
        return ((size_t)index + 1) * SMALLEST;
    size_t power = (size_t)1 << (FINE_LOG + (index - fine) / STEPS);
    return power + (size_t)((index - fine) % STEPS + 1) * (power / STEPS);
}

void sli_memory_cache_empty(sli_memory_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    for (int index = 0; index < CLASSES; index++)
        while (cache->lists[index]) {
            free_block *block = cache->lists[index];
            cache->lists[index] = block->next;
            return_block(cache, block, bytes_of_class(index));
        }
    pthread_mutex_unlock(&cache->lock);
}

void sli_memory_cache_destroy(sli_memory_cache **cache)
{
    if (!*cache)
        return;
    sli_memory_cache_empty(*cache);
    pthread_mutex_destroy(&(*cache)->lock);
    free(*cache);
    *cache = NULL;
}

static void *take_cached(sli_memory_cache *cache, int index)
{
    pthread_mutex_lock(&cache->lock);
    free_block *block = cache->lists[index];
    if (block)
        cache->lists[index] = block->next;
    pthread_mutex_unlock(&cache->lock);
    return block;
}

/* Without a cache, exactly what was asked for: the sanitizer then sees its end. */
static size_t bytes_to_allocate(size_t bytes)
{
    return caching ? class_of(bytes).bytes : bytes;
}

void *sli_memory_cache_allocate(sli_memory_cache *cache, size_t bytes)
{
    if (bytes > largest)
        return NULL;
    size_class class = class_of(bytes);
    void *block = take_cached(cache, class.index);
    size_t wanted = bytes_to_allocate(bytes);
    if (!block)
        block = allocate_block(cache, wanted);
    if (!block) {
        sli_memory_cache_empty(cache);
        block = allocate_block(cache, wanted);
    }
    if (block && cache->fill)
        memset(block, 0xFF, bytes); /* all bits set is a NaN in every float type */
    return block;
}

void sli_memory_cache_release(sli_memory_cache *cache, void *block, size_t bytes)
{
    if (!caching) {
        return_block(cache, block, bytes);
        return;
    }
    if (cache->fill)
        memset(block, 0xFF, bytes);
    int index = class_of(bytes).index;
    free_block *freed = block;
    pthread_mutex_lock(&cache->lock);
    freed->next = cache->lists[index];
    cache->lists[index] = freed;
    pthread_mutex_unlock(&cache->lock);
}

void sli_memory_cache_discard(sli_memory_cache *cache, void *block, size_t bytes)
{
    return_block(cache, block, bytes_to_allocate(bytes));
}
