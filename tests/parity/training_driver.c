/* Training steps of a whole language model through a pipe, for test_training.py, and of replicas of
 * it, for test_ddp.py:
 *
 *   training_driver key=value... < records > records
 *
 * Reads every parameter under its name, and `ids.K.A.R`, `targets.K.A.R`: what rank R gets in
 * accumulation A of step K. Rank 0 starts with these values, all others with random ones. Writes
 * `loss.K.A.R`, and from rank 0 `grad.NAME` after the first step's exchange, `norm.K`, and
 * `value.NAME` after the last step. `freeze` is the index of the one module that is frozen (-1:
 * none); with `evaluate` all modules are in evaluation mode. Fails unless all ranks have rank 0's
 * values, bit for bit, at the end. One rank trains without DDP, and writes the first batch's
 * `logits` before its step. */
#include "driver.h"
#include "tensor/tensor.h"

#include "sluice/model.h"
#include "sluice/pipe_optimizer.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 4 };

/* ---- Options ---------------------------------------------------------------------------- */

static sl_model_options model_options(char **o)
{
    return (sl_model_options){
        .ntokens = option_count(o, "ntokens"),
        .emsize = option_count(o, "emsize"),
        .nhid = option_count(o, "nhid"),
        .nlayers = option_count(o, "nlayers"),
        .nhead = option_count(o, "nhead"),
        .dropout = (float)option_number(o, "dropout"),
        .mask = option_is(o, "mask", "causal") ? SL_MASK_CAUSAL : SL_MASK_NONE,
        .activation = option_is(o, "activation", "relu") ? SL_ACTIVATION_RELU : SL_ACTIVATION_GELU,
        .pre_norm = option_number(o, "pre_norm") != 0,
        .tie = option_number(o, "tie") != 0,
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
        .decay = option_is(o, "decay", "matrices") ? SL_DECAY_MATRICES : SL_DECAY_ALL,
    };
}

/* ---- A rank ----------------------------------------------------------------------------- */

typedef struct replica {
    const job *job;
    sl_group *group;
    sl_device *devices[MAX_STAGES];
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_ddp *ddp;
    sl_pipe_optimizer *optimizer;
} replica;

static void open_replica(replica *r)
{
    char **o = r->job->options;
    int rank = sl_group_rank(r->group);
    const sl_model_options of_model = model_options(o);
    sl_pipe_options options = {
        .stages = (int)option_number(o, "stages"),
        .devices = r->devices,
        .chunks = (int)option_number(o, "chunks"),
        .precision = option_is(o, "precision", "bf16") ? SL_PRECISION_BF16 : SL_PRECISION_F32,
        .seed = (uint64_t)rank,
        .first_bucket_bytes = option_count(o, "bucket_bytes"),
        .bucket_bytes = option_count(o, "bucket_bytes"),
    };
    records_check(sl_recompute_parse(option_text(o, "checkpoint"), &options.recompute));
    options.schedule = option_text(o, "schedule");
    for (int s = 0; s < options.stages; s++)
        records_check(sl_device_create_cpu(1 + s % 2, &r->devices[s]));
    records_check(sl_transformer_lm_create(&of_model, &r->model));
    if (option_count(o, "freeze") >= 0)
        records_check(sl_module_freeze(sl_module_child(r->model, (int)option_count(o, "freeze"))));
    sl_module_set_evaluation(r->model, option_number(o, "evaluate") != 0);
    records_check(sl_cross_entropy_create(&r->loss));
    options.model = r->model;
    options.loss = r->loss;
    records_check(sl_pipe_create(&options, &r->pipe));
    records_check(
        sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = r->pipe,
                                                              .optimizer = optimizer_options(o)},
                                 &r->optimizer));
}

static void close_replica(replica *r)
{
    sl_pipe_optimizer_destroy(&r->optimizer);
    sl_ddp_destroy(&r->ddp);
    sl_pipe_destroy(&r->pipe);
    sl_loss_destroy(&r->loss);
    sl_module_destroy(&r->model);
    for (int s = 0; s < MAX_STAGES; s++)
        sl_device_destroy(&r->devices[s]);
}

/* Calls `each` for every parameter, frozen ones included, in the model's order. */
static void for_each_parameter(replica *r, void (*each)(replica *, sl_parameter *))
{
    for (int s = 0; s < sl_pipe_stages(r->pipe); s++) {
        sl_parameter_set *set = sl_pipe_parameters(r->pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            if (sl_parameter_get_kind(sl_parameter_set_get(set, i)) != SL_PARAMETER_BUFFER)
                each(r, sl_parameter_set_get(set, i));
    }
}

static void set_value(replica *r, sl_parameter *parameter)
{
    const record *value = records_find(r->job->given, sl_parameter_name(parameter));
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

static void write_grad(replica *r, sl_parameter *parameter)
{
    sl_tensor *grad;
    records_check(sl_parameter_grad(parameter, &grad));
    if (grad)
        write_named("grad", parameter, grad);
}

static void write_value(replica *r, sl_parameter *parameter)
{
    write_named("value", parameter, sl_parameter_value(parameter));
}

static void check_same_value(replica *r, sl_parameter *parameter)
{
    sl_tensor *value = sl_parameter_value(parameter);
    float *first = malloc(sli_tensor_bytes(value));
    memcpy(first, sl_tensor_data(value), sli_tensor_bytes(value));
    records_check(sl_group_broadcast(r->group, first, sl_tensor_count(value), SL_F32, 0, NULL));
    if (memcmp(first, sl_tensor_data(value), sli_tensor_bytes(value)) != 0)
        records_check(sl_error(SL_ERR_INTERNAL, "%s on rank %d is not rank 0's",
                               sl_parameter_name(parameter), sl_group_rank(r->group)));
    free(first);
}

/* ---- Training --------------------------------------------------------------------------- */

/* Ranks write in between each other, each record whole. */
static void write_number(const replica *r, const char *name, double value)
{
    const sl_shape scalar = {0};
    pthread_mutex_lock(r->job->output);
    records_write(stdout, name, SL_F64, &scalar, &value);
    pthread_mutex_unlock(r->job->output);
}

static void write_logits(replica *r, const sl_tensor *ids)
{
    sl_tensor *logits;
    records_check(sl_pipe_forward(r->pipe, &(sl_pipe_batch){.input = ids}, &logits));
    records_write_tensor(stdout, "logits", logits);
    sl_tensor_destroy(&logits);
}

static void train_batch(replica *r, int step, int accumulation)
{
    char suffix[48], name[RECORD_NAME_BYTES];
    double loss;
    snprintf(suffix, sizeof suffix, "%d.%d.%d", step, accumulation, sl_group_rank(r->group));
    snprintf(name, sizeof name, "ids.%s", suffix);
    sl_tensor *ids = records_tensor(r->job->given, name, r->devices[0]);
    snprintf(name, sizeof name, "targets.%s", suffix);
    sl_tensor *targets = records_tensor(r->job->given, name, r->devices[0]);
    const sl_pipe_batch batch = {.input = ids, .targets = targets};
    if (r->ddp) {
        records_check(sl_ddp_train(r->ddp, &batch, &loss));
    } else {
        if (step == 0)
            write_logits(r, ids);
        records_check(sl_pipe_train(r->pipe, &batch, &loss));
    }
    snprintf(name, sizeof name, "loss.%s", suffix);
    write_number(r, name, loss);
    sl_tensor_destroy(&ids);
    sl_tensor_destroy(&targets);
}

static void train_step(replica *r, int step)
{
    char **o = r->job->options, name[RECORD_NAME_BYTES];
    int accumulations = (int)option_number(o, "accumulate");
    double norm;
    sl_pipe_zero_grad(r->pipe);
    for (int a = 0; a < accumulations; a++) {
        if (r->ddp)
            sl_ddp_set_sync(r->ddp, a + 1 == accumulations);
        train_batch(r, step, a);
    }
    bool first = sl_group_rank(r->group) == 0;
    pthread_mutex_lock(r->job->output);
    if (step == 0 && first)
        for_each_parameter(r, write_grad);
    pthread_mutex_unlock(r->job->output);
    double clip = option_number(o, "clip");
    if (option_is(o, "norm", "l2")) {
        records_check(sl_pipe_optimizer_step(r->optimizer, option_number(o, "lr"), clip, &norm));
    } else {
        records_check(
            sl_clip_grad_norm(r->pipe, clip,
                              option_is(o, "norm", "l1") ? SL_GRAD_NORM_L1 : SL_GRAD_NORM_INF, true,
                              &norm));
        records_check(sl_pipe_optimizer_step(r->optimizer, option_number(o, "lr"), 0, NULL));
    }
    snprintf(name, sizeof name, "norm.%d", step);
    if (first)
        write_number(r, name, norm);
}

static sl_status run_rank(sl_group *group, void *arg)
{
    replica r = {.job = arg, .group = group};
    open_replica(&r);
    if (sl_group_rank(group) == 0)
        for_each_parameter(&r, set_value);
    if (sl_group_size(group) > 1)
        records_check(sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = r.pipe}, &r.ddp));
    int steps = (int)option_number(r.job->options, "steps");
    for (int step = 0; step < steps; step++)
        train_step(&r, step);
    for_each_parameter(&r, check_same_value);
    if (sl_group_rank(group) == 0)
        for_each_parameter(&r, write_value);
    close_replica(&r);
    return SL_OK;
}

int main(int argc, char **argv)
{
    return job_run(argv + 1, run_rank);
}
