/* A cache of memory blocks: training asks for the same sizes at every step. */
#ifndef SLI_DEVICE_CPU_CPU_MEMORY_H
#define SLI_DEVICE_CPU_CPU_MEMORY_H

#include "core/usable_memory.h"

typedef struct sli_memory_cache sli_memory_cache;

/* `reserved_bytes` is borrowed and kept at what the cache has taken from the system. With `fill`,
 * memory is filled with NaN when it is handed out and when it comes back. `bound` is borrowed, and
 * what the cache reserves is taken of it. NULL without memory. */
sli_memory_cache *sli_memory_cache_create(_Atomic uint64_t *reserved_bytes, bool fill,
                                          sli_memory_bound *bound);

/* Gives every cached block back to the system; blocks in use must have been released before. */
void sli_memory_cache_destroy(sli_memory_cache **cache);

/* A block of at least `bytes` > 0, 64-byte aligned, with undefined content; NULL if even with an
 * empty cache the system has none, or the bound leaves no room. Any thread may call. */
void *sli_memory_cache_take(sli_memory_cache *cache, size_t bytes);

/* Takes back what sli_memory_cache_take returned for the same `bytes`. Any thread may call. */
void sli_memory_cache_give(sli_memory_cache *cache, void *block, size_t bytes);

/* The bytes that a request for `bytes` takes: at most 63 or a 32nd more, whichever is more. */
size_t sli_memory_block_bytes(size_t bytes);

#endif
