#include "train/session.h"

#include <stdio.h>
#include <string.h>

/* A stage's peak: what its modules save for each micro-batch whose activations the table holds at
 * once, and the inputs of the others that are on their way. */
static int64_t peak_activations(int64_t saved, int64_t input, int held, int micros)
{
    return held * saved + (micros - held) * input;
}

static sl_status plan_activations(const sl_train_options *options, const sl_module *model,
                                  const int *held, int micros, sl_plan *out)
{
    int64_t rows = (options->batch_size + options->chunks - 1) / options->chunks;
    sl_shape shape = sl_shape_2d(rows, options->bptt);
    int modules = sl_module_child_count(model);
    for (int s = 0; s < out->stages; s++) {
        sl_stage_plan *stage = &out->stage[s];
        /* The first stage's inputs are token ids, which the caller holds. */
        int64_t input = s > 0 ? sl_shape_count(&shape) * (int64_t)sizeof(float) : 0;
        int64_t saved = input;
        for (int i = stage->first; i < stage->first + stage->count && i < modules - 1; i++) {
            const sl_module *module = sl_module_child(model, i);
            sl_shape next;
            saved += sl_module_saved_bytes(module, &shape);
            SL_TRY(sl_module_output_shape(module, &shape, &next));
            shape = next;
        }
        stage->activation_bytes = peak_activations(saved, input, held[s], micros);
    }
    return SL_OK;
}

/* The device of stage `stage`: what lies between its commas, or cpu:STAGE. */
static void name_device(const char *devices, int stage, sl_stage_plan *out)
{
    for (int i = 0; i < stage && devices; i++)
        devices = strchr(devices, ',') ? strchr(devices, ',') + 1 : NULL;
    if (devices)
        snprintf(out->device, sizeof out->device, "%.*s", (int)strcspn(devices, ","), devices);
    else
        snprintf(out->device, sizeof out->device, "cpu:%d", stage);
}

/* Micro-batches whose activations each stage holds at once. */
static sl_status held_at_once(const sl_train_options *options, int stages, int *held, int *micros)
{
    double unit[SL_MAX_STAGES];
    sl_schedule *schedule;
    sl_simulation simulation;
    *micros = sl_micro_batches(options->batch_size, options->chunks, NULL);
    for (int s = 0; s < stages; s++)
        unit[s] = 1;
    SL_TRY(sl_schedule_create(options->schedule, stages, *micros, options->checkpoint, &schedule));
    sl_status status =
        sl_schedule_simulate(schedule, &(sl_cost_model){.forward = unit, .backward = unit},
                             &simulation);
    if (status == SL_OK) {
        for (int s = 0; s < stages; s++)
            held[s] = simulation.peak_held[s];
        sl_simulation_clear(&simulation);
    }
    sl_schedule_destroy(&schedule);
    return status;
}

/* The positional encoding, in the first stage, is memory without gradient or state: a frozen
 * parameter or a buffer. */
static void plan_parameters(const sl_train_options *options, bool has_positions,
                            sl_stage_plan *stage)
{
    enum { POSITIONS = 5000 };
    int64_t positions = has_positions ? POSITIONS * options->model.emsize : 0;
    bool counted = options->model.position_is_parameter;
    int64_t trained = stage->parameter_elements - (counted ? positions : 0);
    stage->parameter_bytes = (trained + positions) * (int64_t)sizeof(float);
    stage->gradient_bytes = trained * (int64_t)sizeof(float);
    stage->optimizer_bytes = trained * sl_optimizer_state_bytes(&options->optimizer);
}

sl_status sl_plan_create(const sl_train_options *options, const sl_module *model, sl_plan *out)
{
    int balance[SL_MAX_STAGES], held[SL_MAX_STAGES], first = 0, micros;
    *out = (sl_plan){.total_parameters = sl_module_parameter_elements(model)};
    SL_TRY(sli_session_balance(options, model, balance, &out->stages));
    for (int s = 0; s < out->stages; s++) {
        sl_stage_plan *stage = &out->stage[s];
        name_device(options->devices, s, stage);
        stage->first = first;
        stage->count = balance[s];
        first += balance[s];
        for (int i = stage->first; i < first; i++)
            stage->parameter_elements += sl_module_parameter_elements(sl_module_child(model, i));
        plan_parameters(options, s == 0, stage);
    }
    SL_TRY(held_at_once(options, out->stages, held, &micros));
    return plan_activations(options, model, held, micros, out);
}
