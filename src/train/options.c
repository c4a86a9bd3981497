#include "sluice/train.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void sl_train_options_default(sl_train_options *options)
{
    *options = (sl_train_options){
        .preset = "transformer-tutorial",
        .bptt = 35,
        .batch_size = 20,
        .eval_batch_size = 10,
        .model = {.emsize = 200, .nhid = 200, .nlayers = 2, .nhead = 2, .dropout = 0.2f},
        .chunks = 1,
        .epochs = 3,
        .lr = {.kind = SL_LR_STEP, .lr = 5.0, .gamma = 0.95, .step_epochs = 1},
        .clip = 0.5,
        .seed = 1,
    };
}

/* Training Transformer models using Pipeline Parallelism. */
static void pipeline_tutorial(sl_train_options *options)
{
    options->preset = "pipeline-tutorial";
    options->model.emsize = options->model.nhid = 4096;
    options->model.nlayers = 12;
    options->model.nhead = 16;
    options->bptt = 25;
    options->stages = 2;
    options->chunks = 8;
    options->max_batches = options->eval_max_batches = 50;
}

/* Training Transformer models using Distributed Data Parallel and Pipeline Parallelism: the model
 * and pipeline of one of its two replicas. */
static void ddp_pipeline(sl_train_options *options)
{
    pipeline_tutorial(options);
    options->preset = "ddp-pipeline";
    options->model.nlayers = 8;
    options->model.position_is_parameter = true;
    options->bptt = 35;
    options->checkpoint = SL_CHECKPOINT_NEVER;
}

sl_status sl_train_options_preset(const char *name, sl_train_options *options)
{
    bool pipeline = strcmp(name, "pipeline-tutorial") == 0, ddp = strcmp(name, "ddp-pipeline") == 0;
    if (!pipeline && !ddp && strcmp(name, "transformer-tutorial") != 0)
        return sl_error(SL_ERR_NOT_FOUND,
                        "preset must be transformer-tutorial, pipeline-tutorial or ddp-pipeline, "
                        "got \"%s\"",
                        name);
    const char *data = options->data, *init = options->init, *save = options->save;
    sl_train_options_default(options);
    if (pipeline)
        pipeline_tutorial(options);
    if (ddp)
        ddp_pipeline(options);
    options->data = data;
    options->init = init;
    options->save = save;
    return SL_OK;
}

/* ---- Checks ----------------------------------------------------------------------------- */

static sl_status check_at_least(const char *name, int64_t value, int64_t least)
{
    if (value < least)
        return sl_error(SL_ERR_INVALID, "%s must be at least %" PRId64 ", got %" PRId64, name,
                        least, value);
    return SL_OK;
}

static sl_status check_finite(const char *name, double value)
{
    if (!(value >= 0) || isinf(value))
        return sl_error(SL_ERR_INVALID, "%s must be a number from 0, got %g", name, value);
    return SL_OK;
}

static sl_status check_model(const sl_model_options *model)
{
    SL_TRY(check_at_least("emsize", model->emsize, 1));
    SL_TRY(check_at_least("nhid", model->nhid, 1));
    SL_TRY(check_at_least("nlayers", model->nlayers, 1));
    SL_TRY(check_at_least("nhead", model->nhead, 1));
    if (model->emsize % model->nhead != 0)
        return sl_error(SL_ERR_INVALID,
                        "emsize must be divisible by nhead, got emsize %" PRId64
                        " and nhead %" PRId64,
                        model->emsize, model->nhead);
    if (model->emsize % 2 != 0)
        return sl_error(SL_ERR_INVALID,
                        "emsize must be even (sines and cosines alternate), got %" PRId64,
                        model->emsize);
    if (!(model->dropout >= 0 && model->dropout < 1))
        return sl_error(SL_ERR_INVALID, "dropout must be at least 0 and below 1, got %g",
                        model->dropout);
    return SL_OK;
}

static sl_status check_balance(const sl_train_options *options)
{
    if (options->stages > SL_MAX_STAGES)
        return sl_error(SL_ERR_INVALID, "there can be at most %d stages, got %d", SL_MAX_STAGES,
                        options->stages);
    if (options->balance_kind != SL_BALANCE_EXPLICIT) {
        if (options->stages > options->model.nlayers)
            return sl_error(SL_ERR_INVALID,
                            "there are more stages than layers: %d stages, %" PRId64 " layers",
                            options->stages, options->model.nlayers);
        return SL_OK;
    }
    if (options->stages > 0 && options->balance_count != options->stages)
        return sl_error(SL_ERR_INVALID,
                        "balance must give one number for each of %d stages, got %d numbers",
                        options->stages, options->balance_count);
    int64_t sum = 0, modules = options->model.nlayers + 2;
    for (int s = 0; s < options->balance_count; s++) {
        SL_TRY(check_at_least("each number of balance", options->balance[s], 1));
        sum += options->balance[s];
    }
    if (sum != modules)
        return sl_error(SL_ERR_INVALID,
                        "balance must add up to the model's %" PRId64 " modules (encoder, %" PRId64
                        " layers, decoder), got %" PRId64,
                        modules, options->model.nlayers, sum);
    return SL_OK;
}

static sl_status check_optimization(const sl_train_options *options)
{
    SL_TRY(check_at_least("epochs", options->epochs, 1));
    SL_TRY(check_at_least("max-batches", options->max_batches, 0));
    SL_TRY(check_at_least("eval-max-batches", options->eval_max_batches, 0));
    SL_TRY(check_at_least("warmup", options->lr.warmup_steps, 0));
    SL_TRY(check_at_least("step-epochs", options->lr.step_epochs, 0));
    SL_TRY(check_finite("lr", options->lr.lr));
    SL_TRY(check_finite("gamma", options->lr.gamma));
    return check_finite("clip", options->clip);
}

sl_status sl_train_options_check(const sl_train_options *options)
{
    enum { MAX_CHUNKS = 4096, MAX_POSITIONS = 5000 };
    SL_TRY(check_model(&options->model));
    SL_TRY(check_at_least("bptt", options->bptt, 1));
    if (options->bptt > MAX_POSITIONS)
        return sl_error(SL_ERR_INVALID,
                        "bptt must be at most %d, the positional encoding's length, got %" PRId64,
                        MAX_POSITIONS, options->bptt);
    SL_TRY(check_at_least("batch-size", options->batch_size, 1));
    SL_TRY(check_at_least("eval-batch-size", options->eval_batch_size, 1));
    SL_TRY(check_at_least("chunks", options->chunks, 1));
    if (options->chunks > MAX_CHUNKS)
        return sl_error(SL_ERR_INVALID, "chunks must be at most %d, got %d", MAX_CHUNKS,
                        options->chunks);
    SL_TRY(check_at_least("the number of stages", options->stages, 0));
    SL_TRY(check_balance(options));
    return check_optimization(options);
}
