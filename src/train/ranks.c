/* Runs as ranks: replicas are threads of this process, or this process is one of them. */
#include "core/error.h"
#include "train/binding.h"
#include "train/checkpoint/resume.h"
#include "train/layout.h"
#include "train/trainer.h"

#include <stdio.h>

/* What the ranks of this process are given. */
typedef struct job {
    sli_shared shared;
    sli_resume from; /* the first replica's */
    const sl_reporter *reporters;
    int reporter_count;
    sl_run_result *result; /* the first replica's */
} job;

/* Whether this host has the memory for its replicas. */
static sl_status check_memory(const sl_train_options *options, sl_group *group)
{
    sl_module *model;
    bool first = !group || sl_group_rank(group) == 0;
    if (options->force)
        return SL_OK;
    SL_TRY(sl_transformer_lm_create(&options->model, &model));
    sl_status status =
        sl_plan_check_memory(options, model, group ? sli_layout_local_replicas(options) : 1, first,
                             sl_usable_memory());
    sl_module_destroy(&model);
    return status;
}

/* The first replica finds the checkpoint to go on from, which says how the text is cut and which
 * rate it began with. `group`: the ranks that are processes; NULL: all are in this one. Cleared by
 * job_clear, also after an error. */
static sl_status job_create(const sl_train_options *options, const sli_place *place,
                            sl_group *group, job *of)
{
    const sl_save_options *checkpoints = &options->checkpoints;
    const sli_reports reports = {of->reporters, of->reporter_count, 0};
    sli_recorded run = {sli_layout_shards(options), sl_train_options_lr(options)};
    SL_TRY(sli_shared_create(options, place, &of->shared));
    if (!group || sl_group_rank(group) == 0)
        SL_TRY(sli_resume_open(checkpoints, &reports, &of->from));
    if (of->from.reader)
        SL_TRY(sli_resume_recorded(&of->from, &run));
    if (group && checkpoints->resume) {
        SL_TRY(sl_group_broadcast(group, &run.shards, 1, SL_I32, 0, NULL));
        SL_TRY(sl_group_broadcast(group, &run.lr, 1, SL_F64, 0, NULL));
    }
    SL_TRY(sli_shared_cut(&of->shared, run.shards, run.lr));
    SL_TRY(check_memory(&of->shared.options, group));
    return sli_resume_check(&of->from, &of->shared, &reports);
}

static void job_clear(job *of)
{
    sli_resume_clear(&of->from);
    sli_shared_clear(&of->shared);
}

/* The replica whose devices start at `first` of the process's. */
static sl_status train_on(const job *of, sl_group *group, int first, sl_run_result *result)
{
    sl_device *devices[SL_MAX_STAGES];
    int rank = group ? sl_group_rank(group) : 0;
    for (int s = 0; s < of->shared.options.stages; s++)
        devices[s] = sl_device_list_get(of->shared.devices, first + s);
    const sli_reports reports = {of->reporters, of->reporter_count, rank};
    return sli_train_replica(&of->shared, group, devices, rank == 0 ? of->from.reader : NULL,
                             &reports, result);
}

static sl_status run_thread(sl_group *group, void *arg)
{
    const job *of = arg;
    sl_run_result result = {0};
    int rank = sl_group_rank(group);
    SL_TRY(train_on(of, group, rank * of->shared.options.stages, &result));
    if (rank == 0)
        *of->result = result;
    return SL_OK;
}

sl_status sl_train_run(const sl_train_options *options, const sl_reporter *reporters,
                       int reporter_count, sl_run_result *result)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(result);
    sl_train_options here = *options;
    here.local_replicas = 0;
    int replicas = sli_layout_replicas(&here);
    job of = {.reporters = reporters, .reporter_count = reporter_count, .result = result};
    sl_status status = job_create(&here, &(sli_place){.count = replicas}, NULL, &of);
    if (status == SL_OK)
        status = replicas == 1 ? train_on(&of, NULL, 0, result)
                               : sl_spawn(run_thread, &of, replicas, NULL);
    job_clear(&of);
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
    SLI_CHECK_NOT_NULL(group);
    if (!options || !result) /* the other ranks wait for this one */
        return end_group(group, sl_error(SL_ERR_INVALID, "sl_train_run_rank: %s is NULL",
                                         options ? "result" : "options"));
    sl_train_options here = *options;
    job of = {.reporters = reporters, .reporter_count = reporter_count, .result = result};
    sli_place place = {.first = local_replica, .count = 1};
    here.replicas = here.replicas ? here.replicas : sl_group_size(group);
    sl_status status = check_rank(&here, group, local_replica);
    if (status == SL_OK)
        status = sli_binding_find(group, &place.bound);
    if (status == SL_OK)
        status = job_create(&here, &place, group, &of);
    if (status == SL_OK)
        status = train_on(&of, sl_group_size(group) > 1 ? group : NULL, 0, result);
    job_clear(&of);
    return status == SL_OK ? SL_OK : end_group(group, status);
}
