/* The cut whose step is the shortest when the table is simulated. */
#include "core/error.h"
#include "nn/module.h"
#include "nn/split_head.h"
#include "parallel/schedule/table.h"
#include "sluice/pipe.h"

#include <stdlib.h>
#include <string.h>

/* If there are at most this many cuts, all are tried. */
enum { MOST_CUTS = 1000 };

enum { SUMS = 10 }; /* of a stage */

/* Stage s has modules cuts[s] ... cuts[s + 1] - 1. */
typedef struct search {
    const sl_partition_costs *costs;
    int modules, stages;
    int *cuts, *trial;           /* [stages + 1] the best so far, and the one that is tried */
    int *balance;                /* [stages] of the trial */
    sl_stage_backward *backward; /* [2][stages] of the trial, and of `rewritten` */
    sl_schedule *rewritten;      /* the table as it runs with such stages; NULL: none yet */
    double *sums;   /* [10][stages] F, I, W and B of each stage of the trial, the time of its output
                       to the next one and of its bytes alone, S and T; then the links of S, each
                       way [ranks] */
    double seconds; /* of the best; negative: there is none */
    double cost;    /* by which the best is found: `seconds`, and a little for shared cores */
} search;

/* Of the time on cores of their own, where ranks share cores: ranks that share all of them take as
 * long for any cut. */
static const double own_cores_weight = 1e-3;

/* What the output of a stage takes to the next one; *busy: in which it has the link to itself. */
static double link_seconds(const search *s, int stage, double *busy)
{
    const int *placement = sl_schedule_placement(s->costs->table);
    int source = placement[stage], target = placement[stage + 1];
    if (!s->costs->links || source == target)
        return 0;
    const sl_link_cost *link =
        &s->costs->links[source * sl_schedule_ranks(s->costs->table) + target];
    double bytes = s->costs->profiles[source][s->trial[stage + 1] - 1].output_bytes /
                   sl_schedule_slices(s->costs->table);
    *busy = bytes * link->seconds_per_byte;
    return link->seconds + *busy;
}

/* The table as it runs with the trial's cut: the last one's where all stages go backward as they
 * did in it. Owned by the search. */
static sl_status find_table(search *s, const sl_schedule **out)
{
    const sl_schedule *table = s->costs->table;
    size_t bytes = (size_t)s->stages * sizeof *s->backward;
    *out = table;
    if (!s->costs->model)
        return SL_OK;
    for (int stage = 0; stage < s->stages; stage++)
        s->balance[stage] = s->trial[stage + 1] - s->trial[stage];
    sl_partition_backward(s->costs->model, s->stages, s->balance, s->backward);
    if (!s->rewritten || memcmp(s->backward, s->backward + s->stages, bytes) != 0) {
        sl_schedule_destroy(&s->rewritten);
        SL_TRY(sl_schedule_first_micros(table, sl_schedule_micros(table), &s->rewritten));
        SL_TRY(sl_schedule_freeze(s->rewritten, s->backward));
        if (s->costs->head_blocks > 0)
            SL_TRY(sl_schedule_split_head(s->rewritten, sl_partition_head(s->costs->model)));
        memcpy(s->backward + s->stages, s->backward, bytes);
    }
    *out = s->rewritten;
    return SL_OK;
}

/* S and T of each rank, at its first stage. */
static void split_head(const search *s, double *forward, double *backward)
{
    const int *placement = sl_schedule_placement(s->costs->table);
    int ranks = sl_schedule_ranks(s->costs->table), blocks = s->costs->head_blocks;
    for (int rank = 0; rank < ranks; rank++) {
        const sl_module_profile *head = &s->costs->profiles[rank][s->modules - 1];
        double part = sli_split_head_fraction(blocks, rank, ranks);
        int stage = 0;
        while (placement[stage] != rank)
            stage++;
        forward[stage] = part * (head->forward + head->backward_input);
        backward[stage] = part * head->backward_weight;
    }
}

/* A link that is not known, of no time, is taken to be as that between the last two stages, where
 * they are on two ranks. */
static double head_link_seconds(const search *s, int from, int to, double bytes)
{
    const int *placement = sl_schedule_placement(s->costs->table);
    int ranks = sl_schedule_ranks(s->costs->table), last = placement[s->stages - 1],
        before = placement[s->stages - 2];
    const sl_link_cost *link = &s->costs->links[from * ranks + to];
    if (link->seconds <= 0 && link->seconds_per_byte <= 0 && before != last)
        link = &s->costs->links[before * ranks + last];
    return link->seconds + bytes * link->seconds_per_byte;
}

/* The last stage sends its output to all other ranks at once, and so do they their sums back. */
static void link_head(const search *s, double *out)
{
    const sl_partition_costs *costs = s->costs;
    const int *placement = sl_schedule_placement(costs->table);
    int ranks = sl_schedule_ranks(costs->table), last = placement[s->stages - 1];
    double bytes = costs->profiles[last][s->modules - 2].output_bytes;
    for (int rank = 0; rank < ranks; rank++) {
        if (rank == last)
            continue;
        out[rank] = head_link_seconds(s, last, rank, (ranks - 1) * bytes);
        out[ranks + rank] = head_link_seconds(s, rank, last, costs->head_sums_bytes);
    }
}

/* `cores` as in sl_partition_costs. */
static sl_status simulate_trial(search *s, const int *cores, sl_simulation *out)
{
    int frozen = s->costs->model ? sli_module_frozen_count(s->costs->model) : 0;
    const int *placement = sl_schedule_placement(s->costs->table);
    double *forward = s->sums, *input = forward + s->stages, *weight = input + s->stages,
           *backward = weight + s->stages, *links = backward + s->stages, *busy = links + s->stages,
           *head_forward = busy + s->stages, *head_backward = head_forward + s->stages,
           *head_links = head_backward + s->stages;
    bool splits = s->costs->model && s->costs->head_blocks > 0;
    int slices = sl_schedule_slices(s->costs->table);
    memset(s->sums, 0, SUMS * (size_t)s->stages * sizeof *s->sums);
    if (splits)
        split_head(s, head_forward, head_backward);
    for (int stage = 0; stage + 1 < s->stages; stage++)
        links[stage] = link_seconds(s, stage, &busy[stage]);
    if (splits && s->costs->links && s->stages > 1)
        link_head(s, head_links);
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = s->trial[stage]; i < s->trial[stage + 1]; i++) {
            const sl_module_profile *module = &s->costs->profiles[placement[stage]][i];
            if (splits && i + 1 == s->modules)
                continue;
            forward[stage] += module->forward / slices;
            if (i < frozen)
                continue;
            input[stage] += module->backward_input / slices;
            weight[stage] += module->backward_weight / slices;
            backward[stage] += module->backward / slices;
        }
    const sl_schedule *table;
    SL_TRY(find_table(s, &table));
    return sl_schedule_simulate(table,
                                &(sl_cost_model){.forward = forward,
                                                 .backward_input = input,
                                                 .backward_weight = weight,
                                                 .backward = backward,
                                                 .head_forward = head_forward,
                                                 .head_backward = head_backward,
                                                 .links = links,
                                                 .head_links = head_links,
                                                 .busy = busy,
                                                 .cores = cores},
                                out);
}

static sl_status time_trial(search *s, const int *cores, double *seconds)
{
    sl_simulation simulation;
    SL_TRY(simulate_trial(s, cores, &simulation));
    *seconds = simulation.makespan;
    sl_simulation_clear(&simulation);
    return SL_OK;
}

/* Makes the trial the best if it is shorter and fits. Of equal ones the first stays. */
static sl_status try_cuts(search *s, bool *better)
{
    double seconds, own_cores = 0;
    *better = false;
    SL_TRY(time_trial(s, s->costs->cores, &seconds));
    if (s->costs->cores)
        SL_TRY(time_trial(s, NULL, &own_cores));
    double cost = seconds + own_cores_weight * own_cores;
    if (s->seconds >= 0 && cost >= s->cost)
        return SL_OK;
    for (int stage = 0; stage < s->stages; stage++)
        s->balance[stage] = s->trial[stage + 1] - s->trial[stage];
    if (s->costs->fits && !s->costs->fits(s->costs->context, s->balance))
        return SL_OK;
    memcpy(s->cuts, s->trial, ((size_t)s->stages + 1) * sizeof *s->cuts);
    s->seconds = seconds;
    s->cost = cost;
    *better = true;
    return SL_OK;
}

/* ---- All cuts --------------------------------------------------------------------------- */

static bool are_few(const search *s)
{
    double count = 1;
    for (int i = 1; i < s->stages; i++)
        count *= (double)(s->modules - i) / i;
    return count <= MOST_CUTS;
}

/* The next cuts in lexicographic order; false: these were the last. */
static bool advance_cuts(search *s)
{
    int i = s->stages - 1;
    while (i > 0 && s->trial[i] == s->modules - (s->stages - i))
        i--;
    if (i == 0)
        return false;
    s->trial[i]++;
    for (i++; i < s->stages; i++)
        s->trial[i] = s->trial[i - 1] + 1;
    return true;
}

static sl_status try_all(search *s)
{
    bool better;
    for (int i = 0; i < s->stages; i++)
        s->trial[i] = i;
    do
        SL_TRY(try_cuts(s, &better));
    while (advance_cuts(s));
    return SL_OK;
}

/* ---- Neighbours ------------------------------------------------------------------------- */

/* Each stage gets modules until it has an equal fraction of the time, as rank 0's device takes it:
 * a start for the search. */
static void cut_evenly(search *s)
{
    const sl_module_profile *times = s->costs->profiles[0];
    double all = 0, sum = 0;
    for (int i = 0; i < s->modules; i++)
        all += times[i].forward + times[i].backward;
    int next = 1;
    for (int i = 0; i < s->modules && next < s->stages; i++) {
        int left = s->modules - i, wanted = s->stages - next;
        bool is_full = i > s->trial[next - 1] && sum >= all * next / s->stages;
        if (is_full || left == wanted)
            s->trial[next++] = i;
        sum += times[i].forward + times[i].backward;
    }
}

/* Moves cuts first ... last by `by` modules, where every stage keeps one. */
static bool shift_cuts(search *s, int first, int last, int by)
{
    memcpy(s->trial, s->cuts, ((size_t)s->stages + 1) * sizeof *s->trial);
    for (int i = first; i <= last; i++)
        s->trial[i] += by;
    return s->trial[first] > s->trial[first - 1] && s->trial[last] < s->trial[last + 1];
}

/* From the best so far: up to `most` modules go from one stage to another, through those between
 * them. */
static sl_status try_neighbours(search *s, int most, bool *improved)
{
    *improved = false;
    for (int first = 1; first < s->stages; first++)
        for (int last = first; last < s->stages; last++)
            for (int by = -most; by <= most; by++) {
                bool better = false;
                if (by != 0 && shift_cuts(s, first, last, by))
                    SL_TRY(try_cuts(s, &better));
                *improved = *improved || better;
            }
    return SL_OK;
}

static void cut_into_equal_counts(search *s)
{
    for (int stage = 1; stage < s->stages; stage++)
        s->trial[stage] = (int)((int64_t)s->modules * stage / s->stages);
}

/* Improves the partition that the trial holds. Where it does not fit, one that does can be far. */
static sl_status improve_partition(search *s)
{
    bool improved;
    memcpy(s->cuts, s->trial, ((size_t)s->stages + 1) * sizeof *s->cuts);
    SL_TRY(try_cuts(s, &improved));
    if (!improved)
        SL_TRY(try_neighbours(s, s->modules, &improved));
    while (improved)
        SL_TRY(try_neighbours(s, 1, &improved));
    return SL_OK;
}

static sl_status search_partitions(search *s)
{
    cut_evenly(s);
    SL_TRY(improve_partition(s));
    if (s->seconds >= 0)
        return SL_OK;
    cut_into_equal_counts(s);
    return improve_partition(s);
}

/* ---- All -------------------------------------------------------------------------------- */

static sl_status allocate_search(search *s)
{
    s->cuts = calloc(3 * (size_t)s->stages + 2, sizeof *s->cuts);
    s->sums = calloc(SUMS * (size_t)s->stages, sizeof *s->sums);
    s->backward = calloc(2 * (size_t)s->stages, sizeof *s->backward);
    if (!s->cuts || !s->sums || !s->backward)
        return sli_no_memory("sl_partition_by_time", "%d stages", s->stages);
    s->trial = s->cuts + s->stages + 1;
    s->balance = s->trial + s->stages + 1;
    s->trial[s->stages] = s->modules;
    return SL_OK;
}

static void free_search(search *s)
{
    free(s->cuts);
    free(s->sums);
    free(s->backward);
    sl_schedule_destroy(&s->rewritten);
}

static sl_status find_cuts(search *s)
{
    SL_TRY(allocate_search(s));
    SL_TRY(are_few(s) ? try_all(s) : search_partitions(s));
    if (s->seconds >= 0)
        return SL_OK;
    return sl_error(SL_ERR_NOT_FOUND,
                    "sl_partition_by_time: no cut of %d modules into %d stages "
                    "fits",
                    s->modules, s->stages);
}

sl_status sl_partition_by_time(const sl_partition_costs *costs, int *balance, double *seconds)
{
    SLI_CHECK_NOT_NULL(costs);
    SLI_CHECK_NOT_NULL(costs->profiles);
    SLI_CHECK_NOT_NULL(costs->table);
    SLI_CHECK_NOT_NULL(balance);
    search s = {.costs = costs,
                .modules = costs->modules,
                .stages = sl_schedule_stages(costs->table),
                .seconds = -1};
    if (s.modules < s.stages)
        return sl_error(SL_ERR_INVALID,
                        "sl_partition_by_time: %d stages need as many modules, there are %d",
                        s.stages, s.modules);
    sl_status status;
    SL_TRY_OR_FAIL(find_cuts(&s));
    for (int stage = 0; stage < s.stages; stage++)
        balance[stage] = s.cuts[stage + 1] - s.cuts[stage];
    if (seconds)
        *seconds = s.seconds;

fail:
    free_search(&s);
    return status;
}

sl_status sl_partition_simulate(const sl_partition_costs *costs, const int *balance,
                                sl_simulation *out)
{
    search s = {.costs = costs,
                .modules = costs->modules,
                .stages = sl_schedule_stages(costs->table)};
    sl_status status;
    SL_TRY_OR_FAIL(allocate_search(&s));
    for (int stage = 0; stage < s.stages; stage++)
        s.trial[stage + 1] = s.trial[stage] + balance[stage];
    status = simulate_trial(&s, costs->cores, out);

fail:
    free_search(&s);
    return status;
}
