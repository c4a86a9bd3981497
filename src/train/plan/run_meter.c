/* What a run measures of itself: by its reporters, or by its log. */
#include "sluice/app/plan.h"

#include "core/error.h"

#include <math.h>
#include <stdio.h>
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

/* Ranks of a host are consecutive. */
static void count_process(sl_run_meter *meter, const sl_run_device *device)
{
    bool is_other_host = meter->devices == 0 || strcmp(device->host, meter->host) != 0,
         is_other = is_other_host || device->rank != meter->rank;
    meter->processes_here = (is_other_host ? 0 : meter->processes_here) + is_other;
    if (meter->processes_here > meter->host_processes)
        meter->host_processes = meter->processes_here;
}

/* A virtual device may have its GPU in common with another, and so has one that is named again. */
static void count_gpu(sl_run_meter *meter, const sl_run_device *device)
{
    bool is_again = meter->devices > 0 && strcmp(device->host, meter->host) == 0 &&
                    strcmp(device->name, meter->device) == 0;
    meter->gpus++;
    meter->shares_gpus |= is_again || strchr(device->name, '/');
}

void sl_run_meter_add_device(sl_run_meter *meter, const sl_run_device *device)
{
    double others = device->parameters + device->gradients + device->optimizer;
    int64_t usable = llround(fmin(device->usable, 0x1p62));
    count_process(meter, device);
    if (strncmp(device->name, "cpu", strlen("cpu")) != 0)
        count_gpu(meter, device);
    meter->activation_bytes += fmax(0, device->total - others);
    if (usable > 0 && (meter->memory_bytes == 0 || usable < meter->memory_bytes))
        meter->memory_bytes = usable;
    snprintf(meter->host, sizeof meter->host, "%s", device->host);
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
