/* Where a run's model is cut, and what that takes: each stage's memory, and a host's. */
#include "train/plan/plan.h"

#include "core/error.h"
#include "core/sum_tree.h"
#include "core/usable_memory.h"
#include "device/device.h"
#include "nn/module.h"
#include "train/plan/profile.h"

#include <stdlib.h>
#include <string.h>

/* ---- One replica ------------------------------------------------------------------------- */

static sl_stage_plan *find_stage(sl_plan *plan, sl_module *module)
{
    sl_stage_plan *stage = plan->stage;
    int index = sli_module_index_in(sli_module_root(module), module);
    while (index >= stage->first + stage->count)
        stage++;
    return stage;
}

/* A tied parameter has no memory but its gradient, in the stage that uses it. Where that stage is
 * in another process than the owner's, it has a copy of the value as well, and the owner's process
 * a second gradient (parallel/pipe/pipe_tied.c). */
static sl_status add_tied(sl_parameter *tied, void *arg)
{
    sl_plan *plan = arg;
    sl_stage_plan *user = find_stage(plan, tied->module);
    sl_stage_plan *owner = find_stage(plan, tied->tied_to->module);
    int64_t bytes = sl_shape_count(sl_parameter_shape(tied)) * (int64_t)sizeof(float);
    bool is_trained = sli_parameter_is_trained(tied);
    if (is_trained)
        user->gradient_bytes += bytes;
    if (user->rank / plan->pipeline_ranks_each == owner->rank / plan->pipeline_ranks_each)
        return SL_OK;
    user->parameter_bytes += bytes;
    if (plan->options.precision == SL_PRECISION_BF16 && sli_parameter_is_in_products(tied->tied_to))
        user->parameter_bytes += bytes / 2;
    if (is_trained)
        owner->gradient_bytes += bytes;
    return SL_OK;
}

/* The sums of shards that a replica holds at most beside its gradients. */
static int count_sums(const sl_train_options *options)
{
    int shards = options->shards, replicas = options->replicas, most = 0;
    for (int r = 0; r < replicas; r++) {
        int height = sli_sum_tree_height(sli_sum_tree_first(shards, r, replicas),
                                         sli_sum_tree_first(shards, r + 1, replicas), shards);
        most = height > most ? height : most;
    }
    return most - 1;
}

/* Frozen parameters and buffers are memory without gradient or state. */
static void plan_parameters(const sl_train_options *options, const sl_module *model,
                            sl_stage_plan *stage)
{
    int64_t trained = 0, frozen = 0, buffers = 0, copies = 0;
    int owners = options->zero ? options->replicas : 1;
    for (int i = stage->first; i < stage->first + stage->count; i++) {
        const sl_module *module = sl_module_child(model, i);
        trained += sli_module_elements(module, SL_PARAMETER_TRAINED);
        frozen += sli_module_elements(module, SL_PARAMETER_FROZEN);
        buffers += sli_module_elements(module, SL_PARAMETER_BUFFER);
        if (options->precision == SL_PRECISION_BF16)
            copies += sli_module_product_elements(module);
    }
    stage->parameter_elements = trained + frozen;
    stage->parameter_bytes =
        (trained + frozen + buffers) * (int64_t)sizeof(float) + copies * (int64_t)sizeof(uint16_t);
    stage->gradient_bytes = (1 + count_sums(options)) * trained * (int64_t)sizeof(float);
    stage->optimizer_bytes =
        (trained + owners - 1) / owners * sl_optimizer_state_bytes(&options->optimizer);
    bool keeps_best = options->epochs > 1 || options->eval_every > 0;
    stage->best_bytes = keeps_best ? trained * (int64_t)sizeof(float) : 0;
}

sl_status sli_plan_choose_cut(const sl_plan *plan, const sl_module *model, int *balance)
{
    const sl_train_options *options = &plan->options;
    if (options->balance_kind != SL_BALANCE_EXPLICIT)
        return sl_partition(model, plan->stages,
                            options->balance_kind == SL_BALANCE_LAYERS && !options->task
                                ? SL_PARTITION_LAYERS
                                : SL_PARTITION_PARAMETERS,
                            balance);
    memcpy(balance, options->balance, (size_t)plan->stages * sizeof *balance);
    return SL_OK;
}

sl_status sli_plan_cut(sl_plan *plan, const sl_module *model, const int *balance)
{
    int chosen[SL_MAX_STAGES], first = 0;
    if (!balance)
        SL_TRY(sli_plan_choose_cut(plan, model, chosen));
    plan->total_parameters = sl_module_parameter_elements(model);
    for (int s = 0; s < plan->stages; s++) {
        sl_stage_plan *stage = &plan->stage[s];
        *stage = (sl_stage_plan){.rank = stage->rank,
                                 .first = first,
                                 .count = balance ? balance[s] : chosen[s]};
        first += stage->count;
        plan_parameters(&plan->options, model, stage);
    }
    if (plan->options.task) /* its batches have shapes that nobody knows before */
        return SL_OK;
    SL_TRY(sli_module_for_each_tie(model, add_tied, plan));
    SL_TRY(sli_plan_training_step(model, plan));
    SL_TRY(sli_plan_evaluation(model, plan));
    sli_plan_host(plan, plan->first_rank, plan->ranks_here, &plan->host);
    return SL_OK;
}

sl_status sl_plan_create(const sl_train_options *options, const sl_train_launch *launch,
                         sl_module *model, sl_module_profile *profiles, sl_plan **out)
{
    static const sl_train_launch alone;
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    SL_TRY(sli_train_options_check_values(options));
    if (!launch || sli_plan_rule(options, launch) == SLI_LAYOUT_SEARCHED)
        launch = &alone;
    const sli_plan_inputs inputs = {.options = options, .launch = launch};
    SL_TRY(sli_plan_layout(&inputs, out));
    if (!model)
        return SL_OK;
    sl_status status;
    SLI_TRY_OR_FAIL(sli_plan_cut(*out, model, NULL));
    if (profiles)
        SLI_TRY_OR_FAIL(sli_plan_profile(*out, model, profiles));
    return SL_OK;
fail:
    sl_plan_destroy(out);
    return status;
}

/* ---- All ranks of a host -------------------------------------------------------------------- */

uint64_t sl_usable_memory(void)
{
    return sli_usable_memory("");
}

static void add_device(const sl_stage_plan *stage, bool keeps_best, sl_host_plan *out)
{
    out->parameter_bytes += stage->parameter_bytes;
    out->gradient_bytes += stage->gradient_bytes;
    out->optimizer_bytes += stage->optimizer_bytes;
    out->activation_bytes += stage->activation_bytes + stage->workspace_bytes;
    if (keeps_best)
        out->best_bytes += stage->best_bytes;
}

/* Adds what pipeline rank `rank` of a replica has in host memory. The first replica saves what is
 * the same on all, and each its shard of the optimizer's state. */
static void add_pipeline_rank(const sl_plan *plan, int rank, bool on_host, bool is_first,
                              bool keeps_best, sl_host_plan *out)
{
    for (int s = 0; s < plan->stages; s++) {
        const sl_stage_plan *stage = &plan->stage[s];
        if (stage->rank != rank)
            continue;
        if (on_host)
            add_device(stage, keeps_best, out);
        if (!plan->options.checkpoints.directory)
            continue;
        if (is_first)
            out->saved_bytes += stage->parameter_bytes + stage->best_bytes;
        if (is_first || plan->options.zero)
            out->saved_bytes += stage->optimizer_bytes;
    }
}

/* The devices of all hosts have the same names. */
void sli_plan_host(const sl_plan *plan, int first_rank, int ranks, sl_host_plan *out)
{
    int processes = plan->processes ? ranks : 1;
    const sl_device_plan *devices = plan->devices + plan->first_rank * plan->pipeline_ranks_each;
    *out = (sl_host_plan){.process_bytes = processes * (int64_t)sli_resident_memory()};
    for (int rank = first_rank; rank < first_rank + ranks; rank++) {
        sli_rank_plan part = sli_plan_rank(plan, rank);
        bool keeps_best = plan->processes || rank == first_rank; /* one copy a process */
        for (int i = 0; i < part.count; i++) {
            const char *device = devices[(rank - first_rank) * part.count + i].name;
            bool on_host = !*device || sli_device_name_has_host_memory(device);
            add_pipeline_rank(plan, part.first + i, on_host, part.replica == 0, keeps_best, out);
        }
    }
    out->total_bytes = out->parameter_bytes + out->gradient_bytes + out->optimizer_bytes +
                       out->activation_bytes + out->best_bytes + out->saved_bytes +
                       out->process_bytes;
}
