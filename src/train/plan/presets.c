/* The options that a run begins with: the tutorials' numbers, by name. */
#include "sluice/app/inference.h"
#include "sluice/app/train.h"

#include "core/error.h"

#include <string.h>

void sl_train_options_default(sl_train_options *options)
{
    *options = (sl_train_options){
        .schedule = sl_schedule_names[0],
        .bptt = SL_DEFAULT_CONTEXT,
        .batch_size = 20,
        .eval_batch_size = 10,
        .model = {.emsize = 200, .nhid = 200, .nlayers = 2, .nhead = 2, .dropout = 0.2f},
        .accumulate = 1,
        .epochs = 3,
        .mask_prompt = true,
        .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
        .lr = {.kind = SL_LR_STEP, .lr = SL_LR_DEFAULT},
        .seed = 1,
    };
}

/* Language Modeling with nn.Transformer and torchtext. */
static void set_transformer_tutorial(sl_train_options *options)
{
    sl_train_options_default(options);
    options->optimizer.kind = SL_OPTIMIZER_SGD;
    options->lr.gamma = 0.95;
    options->lr.step_epochs = 1;
    options->clip = 0.5;
}

/* Training Transformer models using Pipeline Parallelism. */
static void set_pipeline_tutorial(sl_train_options *options)
{
    set_transformer_tutorial(options);
    options->model.emsize = options->model.nhid = 4096;
    options->model.nlayers = 12;
    options->model.nhead = 16;
    options->bptt = 25;
    options->pipeline_ranks = 2;
    options->chunks = 8;
    options->max_batches = options->eval_max_batches = 50;
}

/* Training Transformer models using Distributed Data Parallel and Pipeline Parallelism. */
static void set_ddp_pipeline(sl_train_options *options)
{
    set_pipeline_tutorial(options);
    options->replicas = 2;
    options->model.nlayers = 8;
    options->model.position_is_parameter = true;
    options->bptt = SL_DEFAULT_CONTEXT;
    options->recompute = SL_RECOMPUTE_NEVER;
}

/* What most people train small models of their own texts with today: GPT-2's form of the model, and
 * nanoGPT's weight decay. */
static void set_small(sl_train_options *options)
{
    sl_train_options_default(options);
    options->model.emsize = 256;
    options->model.nhid = 1024;
    options->model.nlayers = options->model.nhead = 4;
    options->model.activation = SL_ACTIVATION_GELU;
    options->model.pre_norm = true;
    options->bptt = 64;
    options->batch_size = 16;
    options->eval_batch_size = 8; /* a short text has short columns */
    options->optimizer.weight_decay = 0.1f;
    options->optimizer.decay = SL_DECAY_MATRICES;
    options->lr.kind = SL_LR_COSINE;
    options->lr.warmup_steps = 50;
    options->clip = 1;
    options->recompute = SL_RECOMPUTE_NEVER;
}

sl_status sl_train_options_preset(const char *name, sl_train_options *options)
{
    static void (*const set[])(sl_train_options *) = {set_transformer_tutorial,
                                                      set_pipeline_tutorial, set_ddp_pipeline,
                                                      set_small};
    SLI_CHECK_NOT_NULL(name);
    SLI_CHECK_NOT_NULL(options);
    sl_train_options made = {0};
    if (sl_option_set(sl_option_find(sl_plan_option_rows, "preset"), &made, name) != SL_OK)
        return sl_error(SL_ERR_NOT_FOUND, "%s", sl_error_text());
    size_t index = 0;
    while (strcmp(sl_preset_names[index], name) != 0)
        index++;
    set[index](&made);
    made.preset = sl_preset_names[index];
    made.data = options->data;
    made.init = options->init;
    made.adapter = options->adapter;
    made.partial = options->partial;
    made.save = options->save;
    made.checkpoints = options->checkpoints;
    *options = made;
    return SL_OK;
}
