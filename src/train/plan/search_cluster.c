/* The best plans of a run on a cluster that is not here: its options as what the planner searches.
 */
#include "core/error.h"
#include "nn/module.h"
#include "planner/jitter.h"
#include "sluice/app/plan.h"
#include "train/plan/cluster_failures.h"
#include "train/plan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VIRTUAL_STAGES = 8, MOST_ORDERED = 512 };

enum { MOST_SEARCHED_AGAIN = 200000 }; /* layouts: of a million a second search takes minutes */

enum { DEFAULT_DAYS = 30 }; /* of a training without a number of tokens */

/* A search, with the lists of its space. */
typedef struct search {
    const sl_plan_search_options *options;
    const sl_train_options *run;
    sl_module *model;
    sli_cluster cluster;
    int64_t rows; /* of a step */
    int *chunks, chunk_count;
    int virtual_stages[MOST_VIRTUAL_STAGES];
    sli_cluster_job job;
    sli_found_layout *found; /* [results.wanted] */
    sli_search results;
} search;

static bool is_kept(const search *s, sl_plan_kept option)
{
    return (s->options->kept & option) != 0;
}

/* ---- What is searched ----------------------------------------------------------------------- */

/* The cut by time is searched. */
static bool has_balance(const search *s)
{
    return s->run->balance_kind == SL_BALANCE_EXPLICIT ||
           (s->run->balance_kind != SL_BALANCE_AUTO && is_kept(s, SL_KEEP_BALANCE));
}

static sl_status check_options(const search *s)
{
    const sl_train_options *run = s->run;
    const char *given = run->data               ? "a text"
                        : run->task             ? "a task"
                        : run->devices          ? "devices"
                        : run->table            ? "a schedule's file"
                        : run->placement        ? "a placement"
                        : run->accumulate > 1   ? "accumulation steps"
                        : has_balance(s)        ? "a balance"
                        : run->split_vocabulary ? "a split vocabulary"
                        : run->slices > 1       ? "slices"
                        : run->force            ? "force"
                                                : NULL;
    if (given)
        return sl_error(SL_ERR_UNSUPPORTED, "plans for a cluster cannot be made with %s", given);
    if (run->bptt < 1)
        return sl_error(SL_ERR_INVALID, "plans for a cluster need the tokens of a row (seq-len)");
    return sli_train_options_check_values(run);
}

static sl_status count_rows(search *s)
{
    const sl_train_options *run = s->run;
    int64_t tokens = s->options->batch_tokens;
    if (tokens % run->bptt != 0)
        return sl_error(SL_ERR_INVALID,
                        "batch-tokens must be a multiple of the %" PRId64
                        " tokens of a row, got %" PRId64,
                        run->bptt, tokens);
    s->rows =
        tokens > 0 ? tokens / run->bptt : run->batch_size * (run->shards > 0 ? run->shards : 1);
    return SL_OK;
}

/* Those that divide a step's rows. */
static sl_status list_chunks(search *s)
{
    int64_t most = s->rows;
    s->chunks =
        calloc((size_t)(most < SL_MAX_CHUNKS ? most : SL_MAX_CHUNKS) + 1, sizeof *s->chunks);
    if (!s->chunks)
        return sli_no_memory(NULL, "numbers of micro-batches");
    if (is_kept(s, SL_KEEP_CHUNKS))
        s->chunks[s->chunk_count++] = s->run->chunks;
    for (int count = 1; count <= most && count <= SL_MAX_CHUNKS && !is_kept(s, SL_KEEP_CHUNKS);
         count++)
        if (most % count == 0)
            s->chunks[s->chunk_count++] = count;
    return SL_OK;
}

/* Each replica has a shard: as many as there are shards, or batches of the given size. */
static sl_status limit_replicas(const search *s, sli_search_space *space)
{
    const sl_train_options *run = s->run;
    int64_t most = s->rows < space->ranks ? s->rows : space->ranks, least = 1;
    bool keeps_shards = is_kept(s, SL_KEEP_SHARDS), keeps_batch = is_kept(s, SL_KEEP_BATCH_SIZE);
    int64_t shards = keeps_shards ? run->shards : keeps_batch ? s->rows / run->batch_size : 0;
    if (keeps_shards || keeps_batch) {
        if (shards < 1 || s->rows % shards != 0 ||
            (keeps_batch && s->rows / shards != run->batch_size))
            return sl_error(SL_ERR_INVALID,
                            "the %" PRId64 " rows of a step cannot be divided into %s", s->rows,
                            keeps_shards ? "so many shards" : "batches of the given size");
        if (is_kept(s, SL_KEEP_REPLICAS) && run->replicas != shards)
            return sl_error(SL_ERR_INVALID,
                            "a plan for a cluster has a shard for each replica: expected %" PRId64
                            " replicas, got %d",
                            shards, run->replicas);
        least = most = shards < space->ranks ? shards : (int64_t)space->ranks + 1;
    }
    if (is_kept(s, SL_KEEP_REPLICAS))
        least = most = run->replicas;
    space->least_replicas = (int)least;
    space->most_replicas = (int)most;
    return SL_OK;
}

static sl_status fill_space(search *s, sli_search_space *space)
{
    static const sl_recompute recomputes[] = {SL_RECOMPUTE_NEVER, SL_RECOMPUTE_EXCEPT_LAST,
                                              SL_RECOMPUTE_ALWAYS};
    const sl_train_options *run = s->run;
    int schedules = 0, modules = sl_module_child_count(s->model);
    bool keeps_virtual = run->virtual_stages > 0, keeps_ranks = is_kept(s, SL_KEEP_PIPELINE_RANKS);
    while (sl_schedule_names[schedules])
        schedules++;
    for (int i = 0; i < MOST_VIRTUAL_STAGES; i++)
        s->virtual_stages[i] = keeps_virtual ? run->virtual_stages : i + 1;
    *space = (sli_search_space){
        .ranks = s->cluster.devices,
        .rows = s->rows,
        .least_pipeline_ranks = keeps_ranks ? run->pipeline_ranks : 1,
        .most_pipeline_ranks = keeps_ranks ? run->pipeline_ranks : modules,
        .schedules = is_kept(s, SL_KEEP_SCHEDULE) ? &run->schedule : sl_schedule_names,
        .schedule_count = is_kept(s, SL_KEEP_SCHEDULE) ? 1 : schedules,
        .virtual_stages = s->virtual_stages,
        .virtual_count = keeps_virtual ? 1 : MOST_VIRTUAL_STAGES,
        .chunks = s->chunks,
        .chunk_count = s->chunk_count,
        .recomputes = is_kept(s, SL_KEEP_RECOMPUTE) ? &run->recompute : recomputes,
        .recompute_count = is_kept(s, SL_KEEP_RECOMPUTE) ? 1 : 3,
        .zeros = {is_kept(s, SL_KEEP_ZERO) && run->zero, run->zero || !is_kept(s, SL_KEEP_ZERO)},
        .tries_near_replicas = true};
    return limit_replicas(s, space);
}

/* For so many layouts, whose steps take at most so long; 0: as long as they do. */
static sl_status begin_search(search *s, int wanted, double most_seconds)
{
    free(s->found);
    s->found = calloc((size_t)wanted, sizeof *s->found);
    s->results = (sli_search){.wanted = wanted,
                              .most_seconds = most_seconds,
                              .prefers_fewer_ranks = true,
                              .holder = "device",
                              .found = s->found};
    return s->found ? SL_OK : sli_no_memory(NULL, "plans");
}

/* ---- What is found -------------------------------------------------------------------------- */

static double step_tokens(const search *s)
{
    return (double)s->rows * (double)s->run->bptt;
}

static sl_status describe_plan(const search *s, const sli_devices *devices, double flop,
                               const sli_found_layout *found, sl_cluster_plan *out)
{
    const sli_candidate *candidate = &found->candidate;
    int ranks = candidate->replicas * candidate->pipeline_ranks;
    size_t balance_bytes = (size_t)found->stages * sizeof *out->balance;
    *out = (sl_cluster_plan){.replicas = candidate->replicas,
                             .pipeline_ranks = candidate->pipeline_ranks,
                             .virtual_stages = found->stages / candidate->pipeline_ranks,
                             .schedule = sli_candidate_schedule(candidate),
                             .chunks = candidate->chunks,
                             .recompute = candidate->recompute,
                             .zero = candidate->zero,
                             .near_replicas = candidate->near_replicas,
                             .batch_size = s->rows / candidate->replicas,
                             .stages = found->stages,
                             .balance = malloc(balance_bytes),
                             .costs = found->costs,
                             .memory_bytes = found->host_bytes,
                             .nodes_used = sli_devices_count_nodes(devices, ranks)};
    if (!out->balance)
        return sli_no_memory(NULL, "a plan of %d stages", found->stages);
    memcpy(out->balance, found->balance, balance_bytes);
    SL_TRY(sli_draw_step(&s->job, &s->cluster, found, s->run->seed, &out->costs, &out->draws));
    out->tokens_per_s = step_tokens(s) / out->costs.seconds;
    out->mfu = flop / (out->costs.seconds * sli_devices_used(devices, ranks).flops);
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

static sl_status simulate_failures(const search *s, const sli_devices *devices,
                                   described_plan *described)
{
    sl_cluster_plan *plan = &described->plan;
    double tokens = s->options->tokens,
           work_s = tokens > 0 ? tokens / plan->tokens_per_s : DEFAULT_DAYS * SL_DAY_SECONDS;
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

/* The layouts that are found take at most so many times as long as their drawn steps. */
static double find_jitter(const search *s, const sli_devices *devices)
{
    return sli_cluster_jitter(&s->cluster, devices->count,
                              sli_devices_count_nodes(devices, devices->count));
}

static int count_wanted(const search *s)
{
    return s->options->best_only ? 1 : SL_PLANS_FOUND;
}

/* Of those found, from the shortest step on, the ones that train most tokens with failures: what
 * cannot be among them, as its steps without failures train no more tokens, is not simulated.
 * *looks_at_all: all that were found could be among them. */
static sl_status pick_plans(search *s, const sli_devices *devices, double flop,
                            described_plan plans[SL_PLANS_FOUND + 1], int *count,
                            bool *looks_at_all)
{
    int wanted = count_wanted(s);
    *looks_at_all = true;
    for (int i = 0; i < s->results.count; i++) {
        described_plan *next = &plans[*count];
        next->place = i;
        double least_s = s->found[i].costs.seconds / find_jitter(s, devices);
        if (*count == wanted &&
            step_tokens(s) / least_s <= kept_tokens_per_s(&plans[wanted - 1].plan)) {
            *looks_at_all = false;
            return SL_OK;
        }
        SL_TRY(sli_cluster_recut(&s->job, &s->cluster, &s->found[i]));
        SL_TRY(describe_plan(s, devices, flop, &s->found[i], &next->plan));
        SL_TRY(simulate_failures(s, devices, next));
        insert_plan(plans, (*count)++);
        if (*count > wanted)
            free_described(&plans[--*count]);
    }
    return SL_OK;
}

/* Searches again for all layouts whose drawn steps may be short enough to train `least` tokens a
 * second. */
static sl_status search_all_that_matter(search *s, const sli_devices *devices, double least)
{
    sli_cluster_search counts;
    SL_TRY(begin_search(s, MOST_ORDERED, step_tokens(s) / least * find_jitter(s, devices)));
    return sli_search_cluster(&s->job, &s->cluster, &s->results, &counts);
}

/* The plans that train most tokens a day, of all layouts that could be among them. */
static sl_status order_plans(search *s, const sli_devices *devices,
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
    bool may_others = s->cluster.mtbf_s > 0 || sli_cluster_has_jitter(&s->cluster);
    may_others = may_others && looks_at_all && s->results.count == SL_PLANS_FOUND && least > 0;
    out->is_cut_off = may_others && out->layouts > MOST_SEARCHED_AGAIN;
    if (may_others && !out->is_cut_off) {
        SL_TRY(search_all_that_matter(s, devices, least));
        while (*count > 0)
            free_described(&plans[--*count]);
        SL_TRY(pick_plans(s, devices, flop, plans, count, &looks_at_all));
        out->is_cut_off = looks_at_all && s->results.count == MOST_ORDERED;
    }
    return s->options->best_only
               ? SL_OK
               : sli_failing_plan_find_interval(&plans[0].failing, &plans[0].plan.failures);
}

/* *first: which one of those found is the first. */
static sl_status describe_plans(search *s, sl_cluster_plans *out, int *first)
{
    sli_devices devices;
    described_plan plans[SL_PLANS_FOUND + 1] = {0};
    sl_status status;
    SLI_TRY_OR_FAIL(sli_devices_list(&s->cluster, s->run->precision, &devices));
    status = order_plans(s, &devices, plans, out);
fail:
    *first = plans[0].place;
    for (int i = 0; i < SL_PLANS_FOUND; i++)
        out->plans[i] = plans[i].plan;
    free(plans[SL_PLANS_FOUND].plan.balance);
    for (int i = 0; i <= SL_PLANS_FOUND; i++)
        sli_failing_plan_clear(&plans[i].failing);
    sli_devices_clear(&devices);
    out->seed = s->run->seed;
    out->inputs = s->cluster.inputs;
    out->input_count = s->cluster.input_count;
    s->cluster.inputs = NULL;
    return status;
}

/* Why no layout was even looked at. */
static sl_status refuse_space(const search *s)
{
    const sli_search_space *space = &s->job.space;
    int devices = s->cluster.devices, ranks = space->least_pipeline_ranks;
    int64_t least = (int64_t)space->least_replicas * ranks;
    bool may_divide = false;
    if (least > devices)
        return sl_error(SL_ERR_INVALID,
                        "%d replica%s of %d pipeline rank%s need %" PRId64
                        " devices, but the cluster has %d",
                        space->least_replicas, space->least_replicas == 1 ? "" : "s", ranks,
                        ranks == 1 ? "" : "s", least, devices);
    for (int i = space->least_replicas; i <= space->most_replicas; i++)
        for (int k = 0; k < space->chunk_count && s->rows % i == 0; k++)
            may_divide |= s->rows / i % space->chunks[k] == 0;
    if (!may_divide)
        return sl_error(SL_ERR_INVALID,
                        "the %" PRId64 " rows of a step cannot be divided among these replicas and "
                        "micro-batches",
                        s->rows);
    return sl_error(SL_ERR_INVALID,
                    "no layout of at most %d device%s has these options: the model's %d modules do "
                    "not give %d pipeline rank%s stages of schedule %s%s",
                    devices, devices == 1 ? "" : "s", sl_module_child_count(s->model), ranks,
                    ranks == 1 ? "" : "s", space->schedule_count == 1 ? space->schedules[0] : "any",
                    space->virtual_count == 1 ? " with so many on each rank" : "");
}

/* The kind whose memory is too small for the smallest layout. */
static sl_status refuse_memory(search *s, const char *limit)
{
    const sli_candidate *smallest = &s->results.smallest;
    char holder[96];
    sli_devices devices;
    sl_status status;
    SLI_TRY_OR_FAIL(sli_devices_list(&s->cluster, s->run->precision, &devices));
    const sli_used_devices used =
        sli_devices_used(&devices, smallest->replicas * smallest->pipeline_ranks);
    snprintf(holder, sizeof holder, "device of %s", used.least->name);
    s->results.holder = holder;
    status = sli_search_refuse(&s->results, limit);
    s->results.holder = NULL;
fail:
    sli_devices_clear(&devices);
    return status;
}

static sl_status check_found(search *s, const sli_cluster_search *counts)
{
    char limit[48];
    if (s->results.count > 0)
        return SL_OK;
    snprintf(limit, sizeof limit, "at most %d device%s", s->cluster.devices,
             s->cluster.devices == 1 ? "" : "s");
    if (s->results.smallest_bytes > 0)
        return refuse_memory(s, limit);
    if (counts->layouts == 0)
        return refuse_space(s);
    if (counts->too_large > 0)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "the tables of %" PRId64 " layouts are too large to be simulated, and "
                        "no smaller one fits: allow fewer chunks or pipeline ranks",
                        counts->too_large);
    return sl_error(SL_ERR_INVALID,
                    "schedule %s takes none of the numbers of pipeline ranks, stages and "
                    "micro-batches that are allowed on %s",
                    s->job.space.schedules[0], limit);
}

/* ---- The search --------------------------------------------------------------------------- */

static sl_status search_cluster(search *s, const char *path, sl_cluster_plans *out)
{
    sli_cluster_search counts;
    int first;
    SL_TRY(check_options(s));
    SL_TRY(sli_cluster_read(path, &s->cluster));
    SL_TRY(sli_cluster_change(&s->cluster, &s->options->change));
    for (int i = 0; i < s->cluster.kind_count; i++)
        out->nodes += s->cluster.kinds[i].count;
    SL_TRY(count_rows(s));
    SL_TRY(list_chunks(s));
    SL_TRY(sl_transformer_lm_create(&s->run->model, &s->model));
    SL_TRY(
        sli_cluster_check_profiles(&s->cluster, path, s->model, s->run->precision, s->run->bptt));
    s->job = (sli_cluster_job){.model = s->model,
                               .precision = s->run->precision,
                               .optimizer = s->run->optimizer,
                               .row_tokens = s->run->bptt,
                               .eval_rows = s->run->eval_batch_size,
                               .keeps_best = s->run->epochs > 1 || s->run->eval_every > 0};
    SL_TRY(fill_space(s, &s->job.space));
    SL_TRY(begin_search(s, SL_PLANS_FOUND, 0));
    SL_TRY(sli_search_cluster(&s->job, &s->cluster, &s->results, &counts));
    out->layouts = counts.layouts;
    out->simulated = counts.simulated;
    out->too_large = counts.too_large;
    SL_TRY(check_found(s, &counts));
    SL_TRY(describe_plans(s, out, &first));
    return s->options->most_drawn > 0
               ? sli_cluster_simulate(&s->job, &s->cluster, &s->found[first],
                                      s->options->most_drawn, &out->table, &out->simulation)
               : SL_OK;
}

sl_status sl_plan_search_cluster(const sl_plan_search_options *options, const char *path,
                                 sl_cluster_plans *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_cluster_plans){0};
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(options->run);
    SLI_CHECK_NOT_NULL(path);
    search s = {.options = options, .run = options->run};
    sl_status status = search_cluster(&s, path, out);
    sl_module_destroy(&s.model);
    sli_cluster_clear(&s.cluster);
    free(s.chunks);
    free(s.found);
    return status;
}

void sl_cluster_plans_clear(sl_cluster_plans *plans)
{
    for (int i = 0; i < SL_PLANS_FOUND; i++)
        free(plans->plans[i].balance);
    free(plans->inputs);
    sl_schedule_destroy(&plans->table);
    sl_simulation_clear(&plans->simulation);
    *plans = (sl_cluster_plans){0};
}
