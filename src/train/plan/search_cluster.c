/* The best plans of a run on a cluster that is not here: its options as what the planner searches.
 */
#include "core/error.h"
#include "models/config.h"
#include "nn/module.h"
#include "nn/split_head.h"
#include "planner/jitter.h"
#include "train/plan/order_cluster.h"
#include "train/plan/plan.h"
#include "train/plan/search_machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_kept(const sli_ordered_search *s, sl_plan_kept option)
{
    return sli_plan_keeps(s->options, s->run, option);
}

/* ---- What is searched ----------------------------------------------------------------------- */

/* The cut by time is searched. */
static bool has_balance(const sli_ordered_search *s)
{
    return s->run->balance_kind == SL_BALANCE_EXPLICIT ||
           (s->run->balance_kind != SL_BALANCE_AUTO && is_kept(s, SL_KEEP_BALANCE));
}

static sl_status check_options(const sli_ordered_search *s)
{
    const sl_train_options *run = s->run;
    const char *given = run->data              ? "a text"
                        : run->task            ? "a task"
                        : run->devices         ? "devices"
                        : run->table           ? "a schedule's file"
                        : run->placement       ? "a placement"
                        : run->accumulate > 1  ? "accumulation steps"
                        : has_balance(s)       ? "a balance"
                        : run->slices > 1      ? "slices"
                        : run->batch_invariant ? "batch-invariant, which no profile is of"
                        : run->force           ? "force"
                                               : NULL;
    if (given)
        return sl_error(SL_ERR_UNSUPPORTED, "plans for a cluster cannot be made with %s", given);
    if (run->bptt < 1)
        return sl_error(SL_ERR_INVALID, "plans for a cluster need the tokens of a row (seq-len)");
    return sli_train_options_check_values(run);
}

/* Those that divide a step's rows. */
static sl_status list_chunks(sli_ordered_search *s)
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
static sl_status limit_replicas(const sli_ordered_search *s, sli_search_space *space)
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

static bool has_cpus(const sli_ordered_search *s)
{
    for (int i = 0; i < s->cluster.kind_count; i++)
        if (!s->cluster.kinds[i].is_cuda)
            return true;
    return false;
}

static sl_status fill_space(sli_ordered_search *s, sli_search_space *space)
{
    const sl_train_options *run = s->run;
    int modules = sl_module_child_count(s->model);
    bool keeps_virtual = run->virtual_stages > 0, keeps_ranks = is_kept(s, SL_KEEP_PIPELINE_RANKS);
    for (int i = 0; i < SLI_MOST_VIRTUAL_STAGES; i++)
        s->virtual_stages[i] = keeps_virtual ? run->virtual_stages : i + 1;
    *space = (sli_search_space){.ranks = s->cluster.devices,
                                .rows = s->rows,
                                .least_pipeline_ranks = keeps_ranks ? run->pipeline_ranks : 1,
                                .most_pipeline_ranks = keeps_ranks ? run->pipeline_ranks : modules,
                                .virtual_stages = s->virtual_stages,
                                .virtual_count = keeps_virtual ? 1 : SLI_MOST_VIRTUAL_STAGES,
                                .chunks = s->chunks,
                                .chunk_count = s->chunk_count,
                                .zeros = {is_kept(s, SL_KEEP_ZERO) && run->zero,
                                          run->zero || !is_kept(s, SL_KEEP_ZERO)},
                                .near_replicas = {run->near_replicas, true}};
    sli_plan_list_choices(s->options, run, space);
    space->splits_vocabulary[1] &= has_cpus(s);
    return limit_replicas(s, space);
}

/* ---- Nothing is found ------------------------------------------------------------ */

/* Why no layout was even looked at. */
static sl_status refuse_space(const sli_ordered_search *s)
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
    if (s->run->split_vocabulary)
        return sl_error(SL_ERR_INVALID,
                        "no layout of at most %d device%s splits the vocabulary: it takes CPUs "
                        "alone, the fastest of the cluster, and schedules that can be split",
                        devices, devices == 1 ? "" : "s");
    return sl_error(SL_ERR_INVALID,
                    "no layout of at most %d device%s has these options: the model's %d modules do "
                    "not give %d pipeline rank%s stages of schedule %s%s",
                    devices, devices == 1 ? "" : "s", sl_module_child_count(s->model), ranks,
                    ranks == 1 ? "" : "s", space->schedule_count == 1 ? space->schedules[0] : "any",
                    space->virtual_count == 1 ? " with so many on each rank" : "");
}

/* The kind whose memory is too small for the smallest layout. */
static sl_status refuse_memory(sli_ordered_search *s, const char *limit)
{
    const sli_candidate *smallest = &s->results.smallest;
    char holder[96];
    sli_devices devices;
    sl_status status;
    SL_TRY_OR_FAIL(sli_devices_list(&s->cluster, s->run->precision, &devices));
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

static sl_status check_found(sli_ordered_search *s, const sl_cluster_plans *found)
{
    char limit[48];
    if (s->results.count > 0)
        return SL_OK;
    snprintf(limit, sizeof limit, "at most %d device%s", s->cluster.devices,
             s->cluster.devices == 1 ? "" : "s");
    if (s->results.smallest_bytes > 0)
        return refuse_memory(s, limit);
    if (found->layouts == 0)
        return refuse_space(s);
    if (found->too_large > 0)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "the tables of %" PRId64 " layouts are too large to be simulated, and "
                        "no smaller one fits: allow fewer chunks or pipeline ranks",
                        found->too_large);
    return sl_error(SL_ERR_INVALID,
                    "schedule %s takes none of the numbers of pipeline ranks, stages and "
                    "micro-batches that are allowed on %s",
                    s->job.space.schedules[0], limit);
}

/* ---- The profiles --------------------------------------------------------------------------- */

/* Whether the kinds' profiles are of the run's model, where they say whose they are. */
static sl_status check_models(const sli_ordered_search *s, const char *path)
{
    for (int i = 0; i < s->cluster.kind_count; i++) {
        const sli_kind_profile *profile = &s->cluster.kinds[i].profile;
        sl_model_options model;
        if (!profile->model)
            continue;
        SL_TRY(sl_error_context(sli_config_parse(profile->model, strlen(profile->model), &model),
                                "%s:%d: nodes[%d].profile.model: ", path, profile->line, i));
        SL_TRY(sl_error_context(sli_config_compare(&model, &s->run->model),
                                "%s:%d: nodes[%d].profile is of another model: ", path,
                                profile->line, i));
    }
    return SL_OK;
}

/* ---- The search --------------------------------------------------------------------------- */

/* Why a vocabulary that is to be split is on no devices of the cluster. */
static sl_status check_asked_split(const sli_ordered_search *s)
{
    int ranks = is_kept(s, SL_KEEP_PIPELINE_RANKS) ? s->run->pipeline_ranks : 1;
    return s->run->split_vocabulary ? sli_split_head_check(s->model, s->run->precision, has_cpus(s),
                                                           SL_VOCABULARY_BLOCKS, ranks)
                                    : SL_OK;
}

static sl_status search_cluster(sli_ordered_search *s, const char *path, sl_cluster_plans *out)
{
    int first = 0;
    SL_TRY(check_options(s));
    SL_TRY(sli_cluster_read(path, &s->cluster));
    SL_TRY(sli_cluster_change(&s->cluster, &s->options->change));
    for (int i = 0; i < s->cluster.kind_count; i++)
        out->nodes += s->cluster.kinds[i].count;
    SL_TRY(sli_plan_count_rows(s->options, s->run, &s->rows));
    SL_TRY(list_chunks(s));
    SL_TRY(sl_transformer_lm_create(&s->run->model, &s->model));
    SL_TRY(
        sli_cluster_check_profiles(&s->cluster, path, s->model, s->run->precision, s->run->bptt));
    SL_TRY(check_models(s, path));
    SL_TRY(check_asked_split(s));
    s->job = (sli_cluster_job){.model = s->model,
                               .precision = s->run->precision,
                               .comm_precision = s->run->comm_precision,
                               .optimizer = s->run->optimizer,
                               .head_blocks = SL_VOCABULARY_BLOCKS,
                               .row_tokens = s->run->bptt,
                               .eval_rows = s->run->eval_batch_size,
                               .keeps_best = s->run->epochs > 1 || s->run->eval_every > 0};
    SL_TRY(fill_space(s, &s->job.space));
    SL_TRY(sli_ordered_search_run(s, out, &first));
    SL_TRY(check_found(s, out));
    out->seed = s->run->seed;
    out->inputs = s->cluster.inputs;
    out->input_count = s->cluster.input_count;
    s->cluster.inputs = NULL;
    s->cluster.input_count = 0;
    if (s->options->most_table_actions > 0)
        SL_TRY(sli_simulate_found(&s->job, &s->cluster, &s->found[first], s->run->seed,
                                  s->options->most_table_actions, &out->table, &out->simulation));
    return s->options->best_only
               ? SL_OK
               : sli_ordered_search_help(s, &out->plans[0], out->layouts, &out->helps);
}

sl_status sl_plan_search_cluster(const sl_plan_search_options *options, const char *path,
                                 sl_cluster_plans *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_cluster_plans){0};
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(options->run);
    SLI_CHECK_NOT_NULL(path);
    sli_ordered_search s = {.options = options,
                            .run = options->run,
                            .best_only = options->best_only};
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
