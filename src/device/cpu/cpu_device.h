/* The CPU device: a set of cores with a pool of threads, a memory cache and a table of kernels. */
#ifndef SLI_DEVICE_CPU_CPU_DEVICE_H
#define SLI_DEVICE_CPU_CPU_DEVICE_H

#include "core/threads.h"
#include "core/usable_memory.h"
#include "device/cores.h"
#include "device/cpu/heights.h"
#include "device/cpu/kernels.h"
#include "device/cpu/onednn.h"
#include "device/device_base.h"

/* ---- Memory: a cache of blocks, since training asks for the same sizes at every step ---- */

typedef struct sli_memory_cache sli_memory_cache;

/* `reserved_bytes` is borrowed and kept at what the cache has taken from the system. With `fill`,
 * memory is filled with NaN when it is handed out and when it comes back. `bound` is borrowed, and
 * what the cache reserves is taken of it. NULL without memory. */
sli_memory_cache *sli_memory_cache_create(_Atomic uint64_t *reserved_bytes, bool fill,
                                          sli_memory_bound *bound);

/* Gives every cached block back to the system. Any thread may call. */
void sli_memory_cache_empty(sli_memory_cache *cache);

/* The same; blocks in use must have been released before. */
void sli_memory_cache_destroy(sli_memory_cache **cache);

/* A block of at least `bytes` > 0, 64-byte aligned, with undefined content; NULL if even with an
 * empty cache the system has none, or the bound leaves no room. Any thread may call. */
void *sli_memory_cache_allocate(sli_memory_cache *cache, size_t bytes);

/* Takes back what sli_memory_cache_allocate returned for the same `bytes`. Any thread may call. */
void sli_memory_cache_release(sli_memory_cache *cache, void *block, size_t bytes);

/* The same of a block whose content nobody needs: it goes back to the system, not to the cache. */
void sli_memory_cache_discard(sli_memory_cache *cache, void *block, size_t bytes);

/* The bytes that a request for `bytes` takes: at most 63 or a 32nd more, whichever is more. */
size_t sli_memory_block_bytes(size_t bytes);

/* ---- The device ------------------------------------------------------------------------- */

/* Zero fields are defaults. */
typedef struct sli_cpu_options {
    const char *name;
    int threads;             /* at least 1 */
    const int *cores;        /* [threads] system numbers to bind threads to, or NULL */
    sli_memory_bound *bound; /* of all devices of a list; NULL: one of its own */
    bool shared;             /* others compute on these cores as well: idle threads sleep at once */
    const char *isa;         /* "avx512", …; NULL: what SL_ISA says, or the best */
} sli_cpu_options;

/* Errors: SL_ERR_INVALID for an unknown instruction set, SL_ERR_UNSUPPORTED for one that the
 * processor lacks. */
sl_status sli_cpu_device_create(const sli_cpu_options *options, sl_device **out);

/* Creates the devices of a request on these cores, as sli_cpu_kind.create does on those found, and
 * lowers their quota to this process's. */
sl_status sli_cpu_devices_create(const sli_device_request *request, sli_cores *found,
                                 sl_device **out, bool *shared);

/* Locks are taken in the order matmul's, heights', scratch_lock, the memory cache's. */
typedef struct sli_cpu_device {
    sl_device base;
    sli_pool *pool;
    const sli_cpu_kernels *kernels;
    bool has_amx; /* products of bf16 by AMX */
    sli_memory_bound own_bound;
    sli_memory_cache *memory;
    sli_matmul *matmul;
    sli_heights heights;
    /* Partial sums of one kernel, SLI_SCRATCH_FLOATS at most, or a product's panels. A kernel that
     * uses it holds the lock. */
    pthread_mutex_t scratch_lock;
    float *scratch;
    int64_t scratch_floats;
} sli_cpu_device;

enum { SLI_SCRATCH_FLOATS = 1024 * 1024, SLI_AMX_THREAD_FLOATS = 448 * 1024 };

static inline sli_cpu_device *sli_cpu(sl_device *device)
{
    return (sli_cpu_device *)device;
}

/* ---- Slots of the operation table, one file a group ------------------------------------- */

sl_status sli_cpu_copy(sl_device *device, void *to, const void *from, size_t bytes);
sl_status sli_cpu_zero(sl_device *device, void *to, size_t bytes);
sl_status sli_cpu_gemm(sl_device *device, const sli_gemm *arguments);
sl_status sli_cpu_epilogue(sl_device *device, const sli_epilogue *arguments);
sl_status sli_cpu_epilogue_backward(sl_device *device, const sli_epilogue_backward *arguments);
sl_status sli_cpu_embedding(sl_device *device, const sli_embedding *arguments);
sl_status sli_cpu_embedding_backward(sl_device *device, const sli_embedding_backward *arguments);
sl_status sli_cpu_add_dropout(sl_device *device, const sli_add_dropout *arguments);
sl_status sli_cpu_swiglu(sl_device *device, const sli_swiglu *arguments);
sl_status sli_cpu_swiglu_backward(sl_device *device, const sli_swiglu_backward *arguments);
sl_status sli_cpu_rotary(sl_device *device, const sli_rotary *arguments);
sl_status sli_cpu_add_norm(sl_device *device, const sli_add_norm *arguments);
sl_status sli_cpu_add_norm_backward(sl_device *device, const sli_add_norm_backward *arguments);
sl_status sli_cpu_attention(sl_device *device, const sli_attention *arguments);
sl_status sli_cpu_attention_backward(sl_device *device, const sli_attention_backward *arguments);
sl_status sli_cpu_cross_entropy(sl_device *device, const sli_cross_entropy *arguments);
sl_status sli_cpu_cross_entropy_bias(sl_device *device, const sli_cross_entropy *arguments);
sl_status sli_cpu_convert(sl_device *device, const sli_convert *arguments);
sl_status sli_cpu_add(sl_device *device, int64_t count, float *to, const float *from);
sl_status sli_cpu_sgd(sl_device *device, const sli_sgd *arguments);
sl_status sli_cpu_adamw(sl_device *device, const sli_adamw *arguments);
sl_status sli_cpu_norm_terms(sl_device *device, const sli_norm_terms *arguments);
sl_status sli_cpu_initialize(sl_device *device, const sli_init *init, uint64_t seed, uint32_t site,
                             int64_t count, float *to);

#endif
