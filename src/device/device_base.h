/* What every device begins with: its table of operations and what is common to all. */
#ifndef SLI_DEVICE_DEVICE_BASE_H
#define SLI_DEVICE_DEVICE_BASE_H

#include "device/device.h"

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
    void (*release)(sl_device *device, void *memory, size_t bytes);
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
    sl_status (*attention)(sl_device *device, const sli_attention *arguments);
    sl_status (*attention_backward)(sl_device *device, const sli_attention_backward *arguments);
    sl_status (*cross_entropy)(sl_device *device, const sli_cross_entropy *arguments);
    sl_status (*add)(sl_device *device, int64_t count, float *to, const float *from);
    sl_status (*sgd)(sl_device *device, const sli_sgd *arguments);
    sl_status (*adamw)(sl_device *device, const sli_adamw *arguments);
    sl_status (*norm_term)(sl_device *device, sli_norm_kind kind, int64_t count, const float *x,
                           double *out);
    sl_status (*initialize)(sl_device *device, const sli_init *init, uint64_t seed, uint32_t site,
                            int64_t count, float *to);
} sli_device_ops;

/* An implementation embeds this as its first member. All but the last three fields are set when
 * the device is created and never change. */
struct sl_device {
    const sli_device_ops *ops;
    char name[SLI_DEVICE_NAME_BYTES];
    const char *isa;
    int threads;
    uint64_t usable_bytes;           /* that the process can have, for an error's text */
    _Atomic uint64_t reserved_bytes; /* kept by the implementation's allocator */
    pthread_mutex_t accounts;        /* guards `stats` */
    sl_memory_stats stats;           /* `reserved_bytes` in it is unused */
};

/* For implementations: sets up, and ends, the part that is common to all devices. */
void sli_device_init(sl_device *device, const sli_device_ops *ops, const char *name);
void sli_device_finish(sl_device *device);

#endif
