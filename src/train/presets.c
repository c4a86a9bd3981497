/* The tutorials' numbers. */
#include "sluice/train.h"

#include "core/error.h"

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
        .lr = {.kind = SL_LR_STEP, .lr = SL_LR_DEFAULT, .gamma = 0.95, .step_epochs = 1},
        .clip = 0.5,
        .seed = 1,
    };
}

/* Training Transformer models using Pipeline Parallelism. */
static void pipeline_tutorial(sl_train_options *options)
{
    sl_train_options_default(options);
    options->preset = "pipeline-tutorial";
    options->model.emsize = options->model.nhid = 4096;
    options->model.nlayers = 12;
    options->model.nhead = 16;
    options->bptt = 25;
    options->stages = 2;
    options->chunks = 8;
    options->max_batches = options->eval_max_batches = 50;
}

/* Training Transformer models using Distributed Data Parallel and Pipeline Parallelism. */
static void ddp_pipeline(sl_train_options *options)
{
    pipeline_tutorial(options);
    options->preset = "ddp-pipeline";
    options->replicas = 2;
    options->model.nlayers = 8;
    options->model.position_is_parameter = true;
    options->bptt = 35;
    options->recompute = SL_RECOMPUTE_NEVER;
}

const char *const sl_preset_names[] = {"transformer-tutorial", "pipeline-tutorial", "ddp-pipeline",
                                       NULL};
static void (*const fills[])(sl_train_options *options) = {sl_train_options_default,
                                                           pipeline_tutorial, ddp_pipeline};

sl_status sl_train_options_preset(const char *name, sl_train_options *options)
{
    SLI_CHECK_NOT_NULL(name);
    SLI_CHECK_NOT_NULL(options);
    const sl_train_options kept = *options;
    sl_train_options found;
    if (sl_option_set(sl_option_find(sl_structure_option_rows, "preset"), &found, name) != SL_OK)
        return SL_ERR_NOT_FOUND; /* the text lists the presets */
    for (int i = 0; sl_preset_names[i]; i++)
        if (strcmp(name, sl_preset_names[i]) == 0)
            fills[i](options);
    options->data = kept.data;
    options->init = kept.init;
    options->save = kept.save;
    options->checkpoints = kept.checkpoints;
    return SL_OK;
}
