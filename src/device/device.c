/* What all kinds of devices have in common: getters, and the accounts of their memory. */
#include "core/clock.h"
#include "device/device_base.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sl_memory_category_name(sl_memory_category category)
{
    static const char *const names[SL_MEMORY_CATEGORY_COUNT] = {"parameters", "gradients",
                                                                "optimizer", "activations",
                                                                "workspace"};
    return names[category];
}

void sli_device_init(sl_device *device, const sli_device_ops *ops, const char *name)
{
    memset(device, 0, sizeof *device);
    device->ops = ops;
    device->first_core = -1;
    device->core_set = -1;
    snprintf(device->name, sizeof device->name, "%s", name);
    atomic_init(&device->reserved_bytes, 0);
    pthread_mutex_init(&device->accounts, NULL);
}

void sli_device_finish(sl_device *device)
{
    pthread_mutex_destroy(&device->accounts);
}

void sl_device_destroy(sl_device **device)
{
    if (!device || !*device)
        return;
    (*device)->ops->destroy(*device);
    *device = NULL;
}

const char *sl_device_name(const sl_device *device)
{
    return device->name;
}

int sl_device_thread_count(const sl_device *device)
{
    return device->threads;
}

const char *sl_device_isa(const sl_device *device)
{
    return device->isa;
}

bool sl_device_has_bf16(const sl_device *device)
{
    return device->has_bf16;
}

sl_status sl_device_set_batch_invariant(sl_device *device, bool invariant)
{
    if (invariant && !device->has_batch_invariance)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "batch invariance needs CPU devices, got %s: use CPUs, or leave it off",
                        device->name);
    device->batch_invariant = invariant;
    return SL_OK;
}

bool sli_device_has_tf32(const sl_device *device)
{
    return device->has_tf32;
}

bool sli_device_stores_bf16(const sl_device *device)
{
    return device->stores_bf16;
}

void sli_device_bind_thread(void *device)
{
    sl_device *bound = device;
    if (bound->ops->bind_thread)
        bound->ops->bind_thread(bound);
}

/* ---- Accounts --------------------------------------------------------------------------- */

static void raise_peak(uint64_t *peak, uint64_t current)
{
    if (*peak < current)
        *peak = current;
}

static void account_more(sl_device *device, sl_memory_category category, uint64_t bytes)
{
    pthread_mutex_lock(&device->accounts);
    sl_memory_stats *stats = &device->stats;
    stats->current_bytes[category] += bytes;
    stats->current_total_bytes += bytes;
    raise_peak(&stats->peak_bytes[category], stats->current_bytes[category]);
    raise_peak(&stats->peak_total_bytes, stats->current_total_bytes);
    raise_peak(&stats->peak_reserved_bytes, atomic_load(&device->reserved_bytes));
    pthread_mutex_unlock(&device->accounts);
}

static void account_less(sl_device *device, sl_memory_category category, uint64_t bytes)
{
    pthread_mutex_lock(&device->accounts);
    assert(device->stats.current_bytes[category] >= bytes);
    device->stats.current_bytes[category] -= bytes;
    device->stats.current_total_bytes -= bytes;
    pthread_mutex_unlock(&device->accounts);
}

void sl_device_memory(const sl_device *device, sl_memory_stats *out)
{
    /* Reading the accounts changes nothing that a caller can see but the lock. */
    sl_device *lockable = (sl_device *)device;
    pthread_mutex_lock(&lockable->accounts);
    *out = device->stats;
    pthread_mutex_unlock(&lockable->accounts);
    out->reserved_bytes = atomic_load(&lockable->reserved_bytes);
    out->usable_bytes = device->usable_bytes;
}

void sl_device_reset_peak(sl_device *device)
{
    pthread_mutex_lock(&device->accounts);
    sl_memory_stats *stats = &device->stats;
    memcpy(stats->peak_bytes, stats->current_bytes, sizeof stats->peak_bytes);
    stats->peak_total_bytes = stats->current_total_bytes;
    stats->peak_reserved_bytes = atomic_load(&device->reserved_bytes);
    pthread_mutex_unlock(&device->accounts);
}

sl_status sli_device_out_of_memory(sl_device *device, const char *what, size_t bytes)
{
    sl_memory_stats stats;
    sl_device_memory(device, &stats);
    char holds[256];
    size_t used = 0;
    for (int i = 0; i < SL_MEMORY_CATEGORY_COUNT; i++)
        used += (size_t)snprintf(holds + used, sizeof holds - used, "%s%s %" PRIu64, i ? ", " : "",
                                 sl_memory_category_name((sl_memory_category)i),
                                 stats.current_bytes[i]);
    char left[64] = "";
    uint64_t available = sli_available_memory("");
    if (bytes > available)
        snprintf(left, sizeof left, ", of which the host has %" PRIu64 " left", available);
    return sli_no_memory(device->name,
                         "%zu bytes of %s; it holds these bytes: %s; the process can have %" PRIu64
                         "%s",
                         bytes, what, holds, device->usable_bytes, left);
}

static sl_status allocate(sl_device *device, sl_memory_category category, size_t bytes,
                          sl_status (*slot)(sl_device *device, size_t bytes, void **out),
                          void **out)
{
    *out = NULL;
    if (bytes == 0)
        return SL_OK;
    sl_status status = slot(device, bytes, out);
    if (status == SL_ERR_MEMORY)
        return sli_device_out_of_memory(device, sl_memory_category_name(category), bytes);
    SL_TRY(status);
    account_more(device, category, bytes);
    return SL_OK;
}

sl_status sli_device_allocate(sl_device *device, sl_memory_category category, size_t bytes,
                              void **out)
{
    return allocate(device, category, bytes, device->ops->allocate, out);
}

sl_status sli_device_allocate_zero(sl_device *device, sl_memory_category category, size_t bytes,
                                   void **out)
{
    if (device->ops->allocate_zero)
        return allocate(device, category, bytes, device->ops->allocate_zero, out);
    SL_TRY(sli_device_allocate(device, category, bytes, out));
    sl_status status = sli_device_zero(device, *out, bytes);
    if (status != SL_OK) {
        sli_device_release(device, category, *out, bytes);
        *out = NULL;
    }
    return status;
}

void sli_device_release(sl_device *device, sl_memory_category category, void *memory, size_t bytes)
{
    sli_device_release_counted(device, device, category, memory, bytes);
}

void sli_device_release_counted(sl_device *device, sl_device *counted, sl_memory_category category,
                                void *memory, size_t bytes)
{
    if (!memory)
        return;
    /* First the accounts: once released, the bytes may at once be another thread's. */
    account_less(counted, category, bytes);
    device->ops->release(device, memory, bytes);
}

void sli_device_discard_counted(sl_device *device, sl_device *counted, sl_memory_category category,
                                void *memory, size_t bytes)
{
    if (!memory)
        return;
    account_less(counted, category, bytes);
    (device->ops->discard ? device->ops->discard : device->ops->release)(device, memory, bytes);
}

void sli_device_empty_cache(sl_device *device)
{
    if (device->ops->empty_cache)
        device->ops->empty_cache(device);
}

void sli_device_recount(sl_device *from, sl_device *to, sl_memory_category category, size_t bytes)
{
    account_less(from, category, bytes);
    account_more(to, category, bytes);
}

/* ---- Devices with memory of their own --------------------------------------------------- */

bool sl_device_has_host_memory(const sl_device *device)
{
    return !device->ops->mark;
}

sli_moment sli_device_moment(sl_device *device)
{
    sli_moment moment = {.made = sli_clock_seconds()};
    if (device->ops->moment)
        moment.event = device->ops->moment(device);
    return moment;
}

sl_status sli_device_end_moment(sl_device *device, sli_moment *moment, double *seconds)
{
    void *event = moment->event;
    moment->event = NULL;
    *seconds = moment->made;
    return event ? device->ops->end_moment(device, event, moment->made, seconds) : SL_OK;
}

sl_status sl_device_synchronize(sl_device *device)
{
    double seconds;
    sli_moment moment = sli_device_moment(device);
    return sli_device_end_moment(device, &moment, &seconds);
}

void *sli_device_mark(sl_device *device)
{
    return device->ops->mark ? device->ops->mark(device) : NULL;
}

void sli_device_drop_mark(sl_device *device, void *mark)
{
    if (mark)
        device->ops->drop_mark(device, mark);
}

sl_status sli_device_deliver(sl_device *device, void *mark, const void *from, sl_device *to,
                             void *memory, size_t bytes)
{
    if (bytes == 0)
        return SL_OK;
    return device->ops->deliver ? device->ops->deliver(device, mark, from, to, memory, bytes)
                                : sli_device_write(to, memory, from, bytes);
}

void sli_device_release_delivered(sl_device *device, sl_device *counted,
                                  sl_memory_category category, void *memory, size_t bytes)
{
    if (!memory)
        return;
    account_less(counted, category, bytes);
    if (device->ops->release_delivered)
        device->ops->release_delivered(device, memory, bytes);
    else
        device->ops->release(device, memory, bytes);
}

sl_status sli_host_array_open(sl_device *device, void *memory, size_t bytes, bool reads,
                              sli_host_array *out)
{
    *out = (sli_host_array){device, memory, memory, bytes};
    if (sl_device_has_host_memory(device) || bytes == 0)
        return SL_OK;
    out->host = malloc(bytes);
    if (!out->host)
        return sli_no_memory(device->name, "%zu bytes of the host", bytes);
    sl_status status = reads ? sli_device_read(device, out->host, memory, bytes) : SL_OK;
    if (status != SL_OK)
        sli_host_array_close(out, false);
    return status;
}

sl_status sli_host_array_close(sli_host_array *array, bool writes)
{
    sl_status status = SL_OK;
    if (array->host != array->memory) {
        if (writes)
            status = sli_device_write(array->device, array->memory, array->host, array->bytes);
        free(array->host);
    }
    *array = (sli_host_array){NULL, NULL, NULL, 0};
    return status;
}
