/* Runs as ranks: replicas are threads of this process, or this process is one of them. */
#include "train/binding.h"
#include "train/layout.h"
#include "train/trainer.h"

#include <stdio.h>

/* What the ranks of this process are given. */
typedef struct job {
    const sli_shared *shared;
    const sl_reporter *reporters;
    int reporter_count;
    sl_run_result *result; /* the first replica's */
} job;

/* The replica whose devices start at `first` of the process's. */
static sl_status train_on(const job *of, sl_group *group, int first, sl_run_result *result)
{
    sl_device *devices[SL_MAX_STAGES];
    for (int s = 0; s < of->shared->options.stages; s++)
        devices[s] = sl_device_list_get(of->shared->devices, first + s);
    const sli_reports reports = {of->reporters, of->reporter_count,
                                 group ? sl_group_rank(group) : 0};
    return sli_train_replica(of->shared, group, devices, &reports, result);
}

static sl_status run_thread(sl_group *group, void *arg)
{
    const job *of = arg;
    sl_run_result result = {0};
    int rank = sl_group_rank(group);
    SL_TRY(train_on(of, group, rank * of->shared->options.stages, &result));
    if (rank == 0)
        *of->result = result;
    return SL_OK;
}

sl_status sl_train_run(const sl_train_options *options, const sl_reporter *reporters,
                       int reporter_count, sl_run_result *result)
{
    sl_train_options here = *options;
    here.local_replicas = 0;
    sli_shared shared;
    int replicas = sli_layout_replicas(&here);
    SL_TRY(sli_shared_create(&here, &(sli_place){.count = replicas}, &shared));
    job of = {&shared, reporters, reporter_count, result};
    sl_status status =
        replicas == 1 ? train_on(&of, NULL, 0, result) : sl_spawn(run_thread, &of, replicas, NULL);
    sli_shared_clear(&shared);
    return status;
}

/* ---- A process that is one rank --------------------------------------------------------- */

static sl_status check_rank(const sl_train_options *options, const sl_group *group,
                            int local_replica)
{
    int replicas = sli_layout_replicas(options), local = sli_layout_local_replicas(options);
    if (replicas != sl_group_size(group))
        return sl_error(SL_ERR_INVALID, "%d replicas were asked for, but there are %d ranks",
                        replicas, sl_group_size(group));
    if (local_replica < 0 || local_replica >= local)
        return sl_error(SL_ERR_INVALID, "a host's %d replica%s cannot have a number %d", local,
                        local == 1 ? "" : "s", local_replica);
    return SL_OK;
}

/* Breaks the group with this thread's error, unless another rank has done so; every rank's error is
 * then that of the first, "rank R: …". */
static sl_status end_group(sl_group *group, sl_status error)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", sl_error_text());
    sl_group_abort(group, error, text);
    sl_status first = sl_group_barrier(group, NULL);
    return first == SL_OK ? sl_error(error, "%s", text) : first;
}

sl_status sl_train_run_rank(const sl_train_options *options, sl_group *group, int local_replica,
                            const sl_reporter *reporters, int reporter_count, sl_run_result *result)
{
    sl_train_options here = *options;
    sli_shared shared = {0};
    sli_place place = {.first = local_replica, .count = 1};
    here.replicas = here.replicas ? here.replicas : sl_group_size(group);
    sl_status status = check_rank(&here, group, local_replica);
    if (status == SL_OK)
        status = sli_binding_find(group, &place.bound);
    if (status == SL_OK)
        status = sli_shared_create(&here, &place, &shared);
    if (status == SL_OK) {
        job of = {&shared, reporters, reporter_count, result};
        status = train_on(&of, sl_group_size(group) > 1 ? group : NULL, 0, result);
    }
    sli_shared_clear(&shared);
    return status == SL_OK ? SL_OK : end_group(group, status);
}
