/* What every kind of device begins with, and how devices are made from names. */
#ifndef SLI_DEVICE_DEVICE_BASE_H
#define SLI_DEVICE_DEVICE_BASE_H

#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SLI_DEVICE_NAME_BYTES = 32 };

/* An implementation embeds this as its first member. All but the last three fields are set when
 * the device is created and never change. */
struct sl_device {
    const sli_device_ops *ops;
    char name[SLI_DEVICE_NAME_BYTES];
    const char *isa;
    int threads;
    int first_core;                  /* -1: threads are bound to no core */
    uint64_t usable_bytes;           /* that the process can have, for an error's text */
    _Atomic uint64_t reserved_bytes; /* kept by the implementation's allocator */
    pthread_mutex_t accounts;        /* guards `stats` */
    sl_memory_stats stats;           /* `reserved_bytes` in it is unused */
};

/* For implementations: sets up, and ends, the part that is common to all devices. */
void sli_device_init(sl_device *device, const sli_device_ops *ops, const char *name);
void sli_device_finish(sl_device *device);

/* One name of a device list, as read by sli_device_names_parse. */
typedef struct sli_device_name {
    char text[SLI_DEVICE_NAME_BYTES];
    enum { SLI_CPU_ALL, SLI_CPU_SHARE, SLI_CPU_CORES } kind; /* cpu, cpu:2, cpu:4-7 */
    int first, last; /* SHARE: which share, twice; CORES: the system's numbers, inclusive */
} sli_device_name;

enum { SLI_MAX_DEVICES = 1024 };

/* Reads a list of names. `*out` [*count] is malloc'ed. Errors: SL_ERR_INVALID quotes the name. */
sl_status sli_device_names_parse(const char *names, sli_device_name **out, int *count);

#endif
