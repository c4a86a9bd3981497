#include "core/error.h"
#include "nn/cross_entropy.h"
#include "train/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sl_status name_devices(const sl_train_options *options, int replica, sl_plan *out)
{
    char *devices;
    SL_TRY(sli_layout_devices(options, &devices));
    const char *at = devices;
    for (int i = 0; i < (replica + 1) * out->stages; i++) {
        int length = (int)strcspn(at, ",");
        char *name = out->stage[i % out->stages].device;
        if (i / out->stages == replica)
            snprintf(name, sizeof out->stage[0].device, "%.*s", length, at);
        at += length + (at[length] == ',');
    }
    free(devices);
    return SL_OK;
}

/* The most micro-batches at once whose activations a row of the table holds, and the most that
 * are between their forward and the end of their backward. */
static void count_held(const sl_schedule *schedule, int stage, int *held, int *under_way)
{
    const sl_action *actions;
    int count = sl_schedule_actions(schedule, stage, &actions), now_held = 0, now_under_way = 0;
    *held = *under_way = 0;
    for (int i = 0; i < count; i++) {
        bool enters =
            actions[i].kind == SL_ACTION_FORWARD || actions[i].kind == SL_ACTION_FORWARD_DISCARD;
        bool leaves = actions[i].kind == SL_ACTION_BACKWARD;
        now_under_way += enters;
        now_held += actions[i].kind == SL_ACTION_FORWARD || actions[i].kind == SL_ACTION_RECOMPUTE;
        *held = now_held > *held ? now_held : *held;
        *under_way = now_under_way > *under_way ? now_under_way : *under_way;
        now_under_way -= leaves;
        now_held -= leaves;
    }
}

/* One micro-batch in one stage. A module's workspace is less than what it saves. */
typedef struct micro_plan {
    int64_t input, output, saved, workspace; /* bytes; the first stage's input, ids, is the caller's
                                              */
} micro_plan;

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t bytes_of(const sl_shape *shape)
{
    return sl_shape_count(shape) * (int64_t)sizeof(float);
}

/* *shape is the stage's input's, and becomes its output's. The last stage keeps its output, the
 * decoder's input, for the loss, which takes the decoder over. */
static sl_status plan_micro(const sl_module *model, const sl_stage_plan *stage, sl_shape *shape,
                            micro_plan *out)
{
    int last = sl_module_child_count(model) - 1;
    *out = (micro_plan){.input = stage->first > 0 ? bytes_of(shape) : 0};
    for (int i = stage->first; i < stage->first + stage->count; i++) {
        const sl_module *module = sl_module_child(model, i);
        sl_shape next;
        SL_TRY(sl_module_output_shape(module, shape, &next));
        int64_t saved = i == last ? bytes_of(shape) : sl_module_saved_bytes(module, shape);
        int64_t rows = sl_shape_count(&next) / next.size[next.dims - 1];
        int64_t needed = i == last ? sli_cross_entropy_room(rows, next.size[next.dims - 1]) : saved;
        out->saved += saved;
        out->workspace = larger(out->workspace, needed);
        if (i < last)
            *shape = next;
    }
    out->output = bytes_of(shape);
    return SL_OK;
}

/* A stage's peak with micro-batches of `rows` rows: what its modules save for each micro-batch
 * whose activations the table holds at once, the inputs of the others that are under way, the
 * output that is being made, and, where the next stage is the faster one, gradients that wait. */
static sl_status plan_activations(const sl_train_options *options, int64_t rows,
                                  const sl_module *model, const sl_schedule *schedule, sl_plan *out)
{
    sl_shape shape = sl_shape_2d(rows, options->bptt);
    for (int s = 0; s < out->stages; s++) {
        sl_stage_plan *stage = &out->stage[s];
        micro_plan micro;
        int held, under_way;
        count_held(schedule, s, &held, &under_way);
        SL_TRY(plan_micro(model, stage, &shape, &micro));
        int64_t in_transit = s + 1 < out->stages ? under_way * micro.output : micro.output;
        stage->activation_bytes =
            held * micro.saved + (under_way - held) * micro.input + in_transit;
        stage->workspace_bytes = micro.workspace;
    }
    return SL_OK;
}

/* An evaluation keeps nothing, but its batch may be larger: inputs that wait, and a module's input
 * and output. */
static sl_status plan_evaluation(const sl_train_options *options, const sl_module *model,
                                 sl_plan *out)
{
    int64_t rows = options->eval_batch_size;
    int micros = sl_micro_batches(rows, options->chunks, NULL);
    sl_shape shape = sl_shape_2d((rows + micros - 1) / micros, options->bptt);
    for (int s = 0; s < out->stages; s++) {
        sl_stage_plan *stage = &out->stage[s];
        micro_plan micro;
        SL_TRY(plan_micro(model, stage, &shape, &micro));
        stage->activation_bytes =
            larger(stage->activation_bytes, micros * micro.input + 2 * micro.output);
        stage->workspace_bytes = larger(stage->workspace_bytes, micro.workspace);
    }
    return SL_OK;
}

/* The positional encoding, in the first stage, is memory without gradient or state: a frozen
 * parameter or a buffer. */
static void plan_parameters(const sl_train_options *options, bool has_positions,
                            sl_stage_plan *stage)
{
    int64_t positions = has_positions ? SL_MAX_POSITIONS * options->model.emsize : 0;
    bool counted = options->model.position_is_parameter;
    int64_t trained = stage->parameter_elements - (counted ? positions : 0);
    stage->parameter_bytes = (trained + positions) * (int64_t)sizeof(float);
    stage->gradient_bytes = trained * (int64_t)sizeof(float);
    int shards = options->zero ? sl_train_options_replicas(options) : 1;
    stage->optimizer_bytes =
        (trained + shards - 1) / shards * sl_optimizer_state_bytes(&options->optimizer);
    stage->best_bytes = options->epochs > 1 ? stage->gradient_bytes : 0;
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
        for (int i = stage->first; i < first; i++)
            stage->parameter_elements += sl_module_parameter_elements(sl_module_child(model, i));
        plan_parameters(options, s == 0, stage);
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
    if (replica < 0 || replica >= sli_layout_local_replicas(options))
        return sl_error(SL_ERR_INVALID, "sl_plan_create: asked for replica %d of %d", replica,
                        sli_layout_local_replicas(options));
    SL_TRY(plan_stages(options, model, out));
    SL_TRY(name_devices(options, replica, out));
    int64_t rows = sli_layout_rows(options, 0).count; /* no replica has more */
    int micros = sl_micro_batches(rows, sli_layout_chunks(options, rows), NULL);
    SL_TRY(
        sl_schedule_create(options->schedule, out->stages, micros, options->recompute, &schedule));
    sl_status status =
        plan_activations(options, (rows + micros - 1) / micros, model, schedule, out);
    sl_schedule_destroy(&schedule);
    return status == SL_OK ? plan_evaluation(options, model, out) : status;
}
