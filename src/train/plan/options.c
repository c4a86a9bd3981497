/* The options of a run: one row each (sluice/app/option.h says what a row is for), and the checks
 * that no single row can make. */
#define _GNU_SOURCE /* asprintf */
#include "sluice/app/train.h"

#include "core/error.h"
#include "optim/optimizer.h"
#include "train/plan/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- When an option decides a run's numbers ------------------------------------------------ */

#define WHEN(name, condition)                                                                      \
    static bool name(const void *object)                                                           \
    {                                                                                              \
        const sl_train_options *options = object;                                                  \
        return condition;                                                                          \
    }

WHEN(always, options != NULL)
WHEN(with_sgd, options->optimizer.kind == SL_OPTIMIZER_SGD)
WHEN(with_adamw, options->optimizer.kind != SL_OPTIMIZER_SGD)
WHEN(with_steps, options->lr.kind == SL_LR_STEP)
/* The rate depends on how many steps there are. */
WHEN(with_end, options->lr.kind >= SL_LR_LINEAR || options->lr.warmup_ratio > 0)
WHEN(with_task, options->task != NULL)
/* Without these a run has the numbers of one that does not know the option. */
WHEN(with_decay_of_matrices, options->optimizer.decay == SL_DECAY_MATRICES)
WHEN(with_tie, options->model.tie)
WHEN(with_averages_in_bf16, options->optimizer.precision == SL_PRECISION_BF16)
WHEN(with_comm_in_bf16, options->comm_precision == SL_PRECISION_BF16)
WHEN(with_eval_every, options->eval_every > 0)
WHEN(with_shuffle, options->shuffle)
WHEN(with_group_by_length, options->group_by_length)
WHEN(with_pack, options->pack)
WHEN(with_min_lr, options->lr.min_lr > 0)
WHEN(with_warmup_ratio, options->lr.warmup_ratio > 0)
WHEN(with_freeze, options->model.freeze != NULL)
WHEN(with_train_layers, options->model.train_layers > 0)
WHEN(with_lora, options->model.lora.adapts)
WHEN(with_batch_invariant, options->batch_invariant)
WHEN(with_slices, options->slices > 1)
WHEN(with_split_vocabulary, options->split_vocabulary)
WHEN(with_lora_targets, options->model.lora.adapts && options->model.lora.targets[0] != '\0')
#undef WHEN

static const char *const f32_or_bf16[] = {"f32", "bf16", NULL};

/* ---- Values that the option types do not have ----------------------------------------------- */

static sl_status refuse_balance(const char *text)
{
    return sl_error(SL_ERR_INVALID,
                    "balance must be layers, auto, or numbers of modules per stage such as 7,7, "
                    "got \"%s\"",
                    text);
}

static sl_status parse_balance(const char *text, void *object)
{
    enum { MAX_MODULES = 100000 };
    sl_train_options *options = object;
    options->balance_count = 0;
    options->balance_kind = strcmp(text, "layers") == 0 ? SL_BALANCE_LAYERS
                            : strcmp(text, "auto") == 0 ? SL_BALANCE_AUTO
                                                        : SL_BALANCE_EXPLICIT;
    if (options->balance_kind != SL_BALANCE_EXPLICIT)
        return SL_OK;
    for (const char *number = text;; number++) {
        char *end;
        unsigned long value = strtoul(number, &end, 10);
        if (*number < '0' || *number > '9' || value > MAX_MODULES ||
            options->balance_count == SL_MAX_STAGES || (*end != ',' && *end != '\0'))
            return refuse_balance(text);
        options->balance[options->balance_count++] = (int)value;
        if (*end == '\0')
            return SL_OK;
        number = end;
    }
}

static char *print_balance(const void *object)
{
    const sl_train_options *options = object;
    char text[SL_MAX_STAGES * 12] = ""; /* a comma, and a number of up to 11 characters */
    size_t used = 0;
    if (options->balance_kind != SL_BALANCE_EXPLICIT)
        return strdup(options->balance_kind == SL_BALANCE_LAYERS ? "layers" : "auto");
    for (int s = 0; s < options->balance_count && s < SL_MAX_STAGES; s++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", s ? "," : "",
                                 options->balance[s]);
    return strdup(text);
}

static sl_status parse_lora_targets(const char *text, void *object)
{
    return sl_lora_targets_set(&((sl_train_options *)object)->model.lora, text);
}

static char *print_lora_targets(const void *object)
{
    const char *targets = ((const sl_train_options *)object)->model.lora.targets;
    return *targets ? strdup(targets) : NULL;
}

static sl_status parse_schedule(const char *text, void *object)
{
    const sl_option named = {.name = "schedule",
                             .type = SL_OPTION_TEXT,
                             .choices = sl_schedule_names};
    sl_train_options *options = object;
    if (!sl_schedule_has_name(text) && access(text, R_OK) != 0)
        return strpbrk(text, "/.")
                   ? sl_error(SL_ERR_INVALID, "schedule must name a file (%s), got \"%s\"",
                              strerror(errno), text)
                   : sl_option_set(&named, &options->schedule, text);
    options->schedule = text;
    return SL_OK;
}

static char *print_schedule(const void *object)
{
    const sl_train_options *options = object;
    return options->schedule ? strdup(options->schedule) : NULL;
}

static sl_status parse_save_every(const char *text, void *object)
{
    sl_save_options *checkpoints = &((sl_train_options *)object)->checkpoints;
    const sl_option steps = {.name = "save-every",
                             .type = SL_OPTION_INT64,
                             .lowest = 1,
                             .offset = offsetof(sl_save_options, every_steps)};
    checkpoints->every_epoch = strcmp(text, "epoch") == 0;
    checkpoints->every_steps = 0;
    return checkpoints->every_epoch ? SL_OK : sl_option_set(&steps, checkpoints, text);
}

static char *print_save_every(const void *object)
{
    const sl_save_options *checkpoints = &((const sl_train_options *)object)->checkpoints;
    char *text;
    if (checkpoints->every_steps == 0)
        return checkpoints->every_epoch ? strdup("epoch") : NULL;
    return asprintf(&text, "%lld", (long long)checkpoints->every_steps) < 0 ? NULL : text;
}

/* ---- The rows ------------------------------------------------------------------------------ */

#define FIELD(kind, field) .type = SL_OPTION_##kind, .offset = offsetof(sl_train_options, field)
#define RANGE(low, high)   .lowest = low, .highest = high
#define OF_LANGUAGE        .ignored = with_task
#define LORA               .group = "Adapters", OF_LANGUAGE, .affects_numbers = with_lora
#define MODEL              .group = "Model", .in_model = true, OF_LANGUAGE, .affects_numbers = always

const char *const sl_preset_names[] = {"transformer-tutorial", "pipeline-tutorial", "ddp-pipeline",
                                       "small", NULL};

/* Limits of single sizes, beyond any machine; check_batches checks their product. */
enum { MAX_ROWS = 1 << 20 };

/* A row is read as one, so it is kept together. */
/* clang-format off */
const sl_option sl_plan_option_rows[] = {
    {.name = "preset", .value = "NAME", FIELD(TEXT, preset), .choices = sl_preset_names,
     .help = "Start from the settings of a PyTorch tutorial, or from those of small, which is for "
             "texts of one's own; other options override them"},

    {.name = "emsize", .value = "N", MODEL, FIELD(INT64, model.emsize), RANGE(1, SL_MAX_WIDTH),
     .help = "Width of the embeddings and of each layer; must be even"},
    {.name = "nhid", .value = "N", MODEL, FIELD(INT64, model.nhid), RANGE(1, SL_MAX_WIDTH),
     .help = "Width of the hidden layer in each feed-forward network"},
    {.name = "nlayers", .value = "N", MODEL, FIELD(INT64, model.nlayers), RANGE(1, SL_MAX_LAYERS),
     .help = "Number of Transformer encoder layers"},
    {.name = "nhead", .value = "N", MODEL, FIELD(INT64, model.nhead), RANGE(1, SL_MAX_WIDTH),
     .help = "Number of attention heads; must divide emsize"},
    {.name = "dropout", .value = "P", MODEL, FIELD(FLOAT, model.dropout), .less_than = 1,
     .help = "Dropout probability"},
    {.name = "mask", .value = "KIND", MODEL, FIELD(CHOICE, model.mask), .choices = sl_mask_names,
     .help = "Attention mask. causal: a position sees itself and earlier ones; none: it sees all"},
    {.name = "activation", .value = "KIND", MODEL, FIELD(CHOICE, model.activation),
     .choices = sl_activation_names,
     .help = "Activation function of the feed-forward networks. gelu is exact; gelu_tanh is GPT-2's"},
    {.name = "pre-norm", MODEL, FIELD(FLAG, model.pre_norm),
     .help = "Apply layer normalization before attention and feed-forward instead of after them"},
    {.name = "tie", .group = "Model", .in_model = true, OF_LANGUAGE, .affects_numbers = with_tie,
     FIELD(FLAG, model.tie),
     .help = "Use the embedding's weight as the decoder's as well"},
    {.name = "freeze", .value = "PATTERN", .group = "Model", OF_LANGUAGE, .affects_numbers = with_freeze,
     FIELD(TEXT, model.freeze),
     .help = "Do not train the parameters whose names match PATTERN, such as 'model.embed_tokens.*' (* is "
             "any characters), or one of several with commas between them: they take no memory for gradients "
             "and the optimizer's state"},

    {.name = "train-layers", .value = "N", .group = "Model", OF_LANGUAGE, .affects_numbers = with_train_layers,
     FIELD(INT64, model.train_layers), RANGE(1, SL_MAX_LAYERS), .optional = true,
     .help = "Train the last N layers alone, without embedding, last norm and head; with --lora only "
             "they have adapters"},

    {.name = "lora", LORA, FIELD(FLAG, model.lora.adapts), .needs = "init",
     .help = "Train low-rank adapters (LoRA) of some linear layers, and nothing else; --save saves them "
             "alone, as PEFT does"},
    {.name = "lora-rank", .value = "R", LORA, FIELD(INT64, model.lora.rank), RANGE(1, SL_MAX_WIDTH),
     .optional = true, .default_value = SL_LORA_RANK, .needs = "lora",
     .help = "Rank of the adapters"},
    {.name = "lora-alpha", .value = "A", LORA, FIELD(FLOAT, model.lora.alpha),
     .optional = true, .default_value = SL_LORA_ALPHA, .needs = "lora",
     .help = "An adapter's product is multiplied by A / R"},
    {.name = "use-rslora", LORA, FIELD(FLAG, model.lora.rslora), .needs = "lora",
     .help = "Multiply it by A divided by the root of R instead"},
    {.name = "lora-dropout", .value = "P", LORA, FIELD(FLOAT, model.lora.dropout), .less_than = 1, .needs = "lora",
     .help = "Dropout of what goes into adapters"},
    {.name = "lora-targets", .value = "NAMES", .group = "Adapters", OF_LANGUAGE, .affects_numbers = with_lora_targets,
     .type = SL_OPTION_CUSTOM, .parse = parse_lora_targets,
     .print = print_lora_targets, .needs = "lora",
     .help = "Linear layers that have adapters: names, or ends of their paths, with commas between them, or "
             "all-linear, which is all but the head; without it q_proj,v_proj, or GPT-2's c_attn"},

    {.name = "pp", .value = "P", .group = "Pipeline", FIELD(INT, pipeline_ranks), RANGE(1, SL_MAX_STAGES),
     .optional = true, .not_logged = true,
     .help = "Number of pipeline ranks. Without --devices they split the cores (cpu:0,cpu:1) or "
             "share them (cpu,cpu), whichever is faster by a short profile"},
    {.name = "devices", .value = "LIST", .group = "Pipeline", FIELD(TEXT, devices),
     .not_logged = true,
     .help = "Devices, one for each pipeline rank. cpu:0,cpu:1 divide the machine's cores evenly; cpu:0-3 "
             "names cores; cuda:0 is a GPU, cuda:0/1 a virtual device on it. Replicas divide the list evenly, or each has its own: "
             "'cpu:0,cpu:1;cpu:2,cpu:3'"},
    {.name = "balance", .value = "RULE", .group = "Pipeline", .type = SL_OPTION_CUSTOM,
     .parse = parse_balance, .print = print_balance, .not_logged = true,
     .help = "How modules are divided among stages: layers (equal numbers of layers), auto (the "
             "shortest step by a short profile), or numbers of modules such as 7,7"},
    {.name = "chunks", .value = "M", .group = "Pipeline", FIELD(INT, chunks),
     RANGE(1, SL_MAX_CHUNKS), .optional = true,
     .help = "Number of micro-batches in each accumulation step; without it 1 for one pipeline "
             "rank, else 4 for each rank, as far as the batch has rows. A run that resumes keeps "
             "its number"},
    {.name = "accumulate", .value = "N", .group = "Pipeline", FIELD(INT, accumulate),
     RANGE(1, SL_MAX_CHUNKS), .optional = true, .default_value = 1,
     .help = "Gradient accumulation: run a batch through the pipeline in N steps of --chunks "
             "micro-batches and update once. Gives the same bits as N times the chunks, with the "
             "activations of one step"},
    {.name = "recompute", .old_name = "checkpoint", .value = "MODE", .group = "Pipeline", FIELD(CHOICE, recompute),
     .choices = sl_recompute_names,
     .help = "Which micro-batches recompute their activations: all but the last (except_last), "
             "none (never) or all (always)"},
    {.name = "schedule", .value = "NAME|FILE", .group = "Pipeline", .type = SL_OPTION_CUSTOM,
     .parse = parse_schedule, .print = print_schedule, .choices = sl_schedule_names,
     .help = "Order of forwards and backwards, by name or as a file with a table in PyTorch's CSV, "
             "which also says how many ranks and chunks there are"},
    {.name = "slices", .value = "K", .group = "Pipeline", FIELD(INT, slices),
     RANGE(1, SL_MAX_SLICES), .optional = true, .affects_numbers = with_slices,
     .help = "Cut each micro-batch into so many slices along its rows' tokens (Seq1F1B): a smaller bubble, "
             "where rows are long and micro-batches few. For schedules of one stage a rank, and rows of one length. Another number "
             "gives the same losses to rounding. CPUs only; without it 1, or as many as a file's table has"},
    {.name = "split-vocabulary", .group = "Pipeline", OF_LANGUAGE, FIELD(FLAG, split_vocabulary),
     .affects_numbers = with_split_vocabulary,
     .help = "Split the last layer and its loss over all pipeline ranks by the vocabulary, in 64 blocks of "
             "words, so that no rank waits for the one that would have it alone. Another number of ranks gives "
             "the same bits; without the option, they are equal to rounding. CPUs only. sluice plan tries it unless "
             "--no-split-vocabulary is given"},
    {.name = "virtual", .value = "V", .group = "Pipeline", FIELD(INT, virtual_stages),
     RANGE(1, SL_MAX_STAGES), .optional = true,
     .help = "Stages of each pipeline rank; without it the schedule's own number"},
    {.name = "placement", .value = "RULE", .group = "Pipeline", FIELD(TEXT, placement),
     .help = "The rank of each stage: loop, v, or a list such as 0,1,1,0; without it the schedule's own"},

    {.name = "dp", .value = "R", .group = "Data parallelism", FIELD(INT, replicas),
     RANGE(1, SL_MAX_REPLICAS), .optional = true, .not_logged = true,
     .help = "Number of replicas of the pipeline, up to one for each shard of the training text; by "
             "default 1, or under mpirun the number of processes. It changes no result"},
    {.name = "shards", .value = "K", .group = "Data parallelism", FIELD(INT, shards),
     RANGE(1, SL_MAX_REPLICAS), .optional = true, .affects_numbers = always,
     .help = "Number of shards of the training text, which replicas divide among them; without it "
             "one for each replica. A run that resumes keeps its number"},
    {.name = "near-replicas", .group = "Data parallelism", FIELD(FLAG, near_replicas),
     .help = "Of several processes for each replica, number a stage's replicas one after the other, not a pipeline's ranks. It changes no result"},
    {.name = "zero", .group = "Data parallelism", FIELD(FLAG, zero),
     .help = "Shard the optimizer's state over the replicas (ZeRO-1)"},
    {.name = "comm-precision", .value = "KIND", .group = "Data parallelism",
     FIELD(CHOICE, comm_precision), .choices = f32_or_bf16,
     .affects_numbers = with_comm_in_bf16,
     .help = "Precision of the gradients that replicas exchange. bf16: each shard's gradients and "
             "their average are rounded to bf16, which halves the bytes; sums are in f32"},
    {.name = "nccl", .group = "Data parallelism", FIELD(FLAG, nccl),
     .help = "Exchange gradients, and the weights that --zero shards, between CUDA devices by NCCL "
             "instead of through host memory. Every stage of every replica needs a GPU of its own. "
             "It changes no result"},

    {.name = "batch-size", .value = "N", .group = "Batches", FIELD(INT64, batch_size),
     RANGE(1, MAX_ROWS), .affects_numbers = always,
     .help = "Rows that each shard gives to a training batch. The shard's text is cut into this many "
             "columns, one for each row"},
    {.name = "bptt", .old_name = "seq-len", .value = "T", .group = "Batches", FIELD(INT64, bptt),
     RANGE(1, SL_MAX_CONTEXT), OF_LANGUAGE, .affects_numbers = always,
     .help = "Tokens in each row of a batch, at most the model's positions; --seq-len is its other name. eval takes by default as many "
             "as a row had in the training of the weights"},

    {.name = "optimizer", .value = "NAME", .group = "Optimizer", FIELD(CHOICE, optimizer.kind),
     .choices = sl_optimizer_kind_names, .affects_numbers = always, .help = "Optimizer"},
    {.name = "optimizer-precision", .value = "KIND", .group = "Optimizer", FIELD(CHOICE, optimizer.precision),
     .choices = f32_or_bf16, .affects_numbers = with_averages_in_bf16,
     .help = "In what AdamW's averages are kept, in memory and in checkpoints. bf16: half the bytes; they are "
             "computed in f32 and rounded up or down at random, by the seed, so that their means stay right"},
    {.name = "momentum", .value = "X", .group = "Optimizer", FIELD(FLOAT, optimizer.momentum),
     .affects_numbers = with_sgd, .help = "Momentum of SGD"},

    {.name = "precision", .value = "KIND", .group = "Training", FIELD(CHOICE, precision),
     .choices = sl_precision_names,
     .help = "Precision of matrix products and of activations. bf16: products of bf16 numbers with "
             "sums in f32. tf32, on GPUs alone: products of f32 numbers rounded to 11 bits. Weights and "
             "gradients stay f32, and so do a checkpoint's weights. A run that resumes may have another "
             "one"},
    {.name = "batch-invariant", .group = "Training", FIELD(FLAG, batch_invariant),
     .affects_numbers = with_batch_invariant,
     .help = "Give the forward of a row the same bits in any batch: with other rows beside it, another "
             "--chunks or --slices, packed, or token by token in generate. It takes longer. CPUs only"},

    {0},
};

const sl_option sl_train_option_rows[] = {
    {.name = "data", .value = "DIR|FILE", .group = "Batches", FIELD(TEXT, data), .is_item = sl_is_source,
     .help = "Directory of text: wiki.{train,valid,test}.tokens or {train,valid,test}.txt; or one "
             "text file, whose first 90% is for training, the next 5% for validation and the last "
             "5% for the test. Or rows: {train,valid,test}.jsonl, or token files {train,valid,test}.bin, or one file of these "
             "for training alone. In training, NAME=WEIGHT:DIR|FILE for each of several sources mixes their rows by "
             "weights"},
    {.name = "tokenizer", .value = "DIR|FILE", .group = "Batches", FIELD(TEXT, tokenizer),
     .help = "Read the text with this tokenizer: a model's directory or one with vocab.json and "
             "merges.txt, a tokenizer.json, SentencePiece's tokenizer.model, or a rank file of "
             "tiktoken. By default it is that of --init, or the words of the text"},
    {.name = "token-type", .value = "TYPE", .group = "Batches", FIELD(CHOICE, token_type),
     .choices = sl_token_type_names,
     .help = "What token files without a header hold, as nanoGPT's"},
    {.name = "mask-prompt", .group = "Batches", FIELD(FLAG, mask_prompt), .affects_numbers = always,
     .help = "Of lines with a prompt and a completion, or messages, only the completion and what the "
             "assistant says have a loss; --no-mask-prompt: all has"},
    {.name = "splitter", .value = "NAME", .group = "Batches", FIELD(TEXT, splitter),
     .choices = sl_splitters, .needs = "tokenizer",
     .help = "How the text is split into words: as by GPT-2, SmolLM, GPT-4 and Llama 3, or Qwen2 to "
             "Qwen3. A rank file needs one, and for vocab.json it is gpt2 by default"},
    {.name = "eval-batch-size", .value = "N", .group = "Batches", FIELD(INT64, eval_batch_size),
     RANGE(1, MAX_ROWS), .affects_numbers = always,
     .help = "Rows of an evaluation batch; the text is cut into as many columns"},
    {.name = "max-batches", .value = "N", .group = "Batches", FIELD(INT64, max_batches),
     .affects_numbers = always,
     .help = "At most N batches in an epoch; 0: all"},
    {.name = "eval-max-batches", .value = "N", .group = "Batches", FIELD(INT64, eval_max_batches),
     .affects_numbers = always,
     .help = "At most N batches in an evaluation; 0: all"},
    {.name = "eval-every", .value = "N", .group = "Batches", FIELD(INT64, eval_every),
     .affects_numbers = with_eval_every,
     .help = "Validate every N steps as well as after every epoch; 0: not"},
    {.name = "sample-every", .value = "N", .group = "Batches", FIELD(INT64, sample_every),
     .help = "Print what the model makes of --sample-prompt every N steps; 0: not"},
    {.name = "sample-prompt", .value = "TEXT", .group = "Batches", FIELD(TEXT, sample_prompt), .needs = "sample-every",
     .help = "The beginning of what the model is to say; it may hold special tokens of the tokenizer"},
    {.name = "sample-tokens", .value = "N", .group = "Batches", FIELD(INT64, sample_tokens), RANGE(1, 100000),
     .optional = true, .default_value = 50, .needs = "sample-every",
     .help = "Number of tokens to add to it, at most"},
    {.name = "shuffle", .group = "Batches", FIELD(FLAG, shuffle), .affects_numbers = with_shuffle,
     .help = "Train the rows of each epoch in a new random order, which --seed decides. Without it, "
             "or with --no-shuffle, batches follow the text or the file; a model of another family "
             "than the tutorials' is shuffled unless --no-shuffle is given"},
    {.name = "pack", .group = "Batches", FIELD(FLAG, pack), .affects_numbers = with_pack,
     .help = "Put as many rows of JSON lines as fit into one of --seq-len tokens, the fewer padding the better; "
             "each is attended to alone. Of longer ones, parts"},
    {.name = "group-by-length", .group = "Batches", FIELD(FLAG, group_by_length), .affects_numbers = with_group_by_length,
     .help = "Put rows of JSON lines that are about equally long into a batch, so that less of it is "
             "padding: the rows of up to 50 batches are sorted, the longest first"},

    {.name = "epochs", .value = "N", .group = "Training", FIELD(INT, epochs), .lowest = 1,
     .affects_numbers = with_end,
     .help = "Number of epochs"},
    {.name = "lr", .value = "X", .group = "Training", FIELD(DOUBLE, lr.lr),
     .affects_numbers = always,
     .help = "Learning rate; by default 5.0 for sgd and 0.001 for adamw"},
    {.name = "lr-schedule", .value = "NAME", .group = "Training", FIELD(CHOICE, lr.kind),
     .choices = sl_lr_names, .affects_numbers = always,
     .help = "How the learning rate falls. constant: not; step: by the factor gamma every "
             "step-epochs epochs; to min-lr at the end of the run: linear along a line, cosine along "
             "half a cosine, wsd by 1 - sqrt in the last fifth of the steps"},
    {.name = "min-lr", .value = "X", .group = "Training", FIELD(DOUBLE, lr.min_lr),
     .affects_numbers = with_min_lr,
     .help = "Learning rate at the end of the linear, cosine and wsd schedules"},
    {.name = "gamma", .value = "X", .group = "Training", FIELD(DOUBLE, lr.gamma),
     .optional = true, .default_value = 1, .affects_numbers = with_steps,
     .help = "Factor of the step schedule"},
    {.name = "step-epochs", .value = "N", .group = "Training", FIELD(INT, lr.step_epochs),
     .lowest = 1, .optional = true, .default_value = 1, .affects_numbers = with_steps,
     .help = "Epochs between two steps of the step schedule"},
    {.name = "warmup", .value = "N", .group = "Training", FIELD(INT64, lr.warmup_steps),
     .log_key = "warmup_steps", .affects_numbers = always,
     .help = "Number of first steps in which the learning rate rises linearly"},
    {.name = "warmup-ratio", .value = "X", .group = "Training", FIELD(DOUBLE, lr.warmup_ratio),
     .less_than = 1, .affects_numbers = with_warmup_ratio,
     .help = "The same as a fraction of all steps, where --warmup is 0"},
    {.name = "clip", .value = "X", .group = "Training", FIELD(DOUBLE, clip),
     .affects_numbers = always,
     .help = "Largest norm of the gradients of all stages together; 0: no clipping"},
    {.name = "seed", .value = "S", .group = "Training", FIELD(SEED, seed),
     .affects_numbers = always,
     .help = "Seed of initial values, of dropout, of the order of --shuffle and of --optimizer-precision's rounding"},
    {.name = "allow-nan", .group = "Training", FIELD(FLAG, allow_nan),
     .help = "Continue after a loss or gradient norm that is not finite"},

    {.name = "dampening", .value = "X", .group = "Optimizer", FIELD(FLOAT, optimizer.dampening),
     .affects_numbers = with_sgd, .help = "Dampening of SGD's momentum"},
    {.name = "nesterov", .group = "Optimizer", FIELD(FLAG, optimizer.nesterov),
     .affects_numbers = with_sgd, .help = "Use Nesterov momentum in SGD"},
    {.name = "betas", .value = "B1,B2", .group = "Optimizer", FIELD(PAIR, optimizer.beta1),
     .less_than = 1, .default_value = 0.9, .second_default = 0.999, .log_key = "beta",
     .affects_numbers = with_adamw,
     .help = "AdamW's decay rates for the averages of gradients and of squared gradients"},
    {.name = "eps", .value = "X", .group = "Optimizer", FIELD(FLOAT, optimizer.eps),
     .optional = true, .default_value = 1e-8, .affects_numbers = with_adamw, .help = "AdamW's constant in the divisor"},
    {.name = "weight-decay", .value = "X", .group = "Optimizer",
     FIELD(FLOAT, optimizer.weight_decay), .affects_numbers = always, .help = "Weight decay"},
    {.name = "weight-decay-for", .value = "WHICH", .group = "Optimizer",
     FIELD(CHOICE, optimizer.decay), .choices = sl_decay_kind_names,
     .affects_numbers = with_decay_of_matrices,
     .help = "Which parameters weight decay is for. all: as PyTorch's optimizers by default; "
             "matrices: not biases and norms, as nanoGPT"},

    {.name = "init", .value = "DIR|FILE", .group = "Files and display", FIELD(TEXT, init),
     .help = "Start from the model in DIR, or a checkpoint, with its sizes and its vocabulary; from "
             "llm.c's file of a GPT-2; or from the tensors of a safetensors file or an index of several"},
    {.name = "adapter", .value = "DIR", .group = "Files and display", FIELD(TEXT, adapter), .needs = "init",
     .help = "Go on from the adapter (LoRA) in DIR, as PEFT or --save has written it: of --init's model, with "
             "the adapter's own rank, alpha, dropout and targets"},
    {.name = "partial", .group = "Files and display", FIELD(FLAG, partial), .needs = "init",
     .help = "Load only the weights of --init that the model has by name and shape, and list the "
             "others"},
    {.name = "save", .value = "DIR", .group = "Files and display", FIELD(TEXT, save),
     .not_logged = true,
     .help = "Save the best model to the directory DIR, which is replaced whole: config.json, "
             "tokenizer.json, model.safetensors; a run that is stopped before its first validation "
             "saves its last weights"},
    {.name = "save-dtype", .value = "TYPE", .group = "Files and display", FIELD(CHOICE, save_type),
     .choices = sl_saved_type_names, .not_logged = true,
     .help = "Numbers of what is saved: f32, or bf16, half as many bytes, each rounded to the nearest"},
    {.name = "force", .group = "Files and display", FIELD(FLAG, force), .not_logged = true,
     .help = "Start although the run needs more memory than there is"},

    {.name = "save-dir", .value = "DIR", .group = "Checkpoints", FIELD(TEXT, checkpoints.directory),
     .not_logged = true,
     .help = "Save checkpoints in DIR. SIGTERM, SIGINT, SIGHUP and SIGPIPE then stop the run after "
             "saving one; SIGUSR1 saves one"},
    {.name = "save-every", .value = "N", .group = "Checkpoints", .type = SL_OPTION_CUSTOM,
     .parse = parse_save_every, .print = print_save_every, .needs = "save-dir", .initial = "epoch",
     .not_logged = true,
     .help = "Save a checkpoint every N steps; epoch: after each validation"},
    {.name = "keep", .value = "K", .group = "Checkpoints", FIELD(INT, checkpoints.keep),
     .needs = "save-dir", .initial = "3", .not_logged = true,
     .help = "Keep the newest K checkpoints, beside the best model; 0: all"},
    {.name = "shard-size", .value = "BYTES", .group = "Checkpoints",
     FIELD(BYTES, checkpoints.shard_bytes), .not_logged = true,
     .help = "Largest file of tensors in a checkpoint and in --save, such as 500M (K, M and G are "
             "powers of 1024)"},
    {.name = "resume", .value = "DIR", .group = "Checkpoints", FIELD(TEXT, checkpoints.resume),
     .not_logged = true,
     .help = "Continue from the checkpoint DIR, or from the newest undamaged one in the directory "
             "DIR; auto: from the newest in save-dir, if there is one. A job that sluice launch "
             "restarts does this by itself"},
    {0},
};
/* clang-format on */

#undef MODEL
#undef LORA
#undef RANGE
#undef FIELD

const sl_option *sl_train_option_row(int index)
{
    for (const sl_option *row = sl_plan_option_rows; row->name; row++)
        if (index-- == 0)
            return row;
    for (const sl_option *row = sl_train_option_rows; row->name; row++)
        if (index-- == 0)
            return row;
    return NULL;
}

/* ---- Checks -------------------------------------------------------------------------------- */

static sl_status check_model(const sl_model_options *model)
{
    if (model->family != SL_FAMILY_TUTORIALS)
        return SL_OK; /* its config.json was checked */
    if (model->emsize % model->nhead != 0)
        return sl_error(SL_ERR_INVALID,
                        "emsize must be divisible by nhead, got emsize %" PRId64
                        " and nhead %" PRId64,
                        model->emsize, model->nhead);
    if (model->emsize % 2 != 0)
        return sl_error(SL_ERR_INVALID,
                        "emsize must be even (sines and cosines alternate), got %" PRId64,
                        model->emsize);
    return SL_OK;
}

static sl_status check_task(const sl_train_task *task)
{
    const char *missing = !task->create_model    ? "create_model"
                          : !task->count_batches ? "count_batches"
                          : !task->load_rows     ? "load_rows"
                                                 : NULL;
    return missing ? sl_error(SL_ERR_INVALID, "task->%s is NULL", missing) : SL_OK;
}

/* Keeps products of sizes within 63 bits. */
static sl_status check_batches(const sl_train_options *options)
{
    const sl_model_options *model = &options->model;
    int64_t rows = options->batch_size > options->eval_batch_size ? options->batch_size
                                                                  : options->eval_batch_size;
    double values = (double)rows * (double)options->bptt * (double)model->nlayers *
                    (double)(model->emsize + model->nhid);
    if (values > 0x1p54)
        return sl_error(SL_ERR_INVALID,
                        "a batch of %" PRId64 " rows of %" PRId64
                        " tokens has more activations in such a model than any machine can hold",
                        rows, options->bptt);
    return SL_OK;
}

static sl_status check_slices(const sl_train_options *options)
{
    int of_table = options->table ? sl_schedule_slices(options->table) : 1;
    const char *other = options->pack                         ? "pack"
                        : options->split_vocabulary           ? "split_vocabulary"
                        : options->model.mask == SL_MASK_NONE ? "a model without causal mask"
                                                              : NULL;
    if (options->table && options->slices > 0 && options->slices != of_table)
        return sl_error(SL_ERR_INVALID, "the schedule %s has %d slices of a micro-batch, not %d",
                        options->schedule, of_table, options->slices);
    if (other && (options->slices > 1 || of_table > 1))
        return sl_error(SL_ERR_UNSUPPORTED, "slices cannot be combined with %s", other);
    int slices = options->slices > 0 ? options->slices : of_table;
    if (options->bptt > 0 && slices > options->bptt)
        return sl_error(SL_ERR_INVALID,
                        "slices must be at most bptt (seq-len), the tokens of a row: got %d slices "
                        "of %" PRId64,
                        slices, options->bptt);
    return SL_OK;
}

static sl_status check_data(const char *data)
{
    sl_sources sources;
    SL_TRY(sl_sources_parse(data, &sources));
    sl_sources_free(&sources);
    return SL_OK;
}

sl_status sli_train_options_check_values(const sl_train_options *options)
{
    if (options->epochs == 0 && options->batch_size == 0 && options->model.nlayers == 0)
        return sl_error(SL_ERR_INVALID, "the options have neither epochs, batches nor layers: "
                                        "begin with sl_train_options_default");
    sl_train_options filled = *options;
    if (options->lr.lr == SL_LR_DEFAULT)
        filled.lr.lr = 0;
    for (int i = 0; sl_train_option_row(i); i++)
        SL_TRY(sl_option_check(sl_train_option_row(i), &filled));
    if (options->task)
        SL_TRY(check_task(options->task));
    else if (options->data)
        SL_TRY(check_data(options->data));
    if (options->task && options->optimizer.kind == SL_OPTIMIZER_SGD &&
        options->lr.lr == SL_LR_DEFAULT && !options->checkpoints.resume)
        return sl_error(SL_ERR_INVALID, "sgd has no default learning rate for a task: set lr.lr");
    if (options->lr.lr != SL_LR_DEFAULT && options->lr.min_lr > options->lr.lr)
        return sl_error(SL_ERR_INVALID, "min_lr must not be above lr, got %g and %g",
                        options->lr.min_lr, options->lr.lr);
    if (options->sample_every > 0 && options->task)
        return sl_error(SL_ERR_INVALID, "sample-every is for language models, not for a task's");
    if (options->sample_every > 0 && !options->sample_prompt)
        return sl_error(SL_ERR_INVALID, "sample-every needs sample-prompt, what the model is to go "
                                        "on with");
    SL_TRY(check_slices(options));
    SL_TRY(check_model(&options->model));
    SL_TRY(check_batches(options));
    return sli_optimizer_check(&options->optimizer);
}

sl_status sl_train_options_check(const sl_train_options *options)
{
    sl_plan *plan;
    SL_TRY(sl_plan_create(options, NULL, NULL, NULL, &plan));
    sl_plan_destroy(&plan);
    return SL_OK;
}
