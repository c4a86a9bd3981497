/* What the time of a rank's steps goes to. */
#include "train/loop/rank_times.h"

static sl_time_kind kind_of(sl_action_kind kind)
{
    return kind == SL_ACTION_FORWARD        ? SL_TIME_FORWARD
           : kind == SL_ACTION_HEAD_FORWARD ? SL_TIME_FORWARD
           : kind == SL_ACTION_RECOMPUTE    ? SL_TIME_RECOMPUTE
                                            : SL_TIME_BACKWARD;
}

/* The time in the pipe is divided as the timeline is: into actions, and waiting for the rest. */
static void add_actions(const sl_stage_info *stages, const sl_step_info *step, double in_pipe,
                        double *busy, sl_rank_stats *ranks)
{
    for (int i = 0; i < step->timeline_count; i++) {
        sl_timeline_entry entry = step->timeline[i];
        int rank = stages[entry.action.stage].rank;
        double seconds = (entry.end - entry.start) / step->timeline_seconds * in_pipe;
        ranks[rank].seconds[kind_of(entry.action.kind)] += seconds;
        busy[rank] += seconds;
    }
}

void sli_rank_times_add(const sl_stage_info *stages, sl_step_info *step, sl_rank_stats *ranks,
                        int count)
{
    double busy[SL_MAX_STAGES] = {0};
    double outside = step->reduce_seconds + step->optimizer_seconds + step->data_seconds;
    double in_pipe = step->seconds > outside ? step->seconds - outside : 0;
    add_actions(stages, step, in_pipe, busy, ranks);
    for (int rank = 0; rank < count; rank++) {
        double *seconds = ranks[rank].seconds;
        if (busy[rank] == 0) /* it is another process's */
            continue;
        double idle = in_pipe > busy[rank] ? in_pipe - busy[rank] : 0;
        ranks[rank].steps++;
        seconds[SL_TIME_WAITING] += idle;
        seconds[SL_TIME_REDUCING] += step->reduce_seconds;
        seconds[SL_TIME_OPTIMIZER] += step->optimizer_seconds;
        seconds[SL_TIME_DATA] += step->data_seconds;
    }
    double busy_fraction = step->timeline_busy_seconds / step->timeline_seconds / count;
    step->waiting_seconds = busy_fraction < 1 ? in_pipe * (1 - busy_fraction) : 0;
}

static double computing_seconds(const sl_rank_stats *rank)
{
    return rank->seconds[SL_TIME_FORWARD] + rank->seconds[SL_TIME_BACKWARD] +
           rank->seconds[SL_TIME_RECOMPUTE];
}

const sl_rank_stats *sli_rank_times_find_slowest(const sl_rank_stats *ranks, int count)
{
    const sl_rank_stats *slowest = NULL;
    for (int i = 0; i < count; i++)
        if (ranks[i].steps > 0 &&
            (!slowest || computing_seconds(&ranks[i]) > computing_seconds(slowest)))
            slowest = &ranks[i];
    return slowest;
}
