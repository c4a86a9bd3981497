/* What the time of a replica's steps went to, rank by rank. Of a step with several runs of the
 * pipe's table (accumulation steps, shards), the timeline is that of the last: its proportions
 * stand for all. */
#include "sluice/report.h"

#include "core/error.h"

#include <stdlib.h>

enum { MOST_RANKS = 64 }; /* further ones are not counted */

struct sl_step_times {
    int64_t steps;
    int ranks;
    const sl_run_info *info; /* since the run began */
    double seconds[MOST_RANKS][SL_TIME_KINDS];
};

const char *sl_time_kind_name(sl_time_kind kind)
{
    static const char *const names[SL_TIME_KINDS] = {"forward", "backward",  "recompute",
                                                     "waiting", "reducing",  "optimizer",
                                                     "data",    "checkpoint"};
    return (unsigned)kind < SL_TIME_KINDS ? names[kind] : "?";
}

static sl_time_kind kind_of(sl_action_kind kind)
{
    return kind == SL_ACTION_FORWARD     ? SL_TIME_FORWARD
           : kind == SL_ACTION_RECOMPUTE ? SL_TIME_RECOMPUTE
                                         : SL_TIME_BACKWARD;
}

static sl_status start_times(void *context, const sl_run_info *info)
{
    sl_step_times *times = context;
    times->info = info;
    for (int s = 0; s < info->stage_count; s++)
        if (info->stages[s].rank >= times->ranks && info->stages[s].rank < MOST_RANKS)
            times->ranks = info->stages[s].rank + 1;
    return SL_OK;
}

/* The time in the pipe is divided as the timeline is: into actions, and waiting for the rest. */
static void add_pipe(sl_step_times *times, const sl_step_info *step, double in_pipe)
{
    double end = 0, busy[MOST_RANKS] = {0};
    for (int i = 0; i < step->timeline_count; i++)
        end = step->timeline[i].end > end ? step->timeline[i].end : end;
    for (int i = 0; i < step->timeline_count && end > 0; i++) {
        sl_timeline_entry entry = step->timeline[i];
        int stage = entry.action.stage;
        int rank = stage < times->info->stage_count ? times->info->stages[stage].rank : MOST_RANKS;
        if (rank >= MOST_RANKS)
            continue;
        double seconds = (entry.end - entry.start) / end * in_pipe;
        times->seconds[rank][kind_of(entry.action.kind)] += seconds;
        busy[rank] += seconds;
    }
    for (int rank = 0; rank < times->ranks; rank++)
        times->seconds[rank][SL_TIME_WAITING] += in_pipe > busy[rank] ? in_pipe - busy[rank] : 0;
}

static sl_status add_step(void *context, const sl_step_info *step)
{
    sl_step_times *times = context;
    double outside = step->reduce_seconds + step->optimizer_seconds + step->data_seconds;
    times->steps++;
    for (int rank = 0; rank < times->ranks; rank++) {
        times->seconds[rank][SL_TIME_REDUCING] += step->reduce_seconds;
        times->seconds[rank][SL_TIME_OPTIMIZER] += step->optimizer_seconds;
        times->seconds[rank][SL_TIME_DATA] += step->data_seconds;
    }
    add_pipe(times, step, step->seconds > outside ? step->seconds - outside : 0);
    return SL_OK;
}

/* A checkpoint's copy stops all ranks. */
static sl_status add_checkpoint(void *context, const sl_checkpoint_event *event)
{
    sl_step_times *times = context;
    for (int rank = 0; rank < times->ranks && event->kind == SL_CHECKPOINT_SAVED; rank++)
        times->seconds[rank][SL_TIME_CHECKPOINT] += event->copy_seconds;
    return SL_OK;
}

sl_status sl_step_times_create(sl_step_times **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = calloc(1, sizeof **out);
    return *out ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for the times of steps");
}

void sl_step_times_destroy(sl_step_times **times)
{
    if (!times)
        return;
    free(*times);
    *times = NULL;
}

sl_reporter sl_step_times_reporter(sl_step_times *times)
{
    return (sl_reporter){.context = times,
                         .started = start_times,
                         .step = add_step,
                         .checkpoint = add_checkpoint};
}

int sl_step_times_ranks(const sl_step_times *times)
{
    return times->steps > 0 ? times->ranks : 0;
}

double sl_step_times_mean(const sl_step_times *times, int rank, sl_time_kind kind)
{
    bool there = rank >= 0 && rank < sl_step_times_ranks(times) && (unsigned)kind < SL_TIME_KINDS;
    return there ? times->seconds[rank][kind] / (double)times->steps : 0;
}

static double computing(const sl_step_times *times, int rank)
{
    return sl_step_times_mean(times, rank, SL_TIME_FORWARD) +
           sl_step_times_mean(times, rank, SL_TIME_BACKWARD) +
           sl_step_times_mean(times, rank, SL_TIME_RECOMPUTE);
}

int sl_step_times_slowest(const sl_step_times *times)
{
    int slowest = 0;
    for (int rank = 1; rank < sl_step_times_ranks(times); rank++)
        if (computing(times, rank) > computing(times, slowest))
            slowest = rank;
    return slowest;
}
