#include "core/error.h"
#include "parallel/schedule/play.h"

#include <math.h>
#include <stdlib.h>

/* ---- Costs ------------------------------------------------------------------------------ */

static bool is_valid(const double *costs, size_t count)
{
    for (size_t i = 0; costs && i < count; i++)
        if (!(costs[i] >= 0) || !isfinite(costs[i]))
            return false;
    return true;
}

static sl_status check_costs(const sl_schedule *schedule, const sl_cost_model *costs)
{
    const double *const lists[] = {costs->forward,      costs->backward_input,
                                   costs->backward,     costs->backward_weight,
                                   costs->held_bytes,   costs->weight_held_bytes,
                                   costs->head_forward, costs->head_backward};
    bool valid = costs->link >= 0 && isfinite(costs->link) &&
                 is_valid(costs->links, (size_t)schedule->stages - 1) &&
                 is_valid(costs->head_links, 2 * (size_t)schedule->ranks) &&
                 is_valid(costs->busy, (size_t)schedule->stages - 1) &&
                 is_valid(costs->seconds, schedule->count);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        valid = valid && is_valid(lists[i], (size_t)schedule->stages);
    if (!valid)
        return sl_error(SL_ERR_INVALID, "sl_schedule_simulate: every cost must be a number of 0 "
                                        "or more");
    return SL_OK;
}

/* What the caller does not say, [2 * stages]: B, which is I and W together, then zeros. */
static sl_status complete_costs(const sl_schedule *schedule, const sl_cost_model *costs,
                                double **both)
{
    *both = calloc(2 * (size_t)schedule->stages, sizeof **both);
    if (!*both)
        return sli_no_memory("schedule", "the costs of %d stages", schedule->stages);
    for (int stage = 0; stage < schedule->stages; stage++)
        (*both)[stage] = costs->backward
                             ? costs->backward[stage]
                             : costs->backward_input[stage] + costs->backward_weight[stage];
    return SL_OK;
}

/* ---- What a rank holds ------------------------------------------------------------------ */

/* A row alone says how many micro-batches' activations its rank holds, and how many bytes. */
static void find_peaks(const sl_schedule *schedule, const sl_cost_model *costs, int rank,
                       sl_simulation *out)
{
    const sl_action *row;
    int count = sl_schedule_actions(schedule, rank, &row), held = 0;
    double bytes = 0;
    for (int i = 0; i < count; i++) {
        int stage = row[i].stage;
        double whole = costs->held_bytes ? costs->held_bytes[stage] : 0;
        double half = costs->weight_held_bytes ? costs->weight_held_bytes[stage] : 0;
        bool enters = row[i].kind == SL_ACTION_RECOMPUTE ||
                      (row[i].kind == SL_ACTION_FORWARD && !row[i].discards);
        bool halves = row[i].kind == SL_ACTION_BACKWARD_INPUT;
        bool ends = row[i].kind == SL_ACTION_BACKWARD || row[i].kind == SL_ACTION_BACKWARD_WEIGHT;
        held += enters - ends;
        bytes += enters ? whole : halves ? half - whole : 0;
        bytes -= !ends ? 0 : row[i].kind == SL_ACTION_BACKWARD ? whole : half;
        out->peak_held[rank] = held > out->peak_held[rank] ? held : out->peak_held[rank];
        out->peak_bytes[rank] = bytes > out->peak_bytes[rank] ? bytes : out->peak_bytes[rank];
    }
}

/* ---- Times ------------------------------------------------------------------------------ */

/* Idle times, and the bubble of the rank that takes longest from its first action to its last. */
static void find_bubbles(const sl_schedule *schedule, sl_simulation *out)
{
    double all_idle = 0, longest = 0;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        size_t first = sli_schedule_row(schedule, rank), end = schedule->ends[rank];
        double busy = 0, span = 0;
        for (size_t i = first; i < end; i++)
            busy += out->entries[i].end - out->entries[i].start;
        if (end > first)
            span = out->entries[end - 1].end - out->entries[first].start;
        out->idle[rank] = out->makespan - busy;
        all_idle += out->idle[rank];
        if (span <= longest)
            continue;
        longest = span;
        out->bubble_span = 1 - busy / span;
    }
    out->bubble = out->makespan > 0 ? all_idle / (out->makespan * schedule->ranks) : 0;
}

static sl_status allocate_simulation(const sl_schedule *schedule, sl_simulation *out)
{
    size_t ranks = (size_t)schedule->ranks;
    out->idle = calloc(ranks, sizeof *out->idle);
    out->peak_held = calloc(ranks, sizeof *out->peak_held);
    out->peak_bytes = calloc(ranks, sizeof *out->peak_bytes);
    out->entries = calloc(schedule->count + 1, sizeof *out->entries);
    if (!out->idle || !out->peak_held || !out->peak_bytes || !out->entries)
        return sli_no_memory("schedule", "the simulation of %zu actions", schedule->count);
    return SL_OK;
}

static sl_status simulate_table(const sl_schedule *schedule, const sl_cost_model *costs,
                                const double *both, sl_simulation *out)
{
    const double *none = both + schedule->stages;
    const double *head_forward = costs->head_forward ? costs->head_forward : none;
    const double *head_backward = costs->head_backward ? costs->head_backward : none;
    sli_play_costs durations = {.costs = {[SL_ACTION_FORWARD] = costs->forward,
                                          [SL_ACTION_RECOMPUTE] = costs->forward,
                                          [SL_ACTION_BACKWARD] = both,
                                          [SL_ACTION_BACKWARD_INPUT] = costs->backward_input,
                                          [SL_ACTION_BACKWARD_WEIGHT] = costs->backward_weight,
                                          [SL_ACTION_HEAD_FORWARD] = head_forward,
                                          [SL_ACTION_HEAD_BACKWARD] = head_backward},
                                .seconds = costs->seconds,
                                .skips_discarded = true,
                                .link = costs->link,
                                .links = costs->links,
                                .head_links = costs->head_links,
                                .busy = costs->busy,
                                .cores = costs->cores};
    sli_play play;
    SL_TRY(allocate_simulation(schedule, out));
    SL_TRY(sli_schedule_play(schedule, &durations, &play));
    for (size_t i = 0; i < schedule->count; i++)
        out->entries[i] = (sl_timeline_entry){schedule->actions[i], play.starts[i], play.ends[i]};
    out->entry_count = (int)schedule->count;
    out->makespan = play.makespan;
    sli_play_clear(&play);
    for (int rank = 0; rank < schedule->ranks; rank++)
        find_peaks(schedule, costs, rank, out);
    find_bubbles(schedule, out);
    return SL_OK;
}

sl_status sl_schedule_simulate(const sl_schedule *schedule, const sl_cost_model *costs,
                               sl_simulation *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_simulation){0};
    SLI_CHECK_NOT_NULL(schedule);
    SLI_CHECK_NOT_NULL(costs);
    SLI_CHECK_NOT_NULL(costs->forward);
    SLI_CHECK_NOT_NULL(costs->backward_input);
    SLI_CHECK_NOT_NULL(costs->backward_weight);
    SL_TRY(check_costs(schedule, costs));
    SL_TRY(sl_schedule_validate(schedule));
    double *both;
    SL_TRY(complete_costs(schedule, costs, &both));
    sl_status status = simulate_table(schedule, costs, both, out);
    free(both);
    if (status != SL_OK)
        sl_simulation_clear(out);
    return status;
}

void sl_simulation_clear(sl_simulation *simulation)
{
    free(simulation->idle);
    free(simulation->peak_held);
    free(simulation->peak_bytes);
    free(simulation->entries);
    *simulation = (sl_simulation){0};
}
