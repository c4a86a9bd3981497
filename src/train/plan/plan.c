/* What a run will need: a replica's stages and a host's ranks. */
#include "train/plan/plan.h"
#include "core/error.h"
#include "core/sum_tree.h"
#include "core/usable_memory.h"
#include "device/device.h"
#include "nn/module.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- One replica ------------------------------------------------------------------------- */

/* Where the replica is on several hosts, those of this one's devices have names. */
static sl_status name_devices(const sl_train_options *options, int replica, sl_plan *out)
{
    char *devices, *rest;
    SL_TRY(sli_layout_devices(options, &devices));
    const char *name = strtok_r(devices, ",", &rest);
    int pipeline_ranks = sli_layout_pipeline_ranks(options);
    for (int skipped = replica * pipeline_ranks; skipped > 0; skipped--)
        name = strtok_r(NULL, ",", &rest);
    for (int rank = 0; rank < pipeline_ranks && name; rank++, name = strtok_r(NULL, ",", &rest))
        for (int s = 0; s < out->stages; s++)
            if (out->stage[s].rank == rank)
                snprintf(out->stage[s].device, sizeof out->stage[s].device, "%s", name);
    free(devices);
    return SL_OK;
}

static sl_stage_plan *find_stage(sl_plan *plan, sl_module *module)
{
    sl_stage_plan *stage = plan->stage;
    int index = sli_module_index_in(sli_module_root(module), module);
    while (index >= stage->first + stage->count)
        stage++;
    return stage;
}

typedef struct tie_plan {
    const sl_train_options *options;
    sl_plan *plan;
} tie_plan;

/* A tied parameter has no memory but its gradient, in the stage that uses it. Where that stage is
 * in another process than the owner's, it has a copy of the value as well, and the owner's process
 * a second gradient (parallel/pipe/tied.c). */
static sl_status add_tied(sl_parameter *tied, void *arg)
{
    const tie_plan *of = arg;
    sl_stage_plan *user = find_stage(of->plan, tied->module);
    sl_stage_plan *owner = find_stage(of->plan, tied->tied_to->module);
    int64_t bytes = sl_shape_count(sl_parameter_shape(tied)) * (int64_t)sizeof(float),
            own = sli_layout_pipeline_ranks_of_rank(of->options);
    bool is_trained = sli_parameter_is_trained(tied);
    if (is_trained)
        user->gradient_bytes += bytes;
    if (user->rank / own == owner->rank / own)
        return SL_OK;
    user->parameter_bytes += bytes;
    if (of->options->precision == SL_PRECISION_BF16 && sli_parameter_is_in_products(tied->tied_to))
        user->parameter_bytes += bytes / 2;
    if (is_trained)
        owner->gradient_bytes += bytes;
    return SL_OK;
}

/* The sums of shards that a replica holds at most beside its gradients. */
static int count_sums(const sl_train_options *options)
{
    int shards = sli_layout_shards(options), replicas = sl_train_options_replicas(options),
        most = 0;
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
    int owners = options->zero ? sl_train_options_replicas(options) : 1;
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

static sl_status plan_stages(const sl_train_options *options, const sl_module *model, sl_plan *out)
{
    int balance[SL_MAX_STAGES], first = 0;
    SL_TRY(sli_layout_balance(options, model, balance, &out->stages));
    for (int s = 0; s < out->stages; s++) {
        sl_stage_plan *stage = &out->stage[s];
        stage->first = first;
        stage->count = balance[s];
        first += balance[s];
        plan_parameters(options, model, stage);
    }
    return SL_OK;
}

sl_status sl_plan_create(const sl_train_options *options, const sl_module *model, int replica,
                         sl_plan *out)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(out);
    sl_schedule *schedule;
    *out = (sl_plan){.total_parameters = sl_module_parameter_elements(model)};
    SL_TRY(sli_layout_check(options));
    if (options->batch_size < 1 || options->eval_batch_size < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_plan_create: batch_size and eval_batch_size must be at least 1, got "
                        "%" PRId64 " and %" PRId64,
                        options->batch_size, options->eval_batch_size);
    int replicas =
        sli_layout_host_ranks(options) / sli_layout_of_rank(options, 0).ranks_per_replica;
    if (replica < 0 || (replica > 0 && replica >= replicas))
        return sl_error(SL_ERR_INVALID, "sl_plan_create: asked for replica %d of %d", replica,
                        replicas);
    SL_TRY(plan_stages(options, model, out));
    int64_t rows = options->batch_size;
    int micros = sl_micro_batches(rows, sli_layout_micros(options), NULL);
    int step_micros = sl_train_options_chunks(options);
    SL_TRY(sli_layout_table(options, step_micros < micros ? step_micros : micros, &schedule));
    for (int s = 0; s < out->stages; s++)
        out->stage[s].rank = sl_schedule_placement(schedule)[s];
    sl_status status = name_devices(options, replica, out);
    if (status == SL_OK)
        status = sli_module_for_each_tie(model, add_tied, &(tie_plan){options, out});
    if (status == SL_OK)
        status = sl_schedule_recompute(schedule, options->recompute);
    if (status == SL_OK)
        status =
            sli_plan_training_step(options, (rows + micros - 1) / micros, model, schedule, out);
    sl_schedule_destroy(&schedule);
    return status == SL_OK ? sli_plan_evaluation(options, model, out) : status;
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
static void add_pipeline_rank(const sl_train_options *options, const sl_plan *plan, int rank,
                              bool on_host, bool is_first, bool keeps_best, sl_host_plan *out)
{
    for (int s = 0; s < plan->stages; s++) {
        const sl_stage_plan *stage = &plan->stage[s];
        if (stage->rank != rank)
            continue;
        if (on_host)
            add_device(stage, keeps_best, out);
        if (!options->checkpoints.directory)
            continue;
        if (is_first)
            out->saved_bytes += stage->parameter_bytes + stage->best_bytes;
        if (is_first || options->zero)
            out->saved_bytes += stage->optimizer_bytes;
    }
}

sl_status sl_plan_host(const sl_train_options *options, const sl_module *model, int first_rank,
                       sl_host_plan *out)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(out);
    sl_plan plan;
    int count = sli_layout_host_ranks(options), processes = options->ranks > 0 ? count : 1;
    char *devices, *rest;
    *out = (sl_host_plan){.process_bytes = processes * (int64_t)sli_resident_memory()};
    SL_TRY(sl_plan_create(options, model, 0, &plan));
    SL_TRY(sli_layout_devices(options, &devices));
    const char *device = strtok_r(devices, ", ", &rest);
    for (int rank = first_rank; rank < first_rank + count; rank++) {
        sli_layout of = sli_layout_of_rank(options, rank);
        bool keeps_best = options->ranks > 0 || rank == first_rank; /* one copy a process */
        for (int i = 0; i < of.count; i++, device = device ? strtok_r(NULL, ", ", &rest) : NULL) {
            bool on_host = !device || sli_device_name_has_host_memory(device);
            add_pipeline_rank(options, &plan, of.first + i, on_host, of.replica == 0, keeps_best,
                              out);
        }
    }
    free(devices);
    out->total_bytes = out->parameter_bytes + out->gradient_bytes + out->optimizer_bytes +
                       out->activation_bytes + out->best_bytes + out->saved_bytes +
                       out->process_bytes;
    return SL_OK;
}
