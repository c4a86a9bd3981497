/* What an implementation of devices provides: a table of operations behind a struct sl_device, and
 * a kind, which makes devices of the names in a list. */
#ifndef SLI_DEVICE_DEVICE_BASE_H
#define SLI_DEVICE_DEVICE_BASE_H

#include "core/usable_memory.h"
#include "device/device.h"
#include "device/nccl.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SLI_DEVICE_NAME_BYTES = 32 };

/* The table that an implementation fills. A slot computes what device.h says at its arguments'
 * struct. Arguments are checked before it is called, and it is never called for nothing: counts,
 * bytes, rows and widths are at least 1, but for the rows of the two sums over rows
 * (epilogue_backward, add_norm_backward) and for gemm's k. A slot that fails returns an error with
 * a sentence. Every slot is required, unless it says (optional: what happens without it). */
typedef struct sli_device_ops {
    void (*destroy)(sl_device *device);
    /* 64-byte aligned memory, from the device's cache or the system, with undefined content. When
     * there is none, SL_ERR_MEMORY; the caller words that error. */
    sl_status (*allocate)(sl_device *device, size_t bytes, void **out);
    /* (optional: allocate, then zero) The same with zeros as its content. */
    sl_status (*allocate_zero)(sl_device *device, size_t bytes, void **out);
    void (*release)(sl_device *device, void *memory, size_t bytes);
    /* (optional: as release) Releases memory whose content nobody needs: it goes back to the
     * system, not to the cache. */
    void (*discard)(sl_device *device, void *memory, size_t bytes);
    /* (optional: nothing is cached) Gives memory that was released back to the system. */
    void (*empty_cache)(sl_device *device);

    /* For devices whose operations are queued, and whose memory neither the host nor other devices
     * reach (optional, all or none: every operation has finished when it returns, and all such
     * devices and the host reach the memory). An operation of such a device is finished when
     * `read`, or what else gives the host a result, returns; queued operations run in the order of
     * the calls. */
    /* A mark stands for all that is queued so far. NULL: all of it has finished. `drop_mark` frees
     * it. */
    void *(*mark)(sl_device *device);
    void (*drop_mark)(sl_device *device, void *mark);
    /* Copies to another device's memory: after `mark` and what is queued on `to`, and before what
     * is queued on `to` later. Any thread may call; it is mostly the thread of `to`. */
    sl_status (*deliver)(sl_device *device, void *mark, const void *from, sl_device *to,
                         void *memory, size_t bytes);
    /* Releases the source of a delivery. */
    void (*release_delivered)(sl_device *device, void *memory, size_t bytes);

    /* (optional, both or none: operations have finished when they return) The moment at which what
     * is queued so far is done; NULL where none can be had. `end_moment` waits for it, frees it,
     * and gives its seconds on sli_clock_seconds' clock; it was made at `made`. */
    void *(*moment)(sl_device *device);
    sl_status (*end_moment)(sl_device *device, void *moment, double made, double *seconds);

    /* (optional: nothing) Called on each thread that will drive the device. */
    void (*bind_thread)(sl_device *device);

    sl_status (*copy)(sl_device *device, void *to, const void *from, size_t bytes);
    sl_status (*zero)(sl_device *device, void *to, size_t bytes);
    /* (optional: copy; for memory that the host reaches as well) */
    sl_status (*write)(sl_device *device, void *to, const void *host, size_t bytes);
    sl_status (*read)(sl_device *device, void *host, const void *from, size_t bytes);

    sl_status (*gemm)(sl_device *device, const sli_gemm *arguments);
    sl_status (*epilogue)(sl_device *device, const sli_epilogue *arguments);
    sl_status (*epilogue_backward)(sl_device *device, const sli_epilogue_backward *arguments);
    sl_status (*embedding)(sl_device *device, const sli_embedding *arguments);
    sl_status (*embedding_backward)(sl_device *device, const sli_embedding_backward *arguments);
    /* (optional: epilogue, then add) */
    sl_status (*add_dropout)(sl_device *device, const sli_add_dropout *arguments);
    sl_status (*add_norm)(sl_device *device, const sli_add_norm *arguments);
    sl_status (*add_norm_backward)(sl_device *device, const sli_add_norm_backward *arguments);
    sl_status (*swiglu)(sl_device *device, const sli_swiglu *arguments);
    sl_status (*swiglu_backward)(sl_device *device, const sli_swiglu_backward *arguments);
    /* key_heads is at least 1, here and in the next two. */
    sl_status (*rotary)(sl_device *device, const sli_rotary *arguments);
    sl_status (*attention)(sl_device *device, const sli_attention *arguments);
    /* (optional: `attention` of all queries, a sample at a time, and the device takes no keys) With
     * first_query, room or kv; the slot `attention` has none of them. */
    sl_status (*attention_from)(sl_device *device, const sli_attention *arguments);
    sl_status (*attention_backward)(sl_device *device, const sli_attention_backward *arguments);
    /* (optional: the device takes no slices) With first_query, room or `adds`. Then attention_from
     * takes log_sum_exp and dropout. */
    sl_status (*attention_backward_from)(sl_device *device,
                                         const sli_attention_backward *arguments);
    /* Without grad_bias; without `rounded` but on a device that stores bf16. */
    sl_status (*cross_entropy)(sl_device *device, const sli_cross_entropy *arguments);
    /* (optional: cross_entropy, epilogue_backward, convert) With grad_bias or `rounded`. */
    sl_status (*cross_entropy_bias)(sl_device *device, const sli_cross_entropy *arguments);
    sl_status (*convert)(sl_device *device, const sli_convert *arguments);
    sl_status (*add)(sl_device *device, int64_t count, float *to, const float *from);
    sl_status (*sgd)(sl_device *device, const sli_sgd *arguments);
    sl_status (*adamw)(sl_device *device, const sli_adamw *arguments);
    sl_status (*norm_terms)(sl_device *device, const sli_norm_terms *arguments);
    sl_status (*initialize)(sl_device *device, const sli_init *init, uint64_t seed, uint32_t site,
                            int64_t count, float *to);

    /* (optional: no groups of the backend `nccl`) */
    const sli_nccl_ops *nccl;
} sli_device_ops;

/* An implementation embeds this as its first member. All but batch_invariant and the last three
 * fields are set when the device is created and never change. */
struct sl_device {
    const sli_device_ops *ops;
    char name[SLI_DEVICE_NAME_BYTES];
    const char *isa;
    bool has_bf16; /* multiplies it in hardware */
    bool has_tf32;
    bool stores_bf16;
    bool has_batch_invariance; /* `gemm` and `attention` heed batch_invariant */
    /* A row's result in `gemm` with is_forward, and a query's in `attention`, may not depend on
     * the other rows, nor on the number of keys behind those that a query sees. */
    bool batch_invariant;
    int threads;
    int first_core;                  /* of its threads; -1: they are bound to none */
    int core_set;                    /* the same for devices that compute on the same cores, 0 to
                                        SLI_MAX_DEVICE_NUMBER; -1: it computes on cores of its own */
    uint64_t usable_bytes;           /* that the process can have of its memory */
    _Atomic uint64_t reserved_bytes; /* kept by the implementation's allocator */
    pthread_mutex_t accounts;        /* guards `stats` */
    sl_memory_stats stats;           /* `reserved_bytes` in it is unused */
};

/* For implementations: initializes and clears the struct sl_device that begins theirs. */
void sli_device_init(sl_device *device, const sli_device_ops *ops, const char *name);
void sli_device_finish(sl_device *device);

/* SL_ERR_MEMORY, with a sentence: what was asked for, and what each category holds. */
sl_status sli_device_out_of_memory(sl_device *device, const char *what, size_t bytes);

/* ---- Kinds ------------------------------------------------------------------------------ */

enum { SLI_MAX_DEVICES = 1024, SLI_MAX_DEVICE_NUMBER = 65535 };

/* One name of a list, as its kind has read it. */
typedef struct sli_device_name {
    char text[SLI_DEVICE_NAME_BYTES];
    int form;        /* which of the kind's forms it has, as the kind numbers them */
    int first, last; /* the numbers in it; the kind knows what they mean */
} sli_device_name;

/* Devices to create: first … end - 1 of `names`. */
typedef struct sli_device_request {
    const sli_device_name *names; /* [count] the list's names of this kind, in the list's order */
    int count;
    int first, end;
    bool bound; /* no other process uses these cores: divide them among first … end - 1 only */
    sli_memory_bound *memory; /* of the host, for all devices of the list; lives as long as they */
} sli_device_request;

/* Every slot is required. */
typedef struct sli_device_kind {
    const char *prefix;  /* "cpu": a name of this kind is this, or begins with "cpu:" */
    const char *forms;   /* "cpu, cpu:NUMBER or cpu:FIRST-LAST" */
    bool has_own_memory; /* its devices' is not the host's: they have the slot `mark` */

    /* Reads name->text into the other fields; false: it has none of the forms. */
    bool (*parse)(sli_device_name *name);

    /* Refuses names that no machine has together. Errors: SL_ERR_INVALID. */
    sl_status (*check)(const sli_device_name *names, int count);

    /* Creates the devices of a request, whose names are checked, into out[0 … end - first - 1];
     * none after an error. Sets *shared if they use the same cores as each other or as others of
     * the list; else leaves it as it is. Errors: SL_ERR_NOT_FOUND for what the machine lacks. */
    sl_status (*create)(const sli_device_request *request, sl_device **out, bool *shared);

    /* How many devices of its own the machine offers this process: PREFIX:0 … PREFIX:count - 1. */
    sl_status (*count)(int *out);
} sli_device_kind;

extern const sli_device_kind sli_cpu_kind, sli_cuda_kind;

/* The default of attention_from. (attend_to_all.c) */
sl_status sli_attend_to_all(sl_device *device, const sli_attention *arguments);

/* For parse: reads the digits at *text, 0 to SLI_MAX_DEVICE_NUMBER, and moves *text behind them. */
bool sli_device_number_parse(const char **text, int *out);

/* As sli_device_list_create_range (device.h), with these kinds, a list that ends with NULL. */
sl_status sli_device_list_create_of(const sli_device_kind *const *kinds, const char *names,
                                    int first, int most, bool bound, sl_device_list **out,
                                    bool *oversubscribed);

#endif
