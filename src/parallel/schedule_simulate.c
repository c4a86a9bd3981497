#include "parallel/schedule_play.h"

#include <math.h>
#include <stdlib.h>

typedef struct simulation_costs {
    const sl_cost_model *model;
    int last_stage;
    bool forward_only;
} simulation_costs;

static double action_cost(const void *arg, int stage, sl_action action)
{
    const simulation_costs *costs = arg;
    switch (action.kind) {
    case SL_ACTION_BACKWARD:
        return costs->model->backward[stage];
    case SL_ACTION_FORWARD_DISCARD: /* at the end of the pipe, the interpreter takes the input only
                                     */
        if (stage == costs->last_stage && !costs->forward_only)
            return 0;
        break;
    case SL_ACTION_FORWARD:
    case SL_ACTION_RECOMPUTE:
        break;
    }
    return costs->model->forward[stage];
}

static sl_status check_costs(const sl_schedule *schedule, const sl_cost_model *costs)
{
    bool valid = costs->transfer >= 0 && isfinite(costs->transfer);
    for (int stage = 0; stage < schedule->stages; stage++)
        valid = valid && costs->forward[stage] >= 0 && isfinite(costs->forward[stage]) &&
                costs->backward[stage] >= 0 && isfinite(costs->backward[stage]);
    if (!valid)
        return sl_error(SL_ERR_INVALID, "sl_schedule_simulate: every cost must be a number of 0 "
                                        "or more");
    return SL_OK;
}

/* A row alone says how many micro-batches' activations its stage holds. */
static int peak_held(const sl_schedule *schedule, int stage)
{
    const sl_action *row;
    int count = sl_schedule_actions(schedule, stage, &row), held = 0, peak = 0;
    for (int i = 0; i < count; i++) {
        if (row[i].kind == SL_ACTION_FORWARD || row[i].kind == SL_ACTION_RECOMPUTE)
            held++;
        else if (row[i].kind == SL_ACTION_BACKWARD)
            held--;
        peak = held > peak ? held : peak;
    }
    return peak;
}

sl_status sl_schedule_simulate(const sl_schedule *schedule, const sl_cost_model *costs,
                               sl_simulation *out)
{
    *out = (sl_simulation){0};
    SL_TRY(check_costs(schedule, costs));
    SL_TRY(sl_schedule_validate(schedule));
    simulation_costs simulated = {costs, schedule->stages - 1,
                                  sli_schedule_is_forward_only(schedule)};
    sli_play_costs play_costs = {action_cost, &simulated, costs->transfer};
    sli_play play;
    SL_TRY(sli_schedule_play(schedule, &play_costs, &play));

    double busy = 0;
    for (int i = 0; i < play.count; i++)
        busy += play.entries[i].end - play.entries[i].start;
    out->makespan = play.makespan;
    out->bubble = play.makespan > 0 ? 1 - busy / (play.makespan * schedule->stages) : 0;
    int measured = (int)(sizeof out->peak_held / sizeof *out->peak_held);
    for (int stage = 0; stage < schedule->stages && stage < measured; stage++)
        out->peak_held[stage] = peak_held(schedule, stage);
    out->entry_count = play.count;
    out->entries = play.entries; /* taken over */
    play.entries = NULL;
    sli_play_clear(&play);
    return SL_OK;
}

void sl_simulation_clear(sl_simulation *simulation)
{
    free(simulation->entries);
    *simulation = (sl_simulation){0};
}
