/* What a run will need, from shapes and the schedule's table: a replica's stages and a host's
 * ranks. */
#include "core/error.h"
#include "core/sum_tree.h"
#include "core/usable_memory.h"
#include "device/device.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "train/layout.h"

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

/* One micro-batch in one stage. A module's workspace is less than what it saves. */
typedef struct micro_plan {
    int64_t input, output; /* bytes; 0 for the first stage's input, ids that the caller owns */
    int64_t saved;         /* from forward to backward, or to its input's half */
    int64_t deferred;      /* between backward's halves */
    int64_t halfway;       /* during backward's first half: what some modules have saved and the
                              others deferred, one of them both */
    int64_t workspace;
} micro_plan;

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t bytes_of(const sl_shape *shape)
{
    return sl_shape_count(shape) * (int64_t)sizeof(float);
}

/* Bytes of f32 as they are kept and sent, but for a module's exact ones. */
static int64_t kept_bytes(const sl_train_options *options, int64_t bytes)
{
    return options->precision == SL_PRECISION_BF16 ? (bytes + 1) / 2 : bytes;
}

/* *shape is that of the stage's input, and becomes that of its output. The last stage keeps its
 * output, the decoder's input, for the loss, which takes the decoder over. */
static sl_status plan_micro(const sl_train_options *options, const sl_module *model,
                            const sl_stage_plan *stage, sl_shape *shape, micro_plan *out)
{
    int last = sl_module_child_count(model) - 1;
    *out = (micro_plan){.input = stage->first > 0 ? kept_bytes(options, bytes_of(shape)) : 0};
    for (int i = stage->first; i < stage->first + stage->count; i++) {
        const sl_module *module = sl_module_child(model, i);
        sl_shape next;
        SL_TRY(sl_module_output_shape(module, shape, &next));
        int64_t saved = i == last ? bytes_of(shape) : sl_module_saved_bytes(module, shape);
        int64_t classes = next.size[next.dims - 1], rows = sl_shape_count(&next) / classes;
        int64_t needed = i == last
                             ? sli_cross_entropy_workspace_bytes(rows, classes, options->precision)
                             : saved;
        int64_t exact = i == last ? 0 : sli_module_exact_bytes(module, rows);
        out->saved += kept_bytes(options, saved - exact) + exact;
        out->halfway = larger(out->halfway, out->saved - out->deferred);
        out->deferred += kept_bytes(options, sl_module_deferred_bytes(module, shape));
        out->workspace = larger(out->workspace, needed);
        if (i < last)
            *shape = next;
    }
    out->halfway += out->deferred;
    out->output = kept_bytes(options, bytes_of(shape));
    return SL_OK;
}

/* What a stage holds while its rank goes along its row. */
typedef struct stage_use {
    int64_t held; /* bytes of passes and of inputs that wait for a recomputation */
    int under_way, most_under_way;
} stage_use;

static void count_action(sl_action action, const micro_plan *micro, stage_use *use)
{
    switch (action.kind) {
    case SL_ACTION_FORWARD:
        use->held += action.discards ? micro->input : micro->saved;
        use->under_way++;
        break;
    case SL_ACTION_RECOMPUTE:
        use->held += micro->saved - micro->input;
        break;
    case SL_ACTION_BACKWARD:
        use->held -= micro->saved;
        use->under_way--;
        break;
    case SL_ACTION_BACKWARD_INPUT:
        use->held += micro->deferred - micro->saved;
        use->under_way--;
        break;
    case SL_ACTION_BACKWARD_WEIGHT:
        use->held -= micro->deferred;
        break;
    }
    if (use->under_way > use->most_under_way)
        use->most_under_way = use->under_way;
}

/* What each stage of a pipeline rank holds when the rank holds most. */
static void plan_pipeline_rank(const sl_schedule *schedule, int rank, const micro_plan *micros,
                               stage_use *uses, sl_plan *out)
{
    const sl_action *row;
    int count = sl_schedule_actions(schedule, rank, &row);
    int64_t others = 0, most = 0; /* what the rank's other stages hold; its most */
    for (int i = 0; i < count; i++) {
        stage_use *use = &uses[row[i].stage];
        const micro_plan *micro = &micros[row[i].stage];
        int64_t during = use->held + micro->halfway - micro->saved;
        others -= use->held;
        count_action(row[i], micro, use);
        int64_t held = use->held;
        if (row[i].kind == SL_ACTION_BACKWARD_INPUT)
            held = larger(held, during);
        if (others + held > most) {
            most = others + held;
            for (int s = 0; s < out->stages; s++)
                if (sl_schedule_placement(schedule)[s] == rank)
                    out->stage[s].activation_bytes = s == row[i].stage ? held : uses[s].held;
        }
        others += use->held;
    }
}

/* A stage's peak with micro-batches of `rows` rows: what its passes hold, the inputs of the others
 * that are under way, the output that is being made, and, where the next stage is the faster one,
 * gradients that wait. */
static sl_status plan_activations(const sl_train_options *options, int64_t rows,
                                  const sl_module *model, const sl_schedule *schedule, sl_plan *out)
{
    sl_shape shape = sl_shape_2d(rows, options->bptt);
    micro_plan micros[SL_MAX_STAGES];
    stage_use uses[SL_MAX_STAGES] = {{0}};
    for (int s = 0; s < out->stages; s++) {
        SL_TRY(plan_micro(options, model, &out->stage[s], &shape, &micros[s]));
        out->stage[s].workspace_bytes = micros[s].workspace;
    }
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++)
        plan_pipeline_rank(schedule, rank, micros, uses, out);
    for (int s = 0; s < out->stages; s++) {
        bool last = s + 1 == out->stages;
        out->stage[s].activation_bytes += (last ? 1 : uses[s].most_under_way) * micros[s].output;
    }
    return SL_OK;
}

/* An evaluation keeps nothing, but its batch may be larger: inputs that wait, and a module's input
 * and output. */
static sl_status plan_evaluation(const sl_train_options *options, const sl_module *model,
                                 sl_plan *out)
{
    int64_t rows = options->eval_batch_size;
    int micros = sl_micro_batches(rows, sli_layout_micros(options), NULL);
    sl_shape shape = sl_shape_2d((rows + micros - 1) / micros, options->bptt);
    for (int s = 0; s < out->stages; s++) {
        sl_stage_plan *stage = &out->stage[s];
        micro_plan micro;
        SL_TRY(plan_micro(options, model, stage, &shape, &micro));
        stage->activation_bytes =
            larger(stage->activation_bytes, micros * micro.input + 2 * micro.output);
        stage->workspace_bytes = larger(stage->workspace_bytes, micro.workspace);
    }
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
 * a second gradient (parallel/tied.c). */
static sl_status add_tied(sl_parameter *tied, void *arg)
{
    const tie_plan *of = arg;
    sl_stage_plan *user = find_stage(of->plan, tied->module);
    sl_stage_plan *owner = find_stage(of->plan, tied->tied_to->module);
    int64_t bytes = bytes_of(sl_parameter_shape(tied)),
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
        status = plan_activations(options, (rows + micros - 1) / micros, model, schedule, out);
    sl_schedule_destroy(&schedule);
    return status == SL_OK ? plan_evaluation(options, model, out) : status;
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
