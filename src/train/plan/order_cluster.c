/* The plans for a cluster that train most tokens a day, of all layouts that could be among them,
 * and what would help the first. */
#include "train/plan/order_cluster.h"

#include "core/error.h"
#include "nn/module.h"
#include "planner/jitter.h"
#include "train/plan/cluster_failures.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ORDERED = 512 };

enum { MOST_SEARCHED_AGAIN = 200000 }; /* layouts: of a million a second search takes minutes */

enum { DEFAULT_DAYS = 30 }; /* of a training without a number of tokens */

/* For so many layouts, whose steps take at most so long, and then by who saves them too; 0: as long
 * as they do. */
static sl_status begin_search(sli_ordered_search *s, int wanted, double most_seconds)
{
    free(s->found);
    s->found = calloc((size_t)wanted, sizeof *s->found);
    s->results = (sli_search){.wanted = wanted,
                              .compares_checkpoints = most_seconds > 0 && s->cluster.mtbf_s > 0,
                              .most_seconds = most_seconds,
                              .prefers_fewer_ranks = true,
                              .holder = "device",
                              .found = s->found};
    return s->found ? SL_OK : sli_no_memory(NULL, "plans");
}

/* ---- What is found -------------------------------------------------------------------------- */

static double step_tokens(const sli_ordered_search *s)
{
    return (double)s->rows * (double)s->run->bptt;
}

static sl_status describe_plan(const sli_ordered_search *s, const sli_devices *devices, double flop,
                               const sli_found_layout *found, sl_cluster_plan *out)
{
    const sli_candidate *candidate = &found->candidate;
    int ranks = candidate->replicas * candidate->pipeline_ranks;
    const sli_used_devices used = sli_devices_used(devices, ranks);
    size_t balance_bytes = (size_t)found->stages * sizeof *out->balance;
    *out = (sl_cluster_plan){.replicas = candidate->replicas,
                             .pipeline_ranks = candidate->pipeline_ranks,
                             .virtual_stages = found->stages / candidate->pipeline_ranks,
                             .schedule = sli_candidate_schedule(candidate),
                             .chunks = candidate->chunks,
                             .recompute = candidate->recompute,
                             .zero = candidate->zero,
                             .near_replicas = candidate->near_replicas,
                             .split_vocabulary = candidate->splits_vocabulary,
                             .batch_size = s->rows / candidate->replicas,
                             .stages = found->stages,
                             .balance = malloc(balance_bytes),
                             .costs = found->costs,
                             .memory_bytes = found->host_bytes,
                             .nodes_used = sli_devices_count_nodes(devices, ranks),
                             .device = used.is_mixed  ? NULL
                                       : used.is_cuda ? "cuda"
                                                      : "cpu"};
    if (!out->balance)
        return sli_no_memory(NULL, "a plan of %d stages", found->stages);
    memcpy(out->balance, found->balance, balance_bytes);
    SL_TRY(sli_draw_step(&s->job, &s->cluster, found, s->run->seed, &out->costs, &out->draws));
    out->tokens_per_s = step_tokens(s) / out->costs.seconds;
    out->mfu = flop / (out->costs.seconds * used.flops);
    return SL_OK;
}

/* A plan with what its failures need. */
typedef struct described_plan {
    sl_cluster_plan plan;
    sli_failing_plan failing;
    int place; /* in s->found */
} described_plan;

static double kept_tokens_per_s(const sl_cluster_plan *plan)
{
    return plan->tokens_per_s * plan->failures.kept_fraction;
}

/* Of so many seconds of steps, or of as many as the training has. */
static double find_work(const sli_ordered_search *s, double tokens_per_s)
{
    double tokens = s->options->tokens;
    return tokens > 0 ? tokens / tokens_per_s : DEFAULT_DAYS * SL_DAY_SECONDS;
}

static sl_status simulate_failures(const sli_ordered_search *s, const sli_devices *devices,
                                   described_plan *described)
{
    sl_cluster_plan *plan = &described->plan;
    double work_s = find_work(s, plan->tokens_per_s);
    described->failing =
        (sli_failing_plan){.elastic = {&s->job, &s->cluster, devices, &s->found[described->place]},
                           .seed = s->run->seed};
    return sli_failing_plan_simulate(&described->failing, plan->nodes_used, work_s,
                                     &plan->failures);
}

static void free_described(described_plan *described)
{
    free(described->plan.balance);
    sli_failing_plan_clear(&described->failing);
    *described = (described_plan){0};
}

/* Behind all that train no fewer tokens: of equal ones the one with the shorter step is first. */
static void insert_plan(described_plan *plans, int count)
{
    described_plan last = plans[count];
    int i = count;
    for (; i > 0 && kept_tokens_per_s(&last.plan) > kept_tokens_per_s(&plans[i - 1].plan); i--)
        plans[i] = plans[i - 1];
    plans[i] = last;
}

/* Of two plans of one shape, the one that trains fewer tokens goes. */
static void drop_shape(const sli_ordered_search *s, described_plan *plans, int *count)
{
    for (int i = 0; i < *count; i++)
        for (int k = i + 1; k < *count; k++)
            if (sli_have_one_shape(&s->found[plans[i].place].candidate,
                                   &s->found[plans[k].place].candidate)) {
                free_described(&plans[k]);
                memmove(&plans[k], &plans[k + 1], (size_t)(--*count - k) * sizeof *plans);
                plans[*count] = (described_plan){0};
                return;
            }
}

/* The layouts that are found take at most so many times as long as their drawn steps. */
static double find_jitter(const sli_ordered_search *s, const sli_devices *devices)
{
    return sli_cluster_jitter(&s->cluster, devices->count,
                              sli_devices_count_nodes(devices, devices->count));
}

static int count_wanted(const sli_ordered_search *s)
{
    return s->best_only ? 1 : SL_PLANS_FOUND;
}

/* What a layout trains at most, where no node fails: its drawn steps are not shorter than without
 * jitter, and its checkpoints are written. */
static sl_status bound_tokens(const sli_ordered_search *s, const sli_devices *devices,
                              const sli_found_layout *found, double *tokens_per_s)
{
    const sli_candidate *candidate = &found->candidate;
    int nodes = sli_devices_count_nodes(devices, candidate->replicas * candidate->pipeline_ranks);
    double steps = step_tokens(s) * find_jitter(s, devices) / found->costs.seconds,
           work_s = find_work(s, steps), seconds;
    SL_TRY(sli_failing_plan_bound(&(sli_elastic_run){&s->job, &s->cluster, devices, found}, nodes,
                                  work_s, &seconds));
    *tokens_per_s = steps * work_s / seconds;
    return SL_OK;
}

/* Adds it, cut anew, if it is among the best. */
static sl_status pick_plan(sli_ordered_search *s, const sli_devices *devices, double flop,
                           int place, described_plan plans[SL_PLANS_FOUND + 1], int *count)
{
    int wanted = count_wanted(s);
    described_plan *next = &plans[*count];
    double most;
    SL_TRY(sli_cluster_recut(&s->job, &s->cluster, &s->found[place]));
    SL_TRY(bound_tokens(s, devices, &s->found[place], &most));
    if (*count == wanted && most <= kept_tokens_per_s(&plans[wanted - 1].plan))
        return SL_OK;
    next->place = place;
    SL_TRY(describe_plan(s, devices, flop, &s->found[place], &next->plan));
    SL_TRY(simulate_failures(s, devices, next));
    insert_plan(plans, (*count)++);
    drop_shape(s, plans, count);
    if (*count > wanted)
        free_described(&plans[--*count]);
    return SL_OK;
}

/* Picks those that train most tokens with failures. Layouts are simulated from the shortest step
 * on, until one would train no more tokens without any failure than the last of those wanted does
 * with them, nor would any behind it. *looks_at_all: that was never so. */
static sl_status pick_plans(sli_ordered_search *s, const sli_devices *devices, double flop,
                            described_plan plans[SL_PLANS_FOUND + 1], int *count,
                            bool *looks_at_all)
{
    int wanted = count_wanted(s);
    *looks_at_all = true;
    for (int i = 0; i < s->results.count && *looks_at_all; i++) {
        double least_s = s->found[i].costs.seconds / find_jitter(s, devices);
        *looks_at_all = *count < wanted ||
                        step_tokens(s) / least_s > kept_tokens_per_s(&plans[wanted - 1].plan);
        if (*looks_at_all)
            SL_TRY(pick_plan(s, devices, flop, i, plans, count));
    }
    return SL_OK;
}

/* Searches again for all layouts whose drawn steps may be short enough to train `least` tokens a
 * second. */
static sl_status search_all_that_matter(sli_ordered_search *s, const sli_devices *devices,
                                        double least)
{
    sli_cluster_search counts;
    SL_TRY(begin_search(s, MOST_ORDERED, step_tokens(s) / least * find_jitter(s, devices)));
    return sli_search_cluster(&s->job, &s->cluster, &s->results, &counts);
}

/* Whether others than the five with the shortest steps may train more tokens a day: of other
 * shapes, or of these with other ranks that write their checkpoints. */
static bool may_be_others(const sli_ordered_search *s, const described_plan *plans, int count,
                          bool looks_at_all)
{
    bool fails = s->cluster.mtbf_s > 0, has_replicas = false;
    for (int i = 0; i < count; i++)
        has_replicas |= plans[i].plan.replicas > 1;
    return (fails && has_replicas) || ((fails || sli_cluster_has_jitter(&s->cluster)) &&
                                       looks_at_all && s->results.count == SL_PLANS_FOUND);
}

/* The plans that train most tokens a day, of all layouts that could be among them. */
static sl_status order_plans(sli_ordered_search *s, const sli_devices *devices,
                             described_plan plans[SL_PLANS_FOUND + 1], sl_cluster_plans *out)
{
    double flop, least = 0;
    const sl_shape row = sl_shape_2d(1, s->run->bptt);
    bool looks_at_all;
    int *count = &out->count;
    SL_TRY(sli_module_count_step_flop(s->model, &row, &flop));
    flop *= (double)s->rows;
    SL_TRY(pick_plans(s, devices, flop, plans, count, &looks_at_all));
    for (int i = 0; i < *count && kept_tokens_per_s(&plans[i].plan) > 0; i++)
        least = kept_tokens_per_s(&plans[i].plan);
    bool may_others = least > 0 && may_be_others(s, plans, *count, looks_at_all);
    out->is_cut_off = may_others && out->layouts > MOST_SEARCHED_AGAIN;
    if (may_others && !out->is_cut_off) {
        SL_TRY(search_all_that_matter(s, devices, least));
        while (*count > 0)
            free_described(&plans[--*count]);
        SL_TRY(pick_plans(s, devices, flop, plans, count, &looks_at_all));
        out->is_cut_off = looks_at_all && s->results.count == MOST_ORDERED;
    }
    return s->best_only
               ? SL_OK
               : sli_failing_plan_find_interval(&plans[0].failing, &plans[0].plan.failures);
}

/* *first: which one of those found is the first. */
static sl_status describe_plans(sli_ordered_search *s, sl_cluster_plans *out, int *first)
{
    sli_devices devices;
    described_plan plans[SL_PLANS_FOUND + 1] = {0};
    sl_status status;
    SL_TRY_OR_FAIL(sli_devices_list(&s->cluster, s->run->precision, &devices));
    status = order_plans(s, &devices, plans, out);
fail:
    *first = plans[0].place;
    for (int i = 0; i < SL_PLANS_FOUND; i++)
        out->plans[i] = plans[i].plan;
    free(plans[SL_PLANS_FOUND].plan.balance);
    for (int i = 0; i <= SL_PLANS_FOUND; i++)
        sli_failing_plan_clear(&plans[i].failing);
    sli_devices_clear(&devices);
    return status;
}

sl_status sli_ordered_search_run(sli_ordered_search *s, sl_cluster_plans *out, int *first)
{
    sli_cluster_search counts;
    SL_TRY(begin_search(s, SL_PLANS_FOUND, 0));
    SL_TRY(sli_search_cluster(&s->job, &s->cluster, &s->results, &counts));
    out->layouts = counts.layouts;
    out->simulated = counts.simulated;
    out->too_large = counts.too_large;
    return s->results.count > 0 ? describe_plans(s, out, first) : SL_OK;
}

/* ---- What would help ------------------------------------------------------------------------- */

/* How many times as many tokens a day the best plan trains as `first`; 0: nothing fits. */
static sl_status find_gain(sli_ordered_search *s, const sl_cluster_plan *first, double *gain)
{
    int place;
    sl_cluster_plans found = {0};
    sl_status status = sli_ordered_search_run(s, &found, &place);
    if (status == SL_OK && found.count > 0 && kept_tokens_per_s(first) > 0)
        *gain = kept_tokens_per_s(&found.plans[0]) / kept_tokens_per_s(first);
    sl_cluster_plans_clear(&found);
    return status;
}

/* With a cluster that has been changed, and is then changed back. */
static sl_status try_change(sli_ordered_search *s, sl_cluster_change change,
                            const sl_cluster_plan *first, double *gain)
{
    const sl_cluster_change back = {.links = change.links > 0 ? 1 / change.links : 0,
                                    .memory = change.memory > 0 ? 1 / change.memory : 0};
    SL_TRY(sli_cluster_change(&s->cluster, &change));
    SL_TRY(find_gain(s, first, gain));
    return sli_cluster_change(&s->cluster, &back);
}

/* Layouts of so many pipeline ranks, and of the plan's replicas. */
static void keep_shape(sli_search_space *space, const sl_cluster_plan *plan, int pipeline_ranks)
{
    space->least_replicas = space->most_replicas = plan->replicas;
    space->least_pipeline_ranks = space->most_pipeline_ranks = pipeline_ranks;
}

static sl_status try_fewer(sli_ordered_search *s, const sl_cluster_plan *first, double *gain)
{
    sli_search_space *space = &s->job.space;
    int ranks = first->pipeline_ranks - 1;
    if (ranks == 0)
        return SL_OK;
    keep_shape(space, first, ranks);
    s->virtual_stages[0] = ranks > 1 ? first->virtual_stages : 1;
    space->schedules = &first->schedule;
    space->chunks = &first->chunks;
    space->recomputes = &first->recompute;
    space->schedule_count = space->virtual_count = space->chunk_count = space->recompute_count = 1;
    space->zeros[0] = space->zeros[1] = first->zero;
    space->splits_vocabulary[0] = space->splits_vocabulary[1] = first->split_vocabulary;
    return find_gain(s, first, gain);
}

sl_status sli_ordered_search_help(sli_ordered_search *s, const sl_cluster_plan *first,
                                  int64_t layouts, sl_plan_helps *out)
{
    s->best_only = true;
    out->is_lower_bound = layouts > MOST_SEARCHED_AGAIN;
    if (out->is_lower_bound)
        keep_shape(&s->job.space, first, first->pipeline_ranks);
    SL_TRY(try_change(s, (sl_cluster_change){.links = 2}, first, &out->gain[SL_HELP_LINKS]));
    SL_TRY(try_change(s, (sl_cluster_change){.memory = 2}, first, &out->gain[SL_HELP_MEMORY]));
    return try_fewer(s, first, &out->gain[SL_HELP_FEWER]);
}
