/* What the ranks measured of a step: of each epoch's last full step, and about once a second for
 * who looks at the run. */
#include "train/loop/run.h"

#include "core/clock.h"
#include "core/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- What a replica measured ---------------------------------------------------------------- */

/* Of an epoch's last two steps the last one counts, unless its batch is smaller. The first rank of
 * a replica, which has the targets, keeps the result. */
static sl_status measure(sli_run *run)
{
    sl_utilization measured;
    bool ends_epoch = run->position.batch == run->batches_per_epoch;
    SL_TRY(sl_pipe_get_utilization(run->replica.pipe, &measured));
    int64_t targets = run->replica.is_silent ? 0 : sl_tensor_count(run->targets);
    bool is_smaller = ends_epoch && run->measured_step == run->position.steps - 1 &&
                      run->utilization.ranks > 0 && targets < run->measured_targets;
    if (run->replica.is_silent || is_smaller) {
        sl_utilization_clear(&measured);
        return SL_OK;
    }
    sl_utilization_clear(&run->utilization);
    run->utilization = measured;
    run->measured_targets = targets;
    run->measured_step = run->position.steps;
    return SL_OK;
}

/* ---- What all replicas measured ------------------------------------------------------------- */

/* Where a replica's pipe runs, as the prediction of its steps needs it: words that ranks exchange.
 */
typedef struct machine {
    double links[SL_MAX_STAGES];  /* [stages - 1] as in sl_schedule_options */
    int32_t cores[SL_MAX_STAGES]; /* [ranks] */
    int64_t has_cores;            /* some ranks share them */
} machine;

/* Tells the other replicas with which links and cores this one's steps are predicted; both are
 * [replicas]. */
static sl_status gather_layouts(const sli_run *run, machine *machines, sl_schedule_options *layouts)
{
    _Static_assert(sizeof(machine) % sizeof(int64_t) == 0, "machines are words");
    const sl_utilization *utilization = &run->utilization;
    machine mine = {.has_cores = utilization->cores != NULL};
    memcpy(mine.links, utilization->links,
           (size_t)(utilization->stages - 1) * sizeof *utilization->links);
    if (utilization->cores)
        memcpy(mine.cores, utilization->cores,
               (size_t)utilization->ranks * sizeof *utilization->cores);
    machines[0] = mine;
    if (run->replica.count > 1)
        SL_TRY(sl_group_all_gather(run->replica.group, &mine, machines,
                                   sizeof mine / sizeof(int64_t), SL_I64, NULL));
    for (int r = 0; r < run->replica.count; r++)
        layouts[r] =
            (sl_schedule_options){.ranks = utilization->ranks,
                                  .slices = utilization->measured[0].action.slices,
                                  .virtual_stages = utilization->stages / utilization->ranks,
                                  .placement = utilization->placement,
                                  .links = machines[r].links,
                                  .cores = machines[r].has_cores ? machines[r].cores : NULL,
                                  .forward_only = utilization->forward_only};
    return SL_OK;
}

/* What each replica measured of the same actions, [replicas][actions], to be freed also after an
 * error; NULL where there is one replica, or too many actions. */
static sl_status gather_timelines(const sli_run *run, sl_timeline_entry **out)
{
    enum { MOST_ACTIONS = 1 << 16, WORDS = sizeof **out / sizeof(int64_t) };
    _Static_assert(sizeof **out % sizeof(int64_t) == 0, "entries are words");
    const sl_utilization *utilization = &run->utilization;
    int replicas = run->replica.count, count = utilization->action_count;
    if (replicas == 1 || count > MOST_ACTIONS / replicas)
        return SL_OK;
    *out = calloc((size_t)replicas * (size_t)count, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "the timelines of %d replicas", replicas);
    return sl_group_all_gather(run->replica.group, utilization->measured, *out,
                               (int64_t)count * WORDS, SL_I64, NULL);
}

static sl_status call_reporters(const sli_run *run, const sl_pipeline_info *info)
{
    SLI_CALL_REPORTERS(run, pipeline, info)
    return SL_OK;
}

/* The first ranks of the replicas call it. */
static sl_status report_utilization(const sli_run *run, bool ends_epoch)
{
    const sl_utilization *utilization = &run->utilization;
    size_t replicas = (size_t)run->replica.count;
    sl_timeline_entry *timelines = NULL;
    machine *machines = calloc(replicas, sizeof *machines);
    sl_schedule_options *layouts = calloc(replicas, sizeof *layouts);
    sl_status status = SL_OK;
    if (!machines || !layouts)
        SL_TRY_OR_FAIL(sli_no_memory(NULL, "the layouts of %zu replicas", replicas));
    SL_TRY_OR_FAIL(gather_layouts(run, machines, layouts));
    SL_TRY_OR_FAIL(gather_timelines(run, &timelines));
    status =
        call_reporters(run, &(sl_pipeline_info){.epoch = run->position.epoch + 1,
                                                .step = run->measured_step,
                                                .ends_epoch = ends_epoch,
                                                .utilization = utilization,
                                                .slowest = &run->stages[utilization->slowest_stage],
                                                .timelines = timelines,
                                                .layouts = layouts});
fail:
    free(timelines);
    free(layouts);
    free(machines);
    return status;
}

/* ---- Which steps ---------------------------------------------------------------------------- */

/* Rank 0's clock decides which step comes about a second later, and the ranks agree on it here, so
 * that no step before it waits for anything. In a log such a report takes about as much room as one
 * step for each device and for each ACTIONS actions: the next one comes after as many steps. */
static sl_status choose_next(sli_run *run)
{
    enum { ACTIONS = 16 };
    double now = sli_clock_seconds(), seconds = now - run->reported_time;
    int64_t steps = run->position.steps, done = steps - run->reported_step, next = steps + 1;
    int64_t actions = (int64_t)run->replica.count * run->utilization.action_count;
    if (run->reported_step > 0)
        next = steps + llround(fmin(fmax((double)done / seconds, 1), 4 * (double)done));
    int64_t least = steps + run->info.rank_count + actions / ACTIONS;
    next = next > least ? next : least;
    if (run->replica.all)
        SL_TRY(sl_group_broadcast(run->replica.all, &next, 1, SL_I64, 0, NULL));
    run->reported_step = steps;
    run->reported_time = now;
    run->next_report = next;
    return SL_OK;
}

sl_status sli_run_report_pipeline(sli_run *run)
{
    int64_t left = run->batches_per_epoch - run->position.batch;
    bool has_stages = sl_pipe_stages(run->replica.pipe) > 1;
    bool is_due = run->options->report_timelines && run->position.steps >= run->next_report;
    if (has_stages && (is_due || left <= 1))
        SL_TRY(measure(run));
    if (is_due)
        SL_TRY(sli_replica_gather_rank_stats(&run->replica));
    if (is_due)
        SL_TRY(choose_next(run));
    if (has_stages && !run->replica.is_silent && (is_due || left == 0))
        SL_TRY(report_utilization(run, left == 0));
    else if (!has_stages && is_due)
        SL_TRY(call_reporters(run, &(sl_pipeline_info){.epoch = run->position.epoch + 1,
                                                       .step = run->position.steps}));
    return SL_OK;
}
