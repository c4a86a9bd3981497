/* The plan of a run: where its model is cut, and the memory that this takes. */
#include "train/plan/plan.h"

#include "core/error.h"
#include "core/usable_memory.h"
#include "device/device.h"
#include "nn/split_head.h"
#include "train/plan/profile.h"

#include <string.h>

sl_status sli_plan_check_head(const sl_plan *plan, const sl_module *model)
{
    const sl_train_options *options = &plan->options;
    bool on_host = true;
    if (!options->split_vocabulary)
        return SL_OK;
    for (int i = 0; i < options->replicas * options->pipeline_ranks; i++) {
        const char *device = plan->devices[i].name;
        on_host &= !*device || sli_device_name_has_host_memory(device);
    }
    return sli_split_head_check(model, options->precision, on_host, SL_VOCABULARY_BLOCKS,
                                options->pipeline_ranks);
}

sl_status sli_plan_check_kind(const sl_plan *plan)
{
    const char *planned = plan->options.planned_device,
               *kind = sli_device_list_kind(plan->device_names);
    if (!planned || plan->options.force || (kind && strcmp(kind, planned) == 0))
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "the plan is for %s devices, but the run's are %s: name such devices, plan for "
                    "these, or set force",
                    planned, kind ? kind : "of several kinds");
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

sli_layout sli_plan_layout_of(const sl_plan *plan, const sl_module *model)
{
    const sl_train_options *options = &plan->options;
    int64_t eval_rows = options->eval_batch_size;
    int eval_micros = sl_micro_batches(eval_rows, options->chunks * options->accumulate, NULL);
    return (sli_layout){.model = model,
                        .table = plan->table,
                        .replicas = options->replicas,
                        .shards = options->shards,
                        .accumulate = options->accumulate,
                        .head_blocks = options->split_vocabulary ? SL_VOCABULARY_BLOCKS : 0,
                        .row_tokens = options->task ? 0 : options->bptt,
                        .micro_rows = plan->micro_rows,
                        .eval_micro_rows = (eval_rows + eval_micros - 1) / eval_micros,
                        .eval_micros = eval_micros,
                        .precision = options->precision,
                        .optimizer = options->optimizer,
                        .zero = options->zero,
                        .keeps_best = options->epochs > 1 || options->eval_every > 0,
                        .saves = options->checkpoints.directory != NULL,
                        .ranks = plan->ranks,
                        .near_replicas = options->near_replicas,
                        .processes = plan->processes,
                        .first_rank = plan->first_rank,
                        .ranks_here = plan->ranks_here,
                        .devices = plan->devices,
                        .process_bytes = (int64_t)sli_resident_memory()};
}

sl_status sli_plan_cut(sl_plan *plan, const sl_module *model, const int *balance)
{
    int chosen[SL_MAX_STAGES];
    const sli_layout layout = sli_plan_layout_of(plan, model);
    SL_TRY(sli_plan_check_head(plan, model));
    if (!balance)
        SL_TRY(sli_plan_choose_cut(plan, model, chosen));
    plan->total_parameters = sl_module_parameter_elements(model);
    SL_TRY(sli_layout_plan_stages(&layout, balance ? balance : chosen, plan->stage));
    if (layout.row_tokens > 0)
        sli_layout_plan_host(&layout, plan->stage, plan->first_rank, plan->ranks_here, &plan->host);
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
    SL_TRY_OR_FAIL(sli_plan_cut(*out, model, NULL));
    if (profiles)
        SL_TRY_OR_FAIL(sli_plan_profile(*out, model, profiles));
    return SL_OK;
fail:
    sl_plan_destroy(out);
    return status;
}
