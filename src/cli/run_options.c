#include "cli/run_options.h"

#include "cli/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_PRESET = 0x200,
    KEY_DATA,
    KEY_BPTT,
    KEY_BATCH_SIZE,
    KEY_EVAL_BATCH_SIZE,
    KEY_MAX_BATCHES,
    KEY_EVAL_MAX_BATCHES,
    KEY_EMSIZE,
    KEY_NHID,
    KEY_NLAYERS,
    KEY_NHEAD,
    KEY_DROPOUT,
    KEY_MASK,
    KEY_ACTIVATION,
    KEY_PRE_NORM,
    KEY_PP,
    KEY_DP,
    KEY_ZERO,
    KEY_DEVICES,
    KEY_BALANCE,
    KEY_CHUNKS,
    KEY_CHECKPOINT,
    KEY_SCHEDULE,
    KEY_EPOCHS,
    KEY_LR,
    KEY_LR_SCHEDULE,
    KEY_GAMMA,
    KEY_STEP_EPOCHS,
    KEY_WARMUP,
    KEY_CLIP,
    KEY_OPTIMIZER,
    KEY_MOMENTUM,
    KEY_DAMPENING,
    KEY_NESTEROV,
    KEY_WEIGHT_DECAY,
    KEY_BETAS,
    KEY_EPS,
    KEY_SEED,
    KEY_ALLOW_NAN,
};

/* ---- The lists that --help shows ---------------------------------------------------------- */

static const struct argp_option structure_options[] = {
    {"preset", KEY_PRESET, "NAME", 0,
     "Start from transformer-tutorial (default), pipeline-tutorial or ddp-pipeline; other options "
     "override its numbers",
     1},
    {0, 0, NULL, 0, "Model:", 2},
    {"emsize", KEY_EMSIZE, "N", 0, "Width of the embedding and the layers", 2},
    {"nhid", KEY_NHID, "N", 0, "Width of the feed-forward networks", 2},
    {"nlayers", KEY_NLAYERS, "N", 0, "Transformer encoder layers", 2},
    {"nhead", KEY_NHEAD, "N", 0, "Attention heads; must divide emsize", 2},
    {"dropout", KEY_DROPOUT, "P", 0, "Dropout, 0 to below 1", 2},
    {"mask", KEY_MASK, "KIND", 0,
     "causal (default): a position sees no later one; none: it sees all", 2},
    {"activation", KEY_ACTIVATION, "KIND", 0, "relu (default) or gelu", 2},
    {"pre-norm", KEY_PRE_NORM, NULL, 0, "Normalize before each block, not after it", 2},
    {0, 0, NULL, 0, "Pipeline:", 3},
    {"pp", KEY_PP, "S", 0, "Stages, on the devices cpu:0, cpu:1, …", 3},
    {"devices", KEY_DEVICES, "LIST", 0,
     "One device a stage: cpu:0,cpu:1 share the machine's cores evenly; cpu:0-3 names cores. "
     "Replicas share the list evenly, or have parts of their own as in 'cpu:0,cpu:1;cpu:2,cpu:3'",
     3},
    {"balance", KEY_BALANCE, "RULE", 0,
     "layers (default), auto (even parameter counts), or modules per stage as in 7,7", 3},
    {"chunks", KEY_CHUNKS, "M", 0, "Micro-batches that a batch is cut into", 3},
    {"checkpoint", KEY_CHECKPOINT, "MODE", 0,
     "Recompute activations: never, except_last (the last micro-batch) or always", 3},
    {"schedule", KEY_SCHEDULE, "NAME", 0, "gpipe (default) or 1f1b", 3},
    {0, 0, NULL, 0, "Data parallelism:", 4},
    {"dp", KEY_DP, "R", 0,
     "Replicas of the pipeline, each on its share of the training text (default 1; under mpirun: "
     "the number of processes); a run may go on with another number",
     4},
    {"zero", KEY_ZERO, NULL, 0, "Shard the optimizer's state over the replicas (ZeRO-1)", 4},
    {0, 0, NULL, 0, "Batches:", 5},
    {"batch-size", KEY_BATCH_SIZE, "N", 0,
     "Columns of a replica's training batch, when the run begins", 5},
    {"bptt", KEY_BPTT, "T", 0, "Tokens of each column in a block", 5},
    {0, 0, NULL, 0, "Optimizer:", 7},
    {"optimizer", KEY_OPTIMIZER, "NAME", 0, "sgd (default) or adamw", 7},
    {"momentum", KEY_MOMENTUM, "X", 0, "SGD's momentum", 7},
    {0},
};

static const struct argp_option run_options[] = {
    {"data", KEY_DATA, "DIR", 0,
     "Directory with wiki.{train,valid,test}.tokens or {train,valid,test}.txt", 5},
    {"eval-batch-size", KEY_EVAL_BATCH_SIZE, "N", 0, "Columns of an evaluation batch", 5},
    {"max-batches", KEY_MAX_BATCHES, "N", 0, "Batches an epoch at most; 0: all", 5},
    {"eval-max-batches", KEY_EVAL_MAX_BATCHES, "N", 0, "Batches an evaluation at most; 0: all", 5},
    {0, 0, NULL, 0, "Training:", 6},
    {"epochs", KEY_EPOCHS, "N", 0, "Epochs", 6},
    {"lr", KEY_LR, "X", 0, "Learning rate (default 5.0 for sgd, 0.001 for adamw)", 6},
    {"lr-schedule", KEY_LR_SCHEDULE, "NAME", 0,
     "step (default): times gamma every step-epochs; cosine: to 0 over the run", 6},
    {"gamma", KEY_GAMMA, "X", 0, "Factor of the step schedule", 6},
    {"step-epochs", KEY_STEP_EPOCHS, "N", 0, "Epochs between its steps (default 1)", 6},
    {"warmup", KEY_WARMUP, "N", 0, "Steps of linear warm-up before either schedule", 6},
    {"clip", KEY_CLIP, "X", 0, "Largest gradient norm over all stages; 0: no clipping", 6},
    {"dampening", KEY_DAMPENING, "X", 0, "SGD's dampening", 7},
    {"nesterov", KEY_NESTEROV, NULL, 0, "Nesterov momentum", 7},
    {"betas", KEY_BETAS, "B1,B2", 0, "AdamW's averages (default 0.9,0.999)", 7},
    {"eps", KEY_EPS, "X", 0, "AdamW's smallest divisor (default 1e-8)", 7},
    {"weight-decay", KEY_WEIGHT_DECAY, "X", 0, "Weight decay", 7},
    {"seed", KEY_SEED, "S", 0, "Seed of initial values and dropout (default 1)", 6},
    {"allow-nan", KEY_ALLOW_NAN, NULL, 0, "Go on after a loss that is not a number", 6},
    {0},
};

/* ---- Values ------------------------------------------------------------------------------- */

static const char *const balance_sentence =
    "--balance must be layers, auto, or numbers of modules per stage such as 7,7";

static void parse_balance(const char *text, sl_train_options *to)
{
    if (strcmp(text, "layers") == 0 || strcmp(text, "auto") == 0) {
        to->balance_kind = text[0] == 'l' ? SL_BALANCE_LAYERS : SL_BALANCE_PARAMETERS;
        return;
    }
    to->balance_kind = SL_BALANCE_EXPLICIT;
    to->balance_count = 0;
    for (const char *at = text;;) {
        char *end;
        unsigned long value = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9' || value > 100000 || to->balance_count == SL_MAX_STAGES)
            cli_refuse(balance_sentence, text);
        to->balance[to->balance_count++] = (int)value;
        if (*end == '\0')
            return;
        if (*end != ',')
            cli_refuse(balance_sentence, text);
        at = end + 1;
    }
}

/* In the library's options 0 stands for the default, so it cannot be asked for. */
static float parse_eps(const char *text)
{
    float eps = (float)cli_parse_real("eps", text);
    if (eps == 0)
        cli_refuse("--eps must be a number above 0", text);
    return eps;
}

static void parse_betas(const char *text, sl_optimizer_options *to)
{
    static const char sentence[] =
        "--betas must be two numbers above 0 and below 1, such as 0.9,0.999";
    char first[32];
    size_t length = strcspn(text, ",");
    if (text[length] != ',' || strchr(text + length + 1, ',') || length >= sizeof first)
        cli_refuse(sentence, text);
    snprintf(first, sizeof first, "%.*s", (int)length, text);
    to->beta1 = (float)cli_parse_real("betas", first);
    to->beta2 = (float)cli_parse_real("betas", text + length + 1);
    if (to->beta1 == 0 || to->beta1 >= 1 || to->beta2 == 0 || to->beta2 >= 1)
        cli_refuse(sentence, text);
}

static int parse_int(const char *name, const char *text, int64_t lowest)
{
    return (int)cli_parse_integer(name, text, lowest, INT32_MAX);
}

static int64_t parse_wide(const char *name, const char *text, int64_t lowest)
{
    return cli_parse_integer(name, text, lowest, INT64_MAX);
}

/* ---- Keys --------------------------------------------------------------------------------- */

/* Each of these returns false for a key that is not its own. */
static bool parse_model(int key, const char *text, sl_train_options *to)
{
    static const char *const masks[] = {"causal", "none", NULL};
    static const char *const activations[] = {"relu", "gelu", NULL};
    switch (key) {
    case KEY_EMSIZE:
        to->model.emsize = parse_int("emsize", text, 1);
        return true;
    case KEY_NHID:
        to->model.nhid = parse_int("nhid", text, 1);
        return true;
    case KEY_NLAYERS:
        to->model.nlayers = cli_parse_integer("nlayers", text, 1, 10000);
        return true;
    case KEY_NHEAD:
        to->model.nhead = parse_int("nhead", text, 1);
        return true;
    case KEY_DROPOUT:
        to->model.dropout = (float)cli_parse_real("dropout", text);
        return true;
    case KEY_MASK:
        to->model.mask = cli_parse_choice("mask", text, masks) == 0 ? SL_MASK_CAUSAL : SL_MASK_NONE;
        return true;
    case KEY_ACTIVATION:
        to->model.activation = cli_parse_choice("activation", text, activations) == 0
                                   ? SL_ACTIVATION_RELU
                                   : SL_ACTIVATION_GELU;
        return true;
    case KEY_PRE_NORM:
        to->model.pre_norm = true;
        return true;
    }
    return false;
}

static bool parse_pipeline(int key, const char *text, sl_train_options *to)
{
    static const char *const checkpoints[] = {"except_last", "never", "always", NULL};
    static const char *const schedules[] = {"gpipe", "1f1b", NULL};
    switch (key) {
    case KEY_PP:
        to->stages = (int)cli_parse_integer("pp", text, 1, SL_MAX_STAGES);
        return true;
    case KEY_DP:
        to->replicas = (int)cli_parse_integer("dp", text, 1, SL_MAX_REPLICAS);
        return true;
    case KEY_ZERO:
        to->zero = true;
        return true;
    case KEY_DEVICES:
        to->devices = text;
        return true;
    case KEY_BALANCE:
        parse_balance(text, to);
        return true;
    case KEY_CHUNKS:
        to->chunks = parse_int("chunks", text, 1);
        return true;
    case KEY_CHECKPOINT:
        to->checkpoint = (sl_checkpoint)cli_parse_choice("checkpoint", text, checkpoints);
        return true;
    case KEY_SCHEDULE:
        to->schedule = (sl_schedule_kind)cli_parse_choice("schedule", text, schedules);
        return true;
    }
    return false;
}

static bool parse_data(int key, const char *text, sl_train_options *to)
{
    switch (key) {
    case KEY_DATA:
        to->data = cli_parse_path("data", text);
        return true;
    case KEY_BPTT:
        to->bptt = parse_wide("bptt", text, 1);
        return true;
    case KEY_BATCH_SIZE:
        to->batch_size = parse_wide("batch-size", text, 1);
        return true;
    case KEY_EVAL_BATCH_SIZE:
        to->eval_batch_size = parse_wide("eval-batch-size", text, 1);
        return true;
    case KEY_MAX_BATCHES:
        to->max_batches = parse_wide("max-batches", text, 0);
        return true;
    case KEY_EVAL_MAX_BATCHES:
        to->eval_max_batches = parse_wide("eval-max-batches", text, 0);
        return true;
    }
    return false;
}

static bool parse_rate(int key, const char *text, sl_train_options *to)
{
    static const char *const lr_schedules[] = {"step", "cosine", NULL};
    switch (key) {
    case KEY_LR:
        to->lr.lr = cli_parse_real("lr", text);
        return true;
    case KEY_LR_SCHEDULE:
        to->lr.kind = (sl_lr_kind)cli_parse_choice("lr-schedule", text, lr_schedules);
        return true;
    case KEY_GAMMA:
        to->lr.gamma = cli_parse_real("gamma", text);
        return true;
    case KEY_STEP_EPOCHS:
        to->lr.step_epochs = parse_int("step-epochs", text, 1);
        return true;
    case KEY_WARMUP:
        to->lr.warmup_steps = parse_wide("warmup", text, 0);
        return true;
    case KEY_CLIP:
        to->clip = cli_parse_real("clip", text);
        return true;
    }
    return false;
}

static bool parse_training(int key, const char *text, sl_train_options *to)
{
    static const char *const optimizers[] = {"sgd", "adamw", NULL};
    switch (key) {
    case KEY_EPOCHS:
        to->epochs = parse_int("epochs", text, 1);
        return true;
    case KEY_OPTIMIZER:
        to->optimizer.kind = (sl_optimizer_kind)cli_parse_choice("optimizer", text, optimizers);
        return true;
    case KEY_MOMENTUM:
        to->optimizer.momentum = (float)cli_parse_real("momentum", text);
        return true;
    case KEY_DAMPENING:
        to->optimizer.dampening = (float)cli_parse_real("dampening", text);
        return true;
    case KEY_NESTEROV:
        to->optimizer.nesterov = true;
        return true;
    case KEY_WEIGHT_DECAY:
        to->optimizer.weight_decay = (float)cli_parse_real("weight-decay", text);
        return true;
    case KEY_BETAS:
        parse_betas(text, &to->optimizer);
        return true;
    case KEY_EPS:
        to->optimizer.eps = parse_eps(text);
        return true;
    case KEY_SEED:
        to->seed = cli_parse_seed("seed", text);
        return true;
    case KEY_ALLOW_NAN:
        to->allow_nan = true;
        return true;
    }
    return false;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    static const char *const presets[] = {"transformer-tutorial", "pipeline-tutorial",
                                          "ddp-pipeline", NULL};
    cli_run_options *options = state->input;
    if (key == KEY_PRESET) {
        options->preset = presets[cli_parse_choice("preset", text, presets)];
        return 0;
    }
    if (key < KEY_PRESET || key > KEY_ALLOW_NAN)
        return ARGP_ERR_UNKNOWN;
    if (key >= KEY_EMSIZE && key <= KEY_PRE_NORM)
        options->given |= 1u << (key - KEY_EMSIZE + CLI_EMSIZE);
    if (options->only_preset || parse_model(key, text, &options->train) ||
        parse_pipeline(key, text, &options->train) || parse_data(key, text, &options->train) ||
        parse_rate(key, text, &options->train) || parse_training(key, text, &options->train))
        return 0;
    return ARGP_ERR_UNKNOWN;
}

static error_t parse_run_option(int key, char *text, struct argp_state *state)
{
    if (key != ARGP_KEY_INIT)
        return parse_option(key, text, state);
    state->child_inputs[0] = state->input;
    return 0;
}

const struct argp cli_structure_argp = {
    .options = structure_options,
    .parser = parse_option,
};

static const struct argp_child run_children[] = {{&cli_structure_argp, 0, NULL, 0}, {0}};

const struct argp cli_run_argp = {
    .options = run_options,
    .parser = parse_run_option,
    .children = run_children,
};

void cli_run_parse(const struct argp *parser, int argc, char **argv, void *input,
                   cli_run_options *options)
{
    sl_train_options_default(&options->train);
    options->only_preset = true;
    cli_parse(parser, argc, argv, input);
    options->only_preset = false;
    if (options->preset && sl_train_options_preset(options->preset, &options->train) != SL_OK)
        cli_refuse(sl_error_text(), NULL);
    /* Devices or a balance override a preset's number of stages as --pp does, and devices in parts
     * its number of replicas as --dp does. */
    sl_train_options *train = &options->train;
    int preset_stages = train->stages, preset_replicas = train->replicas;
    train->stages = train->replicas = 0;
    cli_parse(parser, argc, argv, input);
    if (train->stages == 0 && !train->devices && train->balance_kind != SL_BALANCE_EXPLICIT)
        train->stages = preset_stages;
    options->preset_replicas = train->replicas == 0;
    if (options->preset_replicas && !(train->devices && strchr(train->devices, ';')))
        train->replicas = preset_replicas;
}
