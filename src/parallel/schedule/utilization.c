/* Where the time of a step went, from its trace. */
#include "core/error.h"
#include "parallel/schedule/play.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- The trace's table ------------------------------------------------------------------ */

/* How many actions each rank has, in `counts`, and the number of micro-batches. */
static sl_status count_actions(const sl_timeline_entry *entries, int count,
                               const sl_schedule_options *layout, int stages, int *counts,
                               int *micros)
{
    int before = 0;
    for (int i = 0; i < count; i++) {
        sl_action action = entries[i].action;
        bool has_stage = action.stage >= 0 && action.stage < stages;
        int rank = !has_stage          ? -1
                   : layout->placement ? layout->placement[action.stage]
                                       : action.stage % layout->ranks;
        if (rank < before || rank >= layout->ranks)
            return sl_error(
                SL_ERR_INVALID,
                "sl_timeline_utilization: entry %d, of stage %d, must be of a rank from %d "
                "to %d",
                i, action.stage, before, layout->ranks - 1);
        if (action.micro == INT_MAX)
            return sl_error(SL_ERR_INVALID,
                            "sl_timeline_utilization: entry %d is of micro-batch %d", i,
                            action.micro);
        counts[rank]++;
        before = rank;
        *micros = action.micro >= *micros ? action.micro + 1 : *micros;
    }
    return SL_OK;
}

static sl_status make_table(const sl_timeline_entry *entries, int count,
                            const sl_schedule_options *layout, sl_schedule **out)
{
    sl_schedule_options options = *layout;
    int stages;
    if (__builtin_mul_overflow(layout->ranks, layout->virtual_stages ? layout->virtual_stages : 1,
                               &stages))
        return sl_error(SL_ERR_INVALID, "sl_timeline_utilization: too many stages");
    int *counts = calloc((size_t)layout->ranks, sizeof *counts);
    sl_action *actions = malloc((size_t)count * sizeof *actions);
    sl_status status;
    SL_TRY_OR_FAIL(
        counts && actions ? SL_OK : sli_no_memory("sl_timeline_utilization", "%d actions", count));
    options.micros = 0;
    SL_TRY_OR_FAIL(count_actions(entries, count, layout, stages, counts, &options.micros));
    if (options.slices > 1)
        options.micros = (options.micros - 1) / options.slices + 1;
    for (int i = 0; i < count; i++)
        actions[i] = entries[i].action;
    SL_TRY_OR_FAIL(sl_schedule_from_table(&options, counts, actions, out));
    (*out)->forward_only = layout->forward_only;
    SL_TRY_OR_FAIL(sli_schedule_mark(*out));
    status = sl_error_context(sl_schedule_validate(*out),
                              "sl_timeline_utilization: the trace is not of a whole step: ");

fail:
    free(actions);
    free(counts);
    return status;
}

/* ---- Measured costs --------------------------------------------------------------------- */

/* Mean seconds of each stage's actions, and their number, [stages][slices] each: a later slice
 * attends to more. R counts as F. */
typedef struct mean_costs {
    double *mean[SLI_ACTION_KINDS], *count[SLI_ACTION_KINDS];
} mean_costs;

static size_t cost_count(const sl_schedule *schedule)
{
    return (size_t)schedule->stages * (size_t)schedule->slices;
}

/* The action's index in all means. */
static size_t find_cost(const sl_schedule *schedule, sl_action action)
{
    int kind = action.kind == SL_ACTION_RECOMPUTE ? SL_ACTION_FORWARD : (int)action.kind;
    return (size_t)kind * cost_count(schedule) + (size_t)action.stage * (size_t)schedule->slices +
           (size_t)sli_action_slice(action);
}

/* `room` holds 2 * SLI_ACTION_KINDS * stages * slices zeros; seconds[i], entry i's, become the
 * means. */
static mean_costs find_costs(const sl_schedule *schedule, double *seconds, double *room)
{
    mean_costs costs;
    size_t each = cost_count(schedule);
    double *counts = room + SLI_ACTION_KINDS * each;
    for (int kind = 0; kind < SLI_ACTION_KINDS; kind++) {
        costs.mean[kind] = room + (size_t)kind * each;
        costs.count[kind] = counts + (size_t)kind * each;
    }
    for (size_t i = 0; i < schedule->count; i++) {
        if (sli_action_is_empty(schedule, schedule->actions[i]))
            continue;
        room[find_cost(schedule, schedule->actions[i])] += seconds[i];
        counts[find_cost(schedule, schedule->actions[i])]++;
    }
    for (size_t i = 0; i < SLI_ACTION_KINDS * each; i++)
        room[i] /= counts[i] > 0 ? counts[i] : 1;
    for (size_t i = 0; i < schedule->count; i++) {
        bool is_empty = sli_action_is_empty(schedule, schedule->actions[i]);
        seconds[i] = is_empty ? 0 : room[find_cost(schedule, schedule->actions[i])];
    }
    return costs;
}

/* When the rank's entry at hand starts or, if it has started, ends. */
static double next_event(const sl_timeline_entry *entry, bool runs)
{
    return runs ? entry->end : entry->start;
}

/* Adds to the entries at hand that run, at[rank], what they had of their cores in so much time. */
static void divide_time(const sl_schedule *schedule, const int *cores, const size_t *at,
                        const bool *runs, double time, double *seconds)
{
    for (int rank = 0; rank < schedule->ranks; rank++) {
        int sharing = 0;
        for (int other = 0; other < schedule->ranks && runs[rank]; other++)
            sharing += runs[other] && cores[other] == cores[rank];
        if (runs[rank])
            seconds[at[rank]] += time / sharing;
    }
}

/* What each entry would have taken on cores of its own: goes from one start or end to the next. */
static void find_own_seconds(const sl_schedule *schedule, const sl_timeline_entry *entries,
                             const int *cores, size_t *at, bool *runs, double *seconds)
{
    double now = 0;
    for (int rank = 0; rank < schedule->ranks; rank++)
        at[rank] = sli_schedule_row(schedule, rank);
    for (;;) {
        int first = -1;
        for (int rank = 0; rank < schedule->ranks; rank++)
            if (at[rank] < schedule->ends[rank] &&
                (first < 0 || next_event(&entries[at[rank]], runs[rank]) <
                                  next_event(&entries[at[first]], runs[first])))
                first = rank;
        if (first < 0)
            return;
        double next = next_event(&entries[at[first]], runs[first]);
        divide_time(schedule, cores, at, runs, next - now, seconds);
        now = next;
        at[first] += runs[first];
        runs[first] = !runs[first];
    }
}

/* seconds[i] of entry i, from zeros. */
static sl_status find_seconds(const sl_schedule *schedule, const sl_timeline_entry *entries,
                              const int *cores, double *seconds)
{
    for (size_t i = 0; i < schedule->count && !cores; i++)
        seconds[i] = entries[i].end - entries[i].start;
    if (!cores)
        return SL_OK;
    size_t *at = calloc((size_t)schedule->ranks, sizeof *at);
    bool *runs = calloc((size_t)schedule->ranks, sizeof *runs);
    sl_status status = SL_OK;
    if (at && runs)
        find_own_seconds(schedule, entries, cores, at, runs, seconds);
    else
        status = sli_no_memory("sl_timeline_utilization", "%d ranks", schedule->ranks);
    free(at);
    free(runs);
    return status;
}

/* Some micro-batches of a stage may go backward whole, and others in halves. */
static void keep_stage_costs(const sl_schedule *schedule, const mean_costs *costs,
                             sl_utilization *out)
{
    int slices = schedule->slices, micros = sl_schedule_micros(schedule);
    for (size_t i = 0; i < cost_count(schedule); i++) {
        size_t stage = i / (size_t)slices;
        out->forward[stage] += costs->mean[SL_ACTION_FORWARD][i];
        for (int kind = 0; kind < SLI_ACTION_KINDS; kind++)
            if (kind != SL_ACTION_FORWARD)
                out->backward[stage] += costs->mean[kind][i] * costs->count[kind][i] / micros;
    }
}

static sl_status simulate_step(const sl_schedule *schedule, const sl_schedule_options *layout,
                               const mean_costs *costs, const double *seconds, sl_utilization *out)
{
    sl_simulation simulation;
    SL_TRY(sl_schedule_simulate(
        schedule,
        &(sl_cost_model){.forward = costs->mean[SL_ACTION_FORWARD],
                         .backward_input = costs->mean[SL_ACTION_BACKWARD_INPUT],
                         .backward_weight = costs->mean[SL_ACTION_BACKWARD_WEIGHT],
                         .seconds = seconds,
                         .link = layout->link,
                         .links = layout->links,
                         .cores = layout->cores},
        &simulation));
    out->bubble_predicted = simulation.bubble;
    out->predicted_seconds = simulation.makespan;
    memcpy(out->predicted, simulation.entries, schedule->count * sizeof *out->predicted);
    sl_simulation_clear(&simulation);
    return SL_OK;
}

static sl_status predict_step(const sl_schedule *schedule, const sl_timeline_entry *entries,
                              const sl_schedule_options *layout, sl_utilization *out)
{
    size_t cells = SLI_ACTION_KINDS * cost_count(schedule);
    double *room = calloc(2 * cells + schedule->count, sizeof *room);
    if (!room)
        return sli_no_memory("sl_timeline_utilization", "the costs of %d stages", schedule->stages);
    double *seconds = room + 2 * cells;
    sl_status status;
    SL_TRY_OR_FAIL(find_seconds(schedule, entries, layout->cores, seconds));
    mean_costs costs = find_costs(schedule, seconds, room);
    keep_stage_costs(schedule, &costs, out);
    status = simulate_step(schedule, layout, &costs, seconds, out);

fail:
    free(room);
    return status;
}

/* ---- What the ranks did ----------------------------------------------------------------- */

/* When each result was there, by its number. Those of joined actions leave when the last of them
 * has ended. */
static sl_status find_results(const sl_schedule *schedule, const sl_timeline_entry *entries,
                              double **out)
{
    size_t results = sli_result_count(schedule);
    double *ends = *out = calloc(results, sizeof *ends), end = 0;
    if (!ends)
        return sli_no_memory("sl_timeline_utilization", "%zu results", results);
    for (size_t i = schedule->count; i-- > 0;) {
        size_t result = sli_result_number(schedule, schedule->actions[i]);
        if (i + 1 == schedule->count || !schedule->actions[i + 1].joined)
            end = entries[i].end;
        if (result < results)
            ends[result] = end;
    }
    return SL_OK;
}

/* When the tensors came from other ranks that action `i` and those joined to it need; 0: they need
 * none. */
static double input_arrival(const sl_schedule *schedule, const double *results, int rank, size_t i)
{
    double latest = 0;
    sli_wait wait;
    do
        for (int w = 0; sli_action_wait(schedule, schedule->actions[i], w, &wait); w++)
            if (wait.rank != rank && results[wait.result] > latest)
                latest = results[wait.result];
    while (++i < schedule->count && schedule->actions[i].joined);
    return latest;
}

/* A rank's gaps before actions whose tensors came later than the end of the action before. */
static void add_rank(const sl_schedule *schedule, const sl_timeline_entry *entries,
                     const double *results, int rank, sl_utilization *out)
{
    double busy = 0, waiting = 0, free_at = 0;
    for (size_t i = sli_schedule_row(schedule, rank); i < schedule->ends[rank]; i++) {
        sl_action action = schedule->actions[i];
        double start = entries[i].start, came = input_arrival(schedule, results, rank, i);
        double until = came < start ? came : start, seconds = entries[i].end - start;
        waiting += until > free_at ? until - free_at : 0;
        busy += seconds;
        out->stage_seconds[action.stage] += seconds;
        free_at = entries[i].end;
    }
    out->idle[rank] = out->seconds > 0 ? 1 - busy / out->seconds : 0;
    out->waiting[rank] = out->seconds > 0 ? waiting / out->seconds : 0;
}

static sl_status allocate(const sl_schedule *schedule, const sl_schedule_options *layout,
                          sl_utilization *out)
{
    size_t ranks = (size_t)schedule->ranks, stages = (size_t)schedule->stages;
    out->ranks = schedule->ranks;
    out->stages = schedule->stages;
    out->action_count = (int)schedule->count;
    out->idle = calloc(ranks, sizeof *out->idle);
    out->waiting = calloc(ranks, sizeof *out->waiting);
    out->stage_seconds = calloc(stages, sizeof *out->stage_seconds);
    out->forward = calloc(stages, sizeof *out->forward);
    out->backward = calloc(stages, sizeof *out->backward);
    out->placement = calloc(stages, sizeof *out->placement);
    out->measured = calloc(schedule->count, sizeof *out->measured);
    out->predicted = calloc(schedule->count, sizeof *out->predicted);
    out->links = layout->links ? calloc(stages, sizeof *out->links) : NULL;
    out->cores = layout->cores ? calloc(ranks, sizeof *out->cores) : NULL;
    if (out->idle && out->waiting && out->stage_seconds && out->forward && out->backward &&
        out->placement && out->measured && out->predicted && !out->links == !layout->links &&
        !out->cores == !layout->cores)
        return SL_OK;
    return sli_no_memory("sl_timeline_utilization", "%d stages", out->stages);
}

static sl_status measure_ranks(const sl_schedule *schedule, const sl_timeline_entry *entries,
                               const sl_schedule_options *layout, sl_utilization *out)
{
    double *results;
    SL_TRY(allocate(schedule, layout, out));
    out->forward_only = layout->forward_only;
    memcpy(out->measured, entries, schedule->count * sizeof *entries);
    if (layout->links)
        memcpy(out->links, layout->links, (size_t)(schedule->stages - 1) * sizeof *out->links);
    if (layout->cores)
        memcpy(out->cores, layout->cores, (size_t)schedule->ranks * sizeof *out->cores);
    memcpy(out->placement, schedule->placement, (size_t)schedule->stages * sizeof *out->placement);
    SL_TRY(find_results(schedule, entries, &results));
    for (size_t i = 0; i < schedule->count; i++)
        out->seconds = entries[i].end > out->seconds ? entries[i].end : out->seconds;
    for (int rank = 0; rank < out->ranks; rank++) {
        add_rank(schedule, entries, results, rank, out);
        out->bubble_measured += out->idle[rank] / out->ranks;
    }
    free(results);
    for (int stage = 1; stage < out->stages; stage++)
        if (out->stage_seconds[stage] > out->stage_seconds[out->slowest_stage])
            out->slowest_stage = stage;
    return predict_step(schedule, entries, layout, out);
}

sl_status sl_timeline_utilization(const sl_timeline_entry *entries, int count,
                                  const sl_schedule_options *layout, sl_utilization *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_utilization){0};
    SLI_CHECK_NOT_NULL(layout);
    if (!entries || count < 1 || layout->ranks < 1 || layout->virtual_stages < 0)
        return sl_error(
            SL_ERR_INVALID,
            "sl_timeline_utilization: the trace needs at least 1 entry and 1 rank, got %d and %d",
            count, layout->ranks);
    sl_schedule *schedule = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(make_table(entries, count, layout, &schedule));
    status = measure_ranks(schedule, entries, layout, out);

fail:
    sl_schedule_destroy(&schedule);
    if (status != SL_OK)
        sl_utilization_clear(out);
    return status;
}

void sl_utilization_clear(sl_utilization *utilization)
{
    free(utilization->idle);
    free(utilization->waiting);
    free(utilization->stage_seconds);
    free(utilization->forward);
    free(utilization->backward);
    free(utilization->placement);
    free(utilization->links);
    free(utilization->cores);
    free(utilization->measured);
    free(utilization->predicted);
    *utilization = (sl_utilization){0};
}
