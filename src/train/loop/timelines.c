/* When the ranks' actions of a step ran: for the record of each epoch, and about once a second for
 * what shows the run. */
#include "train/loop/run.h"

#include "core/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Where the replicas run ---------------------------------------------------------------- */

/* Where a replica's pipe runs, as the prediction of its steps needs it: words that ranks exchange.
 */
typedef struct machine {
    double links[SL_MAX_STAGES];  /* [stages - 1] as in sl_schedule_options */
    int32_t cores[SL_MAX_STAGES]; /* [ranks] */
    int64_t has_cores;            /* some ranks share them */
} machine;

static sl_status allocate_layouts(sli_run *run)
{
    size_t replicas = (size_t)run->replica.count;
    if (run->timelines.layouts)
        return SL_OK;
    run->timelines.machines = calloc(replicas, sizeof *run->timelines.machines);
    run->timelines.layouts = calloc(replicas, sizeof *run->timelines.layouts);
    if (!run->timelines.machines || !run->timelines.layouts)
        return sl_error(SL_ERR_MEMORY, "no memory for the layouts of %zu replicas", replicas);
    return SL_OK;
}

/* Tells the other replicas with which links and cores this one's steps are predicted. */
static sl_status gather_layouts(sli_run *run, const sl_utilization *own)
{
    _Static_assert(sizeof(machine) % sizeof(int64_t) == 0, "machines are words");
    const sl_pipe *pipe = run->replica.pipe;
    SL_TRY(allocate_layouts(run));
    machine mine = {.has_cores = own->cores != NULL}, *all = run->timelines.machines;
    memcpy(mine.links, own->links, (size_t)(own->stages - 1) * sizeof *own->links);
    if (own->cores)
        memcpy(mine.cores, own->cores, (size_t)own->ranks * sizeof *own->cores);
    all[0] = mine;
    if (run->replica.count > 1)
        SL_TRY(sl_group_all_gather(run->replica.group, &mine, all, sizeof mine / sizeof(int64_t),
                                   SL_I64, NULL));
    for (int r = 0; r < run->replica.count; r++)
        run->timelines.layouts[r] =
            (sl_schedule_options){.ranks = own->ranks,
                                  .virtual_stages = own->stages / own->ranks,
                                  .placement = sl_schedule_placement(pipe->order),
                                  .links = all[r].links,
                                  .cores = all[r].has_cores ? all[r].cores : NULL};
    return SL_OK;
}

void sli_timelines_clear(sli_run *run)
{
    sl_utilization_clear(&run->utilization);
    free(run->timelines.machines);
    free(run->timelines.layouts);
}

/* ---- The record of an epoch --------------------------------------------------------------- */

/* Measures the epoch's last step, or the one before it where the last batch is smaller. All ranks
 * of a replica call it; the first one, which has the targets, keeps the result. */
sl_status sli_timelines_measure(sli_run *run)
{
    sl_utilization measured;
    int64_t left = run->batches_per_epoch - run->at.batch;
    if (sl_pipe_stages(run->replica.pipe) == 1 || left > 2)
        return SL_OK;
    SL_TRY(sl_pipe_get_utilization(run->replica.pipe, &measured));
    int64_t targets = run->replica.is_silent ? 0 : sl_tensor_count(run->targets);
    bool is_smaller = run->utilization.ranks > 0 && targets < run->measured_targets;
    if (run->replica.is_silent || is_smaller) {
        sl_utilization_clear(&measured);
        return SL_OK;
    }
    sl_utilization_clear(&run->utilization);
    run->utilization = measured;
    run->measured_targets = targets;
    run->measured_step = run->at.steps + 1;
    return SL_OK;
}

static sl_status report_pipeline(const sli_run *run, const sl_timeline_entry *timelines)
{
    const sl_utilization *utilization = &run->utilization;
    const sl_pipeline_info info = {.epoch = run->at.epoch + 1,
                                   .step = run->measured_step,
                                   .utilization = utilization,
                                   .slowest = &run->stages[utilization->slowest_stage],
                                   .timelines = timelines,
                                   .layouts = run->timelines.layouts};
    SLI_CALL_REPORTERS(run, pipeline, &info)
    return SL_OK;
}

sl_status sli_timelines_report_epoch(sli_run *run)
{
    sl_timeline_entry *timelines;
    if (run->utilization.ranks == 0) /* one stage, not a replica's first rank, or a run that resumed
                                        after that step */
        return SL_OK;
    SL_TRY(gather_layouts(run, &run->utilization));
    sl_status status = sli_replica_gather_timelines(&run->replica, run->utilization.measured,
                                                    run->utilization.action_count, &timelines);
    if (status == SL_OK)
        status = report_pipeline(run, timelines);
    free(timelines);
    sl_utilization_clear(&run->utilization);
    return status;
}

/* ---- Steps under way ---------------------------------------------------------------------- */

/* Rank 0's clock decides which step comes about a second later, and the ranks agree on it here, so
 * that no step before it waits for anything. */
static sl_status choose_next(sli_run *run)
{
    double now = sli_clock_seconds(), seconds = now - run->timelines.time;
    int64_t steps = run->at.steps;
    int64_t done = run->timelines.last > 0 ? steps - run->timelines.last : 1;
    int64_t next = steps + 1;
    if (run->timelines.last > 0)
        next = steps + llround(fmin(fmax((double)done / seconds, 1), 4 * (double)done));
    if (run->replica.all)
        SL_TRY(sl_group_broadcast(run->replica.all, &next, 1, SL_I64, 0, NULL));
    run->timelines.last = steps;
    run->timelines.next = next;
    run->timelines.time = now;
    return SL_OK;
}

static sl_status report_timelines(const sli_run *run, const sl_timeline_entry *timelines, int count)
{
    const sl_timelines_info info = {.epoch = run->at.epoch + 1,
                                    .step = run->at.steps,
                                    .timelines = timelines,
                                    .action_count = timelines ? count : 0,
                                    .layouts = run->timelines.layouts};
    SLI_CALL_REPORTERS(run, timelines, &info)
    return SL_OK;
}

/* Probes the links between processes once, as that takes longer than gathering a timeline; the
 * record of each epoch has the newest. */
static sl_status find_layouts(sli_run *run)
{
    sl_utilization first;
    if (run->timelines.last > 0 || sl_pipe_stages(run->replica.pipe) == 1)
        return SL_OK;
    SL_TRY(sl_pipe_get_utilization(run->replica.pipe, &first));
    sl_status status = gather_layouts(run, &first);
    sl_utilization_clear(&first);
    return status;
}

sl_status sli_timelines_report_step(sli_run *run)
{
    const sli_replica *replica = &run->replica;
    sl_timeline_entry *own = NULL, *all = NULL;
    double clock_error;
    int count;
    if (!run->options.report_timelines || run->at.steps < run->timelines.next)
        return SL_OK;
    SL_TRY(find_layouts(run));
    sl_status status = sli_pipe_gather_timeline(replica->pipe, SL_OK, &own, &count, &clock_error);
    if (status == SL_OK)
        status = sli_replica_gather_timelines(replica, own, count, &all);
    if (status == SL_OK)
        status = sli_replica_gather_rank_stats(replica);
    if (status == SL_OK)
        status = choose_next(run);
    if (status == SL_OK)
        status = report_timelines(run, replica->count > 1 ? all : own, count);
    free(all);
    free(own);
    return status;
}
