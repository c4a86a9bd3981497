/* What a run measures of itself: by its reporters, or by its log. */
#include "sluice/app/plan.h"

#include "core/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sl_run_meter_add_step(sl_run_meter *meter, const sl_run_step_times *times)
{
    meter->steps++;
    meter->step_seconds += times->seconds - times->data_seconds;
    meter->exchange_seconds += times->exchange_seconds;
    meter->update_seconds += times->update_seconds;
}

/* Ranks share all cores where each has those of the first. */
void sl_run_meter_set_stages(sl_run_meter *meter, const sl_utilization *utilization)
{
    size_t stages = (size_t)utilization->stages;
    bool share_all = utilization->cores != NULL;
    for (int rank = 0; utilization->cores && rank < utilization->ranks; rank++)
        share_all &= utilization->cores[rank] == utilization->cores[0];
    memcpy(meter->forward, utilization->forward, stages * sizeof *meter->forward);
    memcpy(meter->backward, utilization->backward, stages * sizeof *meter->backward);
    meter->has_links = utilization->links != NULL;
    if (utilization->links)
        memcpy(meter->links, utilization->links, (stages - 1) * sizeof *meter->links);
    meter->has_stages = true;
    meter->shares_cores = share_all;
    meter->is_mixed = utilization->cores && !share_all;
}

/* The number of the host, which is added where it is not there yet; SL_METER_HOSTS: no room. */
static int find_host(sl_run_meter *meter, const char *name)
{
    int i = 0;
    size_t most = sizeof meter->host[0].name - 1;
    while (i < meter->hosts && strncmp(meter->host[i].name, name, most) != 0)
        i++;
    if (i == meter->hosts && i < SL_METER_HOSTS)
        snprintf(meter->host[meter->hosts++].name, most + 1, "%s", name);
    return i;
}

/* Of another one than the device before. */
static void count_process(sl_run_meter *meter, const sl_run_device *device)
{
    int host = find_host(meter, device->host);
    meter->has_more_hosts |= host == SL_METER_HOSTS;
    if (host < SL_METER_HOSTS && ++meter->host[host].processes > meter->host_processes)
        meter->host_processes = meter->host[host].processes;
    memset(meter->has_gpu, 0, sizeof meter->has_gpu);
}

/* A virtual device may have its GPU in common with another, and so has one whose process names it
 * again. */
static void count_gpu(sl_run_meter *meter, const sl_run_device *device)
{
    const char *number = strchr(device->name, ':');
    long gpu = number ? strtol(number + 1, NULL, 10) : 0;
    meter->gpus++;
    meter->shares_gpus |= strchr(device->name, '/') != NULL;
    if (gpu >= 0 && gpu < SL_METER_GPUS) {
        meter->shares_gpus |= meter->has_gpu[gpu];
        meter->has_gpu[gpu] = true;
    }
}

void sl_run_meter_add_device(sl_run_meter *meter, const sl_run_device *device)
{
    double others = device->parameters + device->gradients + device->optimizer;
    int64_t usable = llround(fmin(device->usable, 0x1p62));
    if (meter->processes > 1 && (meter->devices == 0 || device->rank != meter->rank))
        count_process(meter, device);
    if (strncmp(device->name, "cpu", strlen("cpu")) != 0)
        count_gpu(meter, device);
    meter->activation_bytes += fmax(0, device->total - others);
    if (usable > 0 && (meter->memory_bytes == 0 || usable < meter->memory_bytes))
        meter->memory_bytes = usable;
    snprintf(meter->device, sizeof meter->device, "%s", device->name);
    meter->rank = device->rank;
    meter->devices++;
}

static sl_status check_meter(const sl_run_meter *meter)
{
    if (meter->is_mixed)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "only some of its pipeline ranks share cores, so its times say nothing of "
                        "other layouts");
    if (meter->is_oversubscribed && !meter->shares_cores)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "its devices share cores, so its times say nothing of other layouts");
    if (meter->processes > 1 && meter->devices == 0)
        return sl_error(SL_ERR_NOT_FOUND,
                        "which of its %d processes are on one host is not known before an "
                        "evaluation has ended",
                        meter->processes);
    if (meter->has_more_hosts)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "its processes are on more than %d hosts, so how many are on each is not "
                        "known",
                        SL_METER_HOSTS);
    if (meter->gpus > 0 && meter->gpus < meter->devices)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "its devices are CPUs and GPUs, so its times do not say what a module "
                        "takes on the others");
    if (meter->shares_gpus)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "its devices share GPUs, so its times say nothing of other layouts");
    return meter->gpus == 0 || meter->memory_bytes > 0
               ? SL_OK
               : sl_error(SL_ERR_NOT_FOUND, "how much memory %s has is not known", meter->device);
}

sl_status sl_run_meter_measures(const sl_run_meter *meter, sl_run_measures *out)
{
    double steps = meter->steps > 0 ? (double)meter->steps : 1;
    *out = (sl_run_measures){.step_seconds = meter->step_seconds / steps,
                             .exchange_seconds = meter->exchange_seconds / steps,
                             .update_seconds = meter->update_seconds / steps,
                             .forward = meter->has_stages ? meter->forward : NULL,
                             .backward = meter->has_stages ? meter->backward : NULL,
                             .activation_bytes = llround(fmin(meter->activation_bytes, 0x1p62)),
                             .shares_cores = meter->shares_cores,
                             .one_stage = meter->one_stage,
                             .links = meter->has_links ? meter->links : NULL,
                             .processes = meter->processes,
                             .host_processes = meter->host_processes,
                             .has_own_memory = meter->gpus > 0,
                             .memory_bytes = meter->memory_bytes,
                             .process_bytes = meter->process_bytes};
    return check_meter(meter);
}
