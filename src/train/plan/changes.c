/* What to change in a run: one thing at a time, of which the rest stays as it is. */
#include "train/plan/search_machine.h"

#include "core/error.h"
#include "train/plan/plan.h"

#include <stdlib.h>
#include <string.h>

static const unsigned all_kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_SCHEDULE |
                                 SL_KEEP_CHUNKS | SL_KEEP_RECOMPUTE | SL_KEEP_BALANCE |
                                 SL_KEEP_ZERO | SL_KEEP_SHARDS | SL_KEEP_BATCH_SIZE |
                                 SL_KEEP_SPLIT_VOCABULARY;

/* Which of them a search of one thing does not keep. */
static const unsigned searched[SL_PLAN_CHANGES] = {
    SL_KEEP_BALANCE, SL_KEEP_SCHEDULE, SL_KEEP_CHUNKS, SL_KEEP_RECOMPUTE,
    SL_KEEP_PIPELINE_RANKS /* of which one is tried */
};

/* Steps that differ by less are taken to be as long. */
static const double least_gain = 0.01;

/* The run with one thing left open. False: there is nothing to try. */
static bool open_run(const sl_train_options *run, unsigned open, sl_train_options *out)
{
    *out = *run;
    if (run->pipeline_ranks == 1 && open != SL_KEEP_CHUNKS && open != SL_KEEP_RECOMPUTE)
        return false;
    if (open == SL_KEEP_BALANCE)
        out->balance_kind = SL_BALANCE_AUTO;
    bool has_another_table = open == SL_KEEP_SCHEDULE || open == SL_KEEP_PIPELINE_RANKS;
    if (run->table && (has_another_table || open == SL_KEEP_CHUNKS))
        return false;
    if (has_another_table && !run->placement) /* which has the ranks of all virtual stages */
        out->virtual_stages = 0;
    if (open == SL_KEEP_PIPELINE_RANKS) {
        out->virtual_stages = 0;
        out->placement = run->placement ? "loop" : NULL;
        out->pipeline_ranks = 1;
        if (sl_schedule_virtual_stages(run->schedule) > 1)
            out->schedule = sl_schedule_names[0];
        out->balance_kind = SL_BALANCE_AUTO;
        out->balance_count = 0;
    }
    return true;
}

static sl_status search_one(const sl_train_options *run, unsigned open, const sli_machine *machine,
                            sl_found_plan *plans, int *count)
{
    sl_train_options opened;
    *count = 0;
    if (!open_run(run, open, &opened))
        return SL_OK;
    unsigned kept = all_kept & ~(open == SL_KEEP_PIPELINE_RANKS ? SL_KEEP_BALANCE : open);
    return sli_plan_search_if_any(&(sl_plan_search_options){.run = &opened, .kept = kept}, &opened,
                                  machine, plans, count);
}

/* A plan's list of devices is in the plan itself, or the run's. */
static void copy_plan(const sl_found_plan *plan, sl_found_plan *out)
{
    *out = *plan;
    if (plan->options.devices == plan->devices)
        out->options.devices = out->devices;
}

/* Behind those that are as good. */
static void insert_plan(const sl_found_plan *plan, sl_found_plan *changes, int *count)
{
    int place = *count;
    while (place > 0 && plan->costs.seconds < changes[place - 1].costs.seconds) {
        copy_plan(&changes[place - 1], &changes[place]);
        place--;
    }
    copy_plan(plan, &changes[place]);
    ++*count;
}

/* What of it is kept is not changed. */
static sl_status find_changes(const sl_train_options *run, unsigned kept,
                              const sli_machine *machine, sl_found_plan *room, sl_found_plan *own,
                              sl_found_plan *changes, int *count)
{
    int found;
    sl_train_options forced = *run; /* it has run */
    forced.force = true;
    SL_TRY(sli_plan_search_machine(&(sl_plan_search_options){.run = &forced, .kept = all_kept},
                                   &forced, machine, room, &found));
    copy_plan(&room[0], own);
    for (int i = 0; i < SL_PLAN_CHANGES; i++) {
        if (kept & searched[i])
            continue;
        SL_TRY(search_one(run, searched[i], machine, room, &found));
        if (found > 0 && room[0].costs.seconds < (1 - least_gain) * own->costs.seconds)
            insert_plan(&room[0], changes, count);
    }
    return SL_OK;
}

sl_status sl_plan_find_changes(const sl_train_options *run, const sl_run_measures *measures,
                               sl_found_plan *own, sl_found_plan changes[SL_PLAN_CHANGES],
                               int *count)
{
    SLI_CHECK_NOT_NULL(run);
    SLI_CHECK_NOT_NULL(measures);
    SLI_CHECK_NOT_NULL(own);
    SLI_CHECK_NOT_NULL(changes);
    SLI_CHECK_NOT_NULL(count);
    sli_measured_run measured;
    *count = 0;
    sl_found_plan *room = calloc(SL_PLANS_FOUND, sizeof *room);
    if (!room)
        return sli_no_memory(NULL, "plans");
    sl_status status;
    SL_TRY_OR_FAIL(sli_measured_run_open(run, measures, &measured));
    status =
        find_changes(&measured.run, measured.kept, &measured.machine, room, own, changes, count);
fail:
    sli_measured_run_close(&measured);
    free(room);
    return status;
}
