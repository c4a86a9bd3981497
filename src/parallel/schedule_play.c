#include "parallel/schedule_play.h"

#include <stdlib.h>
#include <string.h>

/* A play under way. The two tables [stages][micros] say when a micro-batch's forward and backward
 * ended at a stage; negative: not yet. */
typedef struct player {
    const sl_schedule *schedule;
    const sli_play_costs *costs;
    double *forward_end, *backward_end;
    double *free_at; /* [stages]: when the stage's last action ended */
} player;

static bool is_forward(sl_action action)
{
    return action.kind == SL_ACTION_FORWARD || action.kind == SL_ACTION_FORWARD_DISCARD;
}

int sli_action_waits_for(const sl_schedule *schedule, int stage, sl_action action)
{
    if (is_forward(action))
        return stage - 1;
    if (action.kind == SL_ACTION_BACKWARD && stage + 1 < schedule->stages)
        return stage + 1;
    return -1;
}

/* When the action can start at the earliest; negative if its input does not exist yet. */
static double earliest_start(const player *p, int stage, sl_action action)
{
    double start = p->free_at[stage];
    int neighbour = sli_action_waits_for(p->schedule, stage, action);
    if (neighbour < 0)
        return start;
    const double *ends = is_forward(action) ? p->forward_end : p->backward_end;
    double end = ends[(size_t)neighbour * (size_t)p->schedule->micros + (size_t)action.micro];
    if (end < 0)
        return -1;
    double arrival = end + p->costs->transfer;
    return arrival > start ? arrival : start;
}

/* Of all stages' next actions that can run, the one that starts first (of the lowest stage, where
 * several do). Starting times never decrease from one to the next, because an action that becomes
 * possible later starts no earlier than the one that made it so. -1 when there is none. */
static int next_stage(const player *p, const int *done, double *start)
{
    int found = -1;
    for (int stage = 0; stage < p->schedule->stages; stage++) {
        const sl_action *row;
        if (done[stage] == sl_schedule_actions(p->schedule, stage, &row))
            continue;
        double candidate = earliest_start(p, stage, row[done[stage]]);
        if (candidate >= 0 && (found < 0 || candidate < *start)) {
            found = stage;
            *start = candidate;
        }
    }
    return found;
}

static void play_all(player *p, sli_play *play)
{
    double start = 0;
    for (int stage; (stage = next_stage(p, play->done, &start)) >= 0;) {
        const sl_action *row;
        sl_schedule_actions(p->schedule, stage, &row);
        sl_action action = row[play->done[stage]++];
        double end =
            start + (p->costs->duration ? p->costs->duration(p->costs->arg, stage, action) : 1.0);
        size_t cell = (size_t)stage * (size_t)p->schedule->micros + (size_t)action.micro;
        if (is_forward(action))
            p->forward_end[cell] = end;
        else if (action.kind == SL_ACTION_BACKWARD)
            p->backward_end[cell] = end;
        p->free_at[stage] = end;
        play->makespan = end > play->makespan ? end : play->makespan;
        play->entries[play->count++] = (sl_timeline_entry){stage, action, start, end};
    }
}

static sl_status check_actions(const sl_schedule *schedule)
{
    for (int stage = 0; stage < schedule->stages; stage++) {
        const sl_action *row;
        int count = sl_schedule_actions(schedule, stage, &row);
        for (int i = 0; i < count; i++) {
            if (row[i].kind < SL_ACTION_FORWARD || row[i].kind > SL_ACTION_BACKWARD)
                return sl_error(SL_ERR_INVALID, "schedule: stage %d, action %d has no kind (%d)",
                                stage, i, (int)row[i].kind);
            if (row[i].micro < 0 || row[i].micro >= schedule->micros)
                return sl_error(SL_ERR_INVALID,
                                "schedule: stage %d, action %d is %s of micro-batch %d, outside "
                                "0 to %d",
                                stage, i, sli_action_name(row[i].kind), row[i].micro,
                                schedule->micros - 1);
        }
    }
    return SL_OK;
}

sl_status sli_schedule_play(const sl_schedule *schedule, const sli_play_costs *costs, sli_play *out)
{
    *out = (sli_play){0};
    SL_TRY(check_actions(schedule));
    size_t stages = (size_t)schedule->stages, cells = stages * (size_t)schedule->micros;
    size_t actions = (size_t)schedule->ends[stages - 1];
    player p = {.schedule = schedule, .costs = costs};
    double *times = malloc((2 * cells + stages) * sizeof *times);
    out->entries = malloc((actions + 1) * sizeof *out->entries);
    out->done = calloc(stages, sizeof *out->done);
    sl_status status = SL_OK;
    if (times && out->entries && out->done) {
        p.forward_end = times;
        p.backward_end = times + cells;
        p.free_at = times + 2 * cells;
        for (size_t i = 0; i < 2 * cells; i++)
            times[i] = -1;
        memset(p.free_at, 0, stages * sizeof *p.free_at);
        play_all(&p, out);
    } else {
        sli_play_clear(out);
        status =
            sl_error(SL_ERR_MEMORY, "schedule: no memory to play a table of %zu actions", actions);
    }
    free(times);
    return status;
}

void sli_play_clear(sli_play *play)
{
    free(play->entries);
    free(play->done);
    *play = (sli_play){0};
}
