/* Devices: where tensors live and kernels run.
 *
 * A CPU device is a set of cores. Its kernels run on those cores only, one thread for each core. A
 * CUDA device is a GPU; its operations are queued, and docs/cuda.md says what of it is untested.
 * A device owns its memory and counts every byte by what the byte is for. */
#ifndef SLUICE_DEVICE_H
#define SLUICE_DEVICE_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

SL_API_BEGIN

typedef struct sl_device sl_device;
typedef struct sl_device_list sl_device_list;

/* What a byte is for. */
typedef enum sl_memory_category {
    SL_MEMORY_PARAMETERS,
    SL_MEMORY_GRADIENTS,
    SL_MEMORY_OPTIMIZER,
    SL_MEMORY_ACTIVATIONS, /* what forward saves for backward, and what stages send each other */
    SL_MEMORY_WORKSPACE,   /* used during one call of a kernel or module */
    SL_MEMORY_CATEGORY_COUNT
} sl_memory_category;

/* "parameters", "gradients", "optimizer", "activations", "workspace". */
const char *sl_memory_category_name(sl_memory_category category);

typedef struct sl_memory_stats {
    uint64_t current_bytes[SL_MEMORY_CATEGORY_COUNT];
    uint64_t peak_bytes[SL_MEMORY_CATEGORY_COUNT]; /* each category's own highest value */
    uint64_t current_total_bytes;
    uint64_t peak_total_bytes; /* highest sum; at most the sum of the categories' peaks */
    uint64_t reserved_bytes;   /* allocated from the system: in use and cached */
    uint64_t peak_reserved_bytes;
    uint64_t usable_bytes; /* that it can have: a GPU's memory, or the host's, which CPUs share */
} sl_memory_stats;

/* Creates the devices named in `names`, which are separated by commas. A list has names of one
 * form for CPUs:
 *
 *   cpu:0,cpu:1,…   divide the cores that this process may use evenly, in the order of hwloc's
 *                   topology, so that neighbours have common caches; each name at most once
 *   cpu             all these cores; with cpu,cpu two stages use all cores, whichever has work
 *   cpu:0-3         cores by the system's numbers; cpu:0-0 is core 0 alone
 *   cuda:0          the first GPU, beside any of the others
 *   cuda:0/1        a virtual device of the first GPU, with streams and memory of its own
 *
 * *oversubscribed (may be NULL) becomes true if devices have cores in common, as with more devices
 * than cores, or if control groups give the process less time than they need.
 *
 * Errors: SL_ERR_INVALID for a name that cannot be read or is unknown, and for names of two forms;
 * SL_ERR_NOT_FOUND for cores or GPUs that the machine lacks or this process may not use;
 * SL_ERR_UNSUPPORTED where CUDA is missing, with what is. */
sl_status sl_device_list_create(const char *names, sl_device_list **out, bool *oversubscribed);

/* Frees the devices; every tensor on them must have been destroyed. */
void sl_device_list_destroy(sl_device_list **list);

int sl_device_list_count(const sl_device_list *list);

/* The device at `index`; it lives as long as the list. */
sl_device *sl_device_list_get(const sl_device_list *list, int index);

/* One CPU device with `threads` threads that are bound to no core; 0 stands for one thread for each
 * core that this process may use. For tests and for programs that manage cores themselves. Errors:
 * SL_ERR_INVALID for a negative number, SL_ERR_MEMORY. */
sl_status sl_device_create_cpu(int threads, sl_device **out);

/* Frees a device of sl_device_create_cpu; every tensor on it must have been destroyed. */
void sl_device_destroy(sl_device **device);

/* "cpu:0", as the list named it. */
const char *sl_device_name(const sl_device *device);

/* How many threads run a kernel; for a GPU 1, the thread that queues it. */
int sl_device_thread_count(const sl_device *device);

/* The instruction set of its kernels: "avx512", "avx2", "baseline"; for a GPU "sm_90". */
const char *sl_device_isa(const sl_device *device);

/* Whether the forward of a row is to have the same bits whatever other rows its batch has, however
 * the batch is cut and where keys and values were kept (docs/determinism.md); from the next
 * operation on, while none runs on the device. It costs time. The list's function sets it for all
 * of its devices or, with an error, for none. Errors: SL_ERR_UNSUPPORTED for a device that cannot
 * (a GPU). */
sl_status sl_device_set_batch_invariant(sl_device *device, bool invariant);
sl_status sl_device_list_set_batch_invariant(sl_device_list *list, bool invariant);

/* Whether it multiplies bf16 matrices in hardware (AVX-512 BF16, GPUs). Without, such products take
 * more time than f32's. */
bool sl_device_has_bf16(const sl_device *device);

/* Whether it works on the host's memory, as CPUs do. A device without (a GPU) has memory of its
 * own: its operations are queued, and tensors come from and go to it by copies. */
bool sl_device_has_host_memory(const sl_device *device);

/* Waits until all operations that were queued on the device are done; returns at once for a device
 * with host memory, whose operations are. For measuring times, as torch.cuda.synchronize.
 * Errors: that of a queued operation. */
sl_status sl_device_synchronize(sl_device *device);

/* What its memory is used for, and the peaks since the last reset. Any thread may call. */
void sl_device_memory(const sl_device *device, sl_memory_stats *out);

/* Sets each peak to the current value. */
void sl_device_reset_peak(sl_device *device);

SL_API_END

#endif
