/* Training steps of a whole language model through a pipe, for test_training.py:
 *
 *   training_driver key=value... < records > records
 *
 * Reads every parameter under its name, and `ids.K`, `targets.K` of each step K. Writes `logits` of
 * the first batch before training, `loss.K` and `norm.K`, `grad.NAME` after the first step's
 * backward, and `value.NAME` after the last step. */
#include "driver_options.h"
#include "records.h"

#include "sluice/model.h"
#include "sluice/pipe.h"
#include "train/update.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 8 };

/* ---- Options ---------------------------------------------------------------------------- */

static sl_model_options model_options(char **o)
{
    return (sl_model_options){
        .ntokens = option_count(o, "ntokens"),
        .emsize = option_count(o, "emsize"),
        .nhid = option_count(o, "nhid"),
        .nlayers = option_count(o, "nlayers"),
        .nhead = option_count(o, "nhead"),
        .mask = option_is(o, "mask", "causal") ? SL_MASK_CAUSAL : SL_MASK_NONE,
        .activation = option_is(o, "activation", "relu") ? SL_ACTIVATION_RELU : SL_ACTIVATION_GELU,
        .pre_norm = option_number(o, "pre_norm") != 0,
    };
}

static sl_optimizer_options optimizer_options(char **o)
{
    return (sl_optimizer_options){
        .kind = option_is(o, "optimizer", "sgd") ? SL_OPTIMIZER_SGD : SL_OPTIMIZER_ADAMW,
        .momentum = (float)option_number(o, "momentum"),
        .dampening = (float)option_number(o, "dampening"),
        .nesterov = option_number(o, "nesterov") != 0,
        .eps = (float)option_number(o, "eps"),
        .weight_decay = (float)option_number(o, "weight_decay"),
    };
}

/* ---- The pipe --------------------------------------------------------------------------- */

static sl_pipe *create_pipe(char **o, sl_module *model, sl_loss *loss, sl_device **devices)
{
    sl_pipe_options options = {
        .model = model,
        .loss = loss,
        .stages = (int)option_number(o, "stages"),
        .devices = devices,
        .chunks = (int)option_number(o, "chunks"),
        .no_init = true,
    };
    records_check(sl_recompute_parse(option_text(o, "checkpoint"), &options.recompute));
    records_check(sl_schedule_kind_parse(option_text(o, "schedule"), &options.schedule));
    for (int s = 0; s < options.stages; s++)
        records_check(sl_device_create_cpu(1 + s % 2, &devices[s]));
    sl_pipe *pipe;
    records_check(sl_pipe_create(&options, &pipe));
    return pipe;
}

/* Calls `each` for every trained parameter, in the model's order. */
static void for_each_parameter(sl_pipe *pipe, void (*each)(sl_parameter *, const records *),
                               const records *given)
{
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            if (sl_parameter_get_kind(sl_parameter_set_get(set, i)) == SL_PARAMETER_TRAINED)
                each(sl_parameter_set_get(set, i), given);
    }
}

static void set_value(sl_parameter *parameter, const records *given)
{
    const record *value = records_find(given, sl_parameter_name(parameter));
    if (!value || !sl_shape_equal(&value->shape, sl_parameter_shape(parameter)))
        records_check(sl_error(SL_ERR_INVALID, "no value of the right shape for %s",
                               sl_parameter_name(parameter)));
    records_check(sl_tensor_write(sl_parameter_value(parameter), value->data));
}

static void write_named(const char *prefix, const sl_parameter *parameter, const sl_tensor *tensor)
{
    char name[RECORD_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", prefix, sl_parameter_name(parameter));
    records_write_tensor(stdout, name, tensor);
}

static void write_grad(sl_parameter *parameter, const records *given)
{
    (void)given;
    sl_tensor *grad;
    records_check(sl_parameter_grad(parameter, &grad));
    write_named("grad", parameter, grad);
}

static void write_value(sl_parameter *parameter, const records *given)
{
    (void)given;
    write_named("value", parameter, sl_parameter_value(parameter));
}

static void write_number(const char *name, int step, double value)
{
    char text[RECORD_NAME_BYTES];
    const sl_shape scalar = {0};
    snprintf(text, sizeof text, "%s.%d", name, step);
    records_write(stdout, text, SL_F64, &scalar, &value);
}

/* ---- Training --------------------------------------------------------------------------- */

static sl_tensor *step_tensor(const records *given, const char *name, int step, sl_device *device)
{
    char text[RECORD_NAME_BYTES];
    snprintf(text, sizeof text, "%s.%d", name, step);
    return records_tensor(given, text, device);
}

static void write_logits(sl_pipe *pipe, const sl_tensor *ids)
{
    sl_tensor *logits;
    records_check(sl_pipe_forward(pipe, ids, &logits));
    records_write_tensor(stdout, "logits", logits);
    sl_tensor_destroy(&logits);
}

static void train_step(char **o, sl_pipe *pipe, sli_update *update, const records *given, int step)
{
    sl_device *device = sl_pipe_device(pipe, 0);
    sl_tensor *ids = step_tensor(given, "ids", step, device);
    sl_tensor *targets = step_tensor(given, "targets", step, device);
    double loss, norm;
    if (step == 0)
        write_logits(pipe, ids);
    sl_pipe_zero_grad(pipe);
    records_check(sl_pipe_train(pipe, &(sl_pipe_batch){.input = ids, .targets = targets}, &loss));
    if (step == 0)
        for_each_parameter(pipe, write_grad, given);
    records_check(sli_update_norm(update, &norm));
    records_check(sli_update_apply(update, option_number(o, "lr"), norm, option_number(o, "clip")));
    write_number("loss", step, loss);
    write_number("norm", step, norm);
    sl_tensor_destroy(&ids);
    sl_tensor_destroy(&targets);
}

int main(int argc, char **argv)
{
    (void)argc;
    char **o = argv + 1;
    static records given;
    sl_device *devices[MAX_STAGES] = {NULL};
    sl_module *model;
    sl_loss *loss;
    sli_update *update;
    records_read(stdin, &given);
    const sl_model_options of_model = model_options(o);
    const sl_optimizer_options of_optimizer = optimizer_options(o);
    records_check(sl_transformer_lm_create(&of_model, &model));
    records_check(sl_cross_entropy_create(&loss));
    sl_pipe *pipe = create_pipe(o, model, loss, devices);
    for_each_parameter(pipe, set_value, &given);
    records_check(sli_update_create(pipe, &of_optimizer, NULL, &update));
    int steps = (int)option_number(o, "steps");
    for (int step = 0; step < steps; step++)
        train_step(o, pipe, update, &given, step);
    for_each_parameter(pipe, write_value, &given);
    sli_update_destroy(&update);
    sl_pipe_destroy(&pipe);
    sl_loss_destroy(&loss);
    sl_module_destroy(&model);
    for (int s = 0; s < MAX_STAGES; s++)
        sl_device_destroy(&devices[s]);
    records_free(&given);
    return 0;
}
