/* Saved models as commands use them: built again on devices for inference; and a training run's
 * sizes, which are those of the model that it starts from. */
#include "cli/cli.h"
#include "sluice/app/inference.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* torchrun's variables without RANK do not start other processes. */
sl_status cli_group_create(const sl_launch_info *launch, sl_group **out)
{
    sl_launch_link_joining(cli_launcher, true);
    SL_TRY(sl_group_create_mpi(NULL, out));
    sl_launch_link_joining(cli_launcher, false);
    int size = sl_group_size(*out);
    if (size == launch->world_size)
        return SL_OK;
    sl_group_destroy(out);
    return sl_error(SL_ERR_INVALID,
                    "the environment is that of rank %d of %d, but MPI knows of %d: start the "
                    "processes with sluice launch, mpirun or srun",
                    launch->rank, launch->world_size, size);
}

/* "cpu:0,cpu:1", one for each process of this machine. */
static void name_devices(int count, char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%scpu:%d", i ? "," : "", i);
}

/* This process's devices, at its stages; stages are divided evenly, neighbours together. */
static sl_status open_devices(const sl_train_options *options, cli_saved_model *model,
                              sl_device *devices[SL_MAX_STAGES], int *stages)
{
    const char *names = options->devices;
    char each[16 * SL_MAX_STAGES];
    sl_launch_info launch;
    SL_TRY(sl_launch_info_read(&launch));
    if (launch.world_size > SL_MAX_STAGES)
        return sl_error(SL_ERR_INVALID,
                        "each process needs a stage, and there can be at most %d, got %d processes",
                        SL_MAX_STAGES, launch.world_size);
    if (launch.world_size > 1)
        SL_TRY(cli_group_create(&launch, &model->group));
    model->prints = launch.rank == 0;
    name_devices(launch.local_world_size, each, sizeof each);
    SL_TRY(sl_device_list_create(names ? names : each, &model->devices, NULL));
    SL_TRY(sl_device_list_set_batch_invariant(model->devices, options->batch_invariant));
    int count = sl_device_list_count(model->devices), stages_each = count / launch.local_world_size;
    *stages = stages_each * launch.world_size;
    if (count % launch.local_world_size != 0)
        return sl_error(SL_ERR_INVALID,
                        "--devices: %d processes of this machine need as many devices each, got %d",
                        launch.local_world_size, count);
    if (*stages > SL_MAX_STAGES)
        return sl_error(SL_ERR_INVALID, "there can be at most %d stages, got %d", SL_MAX_STAGES,
                        *stages);
    for (int s = 0; s < stages_each; s++)
        devices[launch.rank * stages_each + s] =
            sl_device_list_get(model->devices, launch.local_rank * stages_each + s);
    return SL_OK;
}

static sl_status build_pipe(const sl_train_options *options, bool overlapping,
                            cli_saved_model *model)
{
    sl_device *devices[SL_MAX_STAGES] = {NULL};
    int stages = 0;
    SL_TRY(open_devices(options, model, devices, &stages));
    SL_TRY(sl_transformer_lm_create(&model->options, &model->model));
    SL_TRY(sl_cross_entropy_create(&model->loss));
    return sl_pipe_create(&(sl_pipe_options){.model = model->model,
                                             .loss = model->loss,
                                             .stages = stages,
                                             .devices = devices,
                                             .chunks = overlapping ? stages : 1,
                                             .precision = options->precision,
                                             .no_init = true,
                                             .inference = true,
                                             .group = model->group},
                          &model->pipe);
}

/* The one that was given, or the model's. */
static sl_status open_tokenizer(const sl_train_options *options, cli_saved_model *model)
{
    if (!options->tokenizer)
        return sl_error_context(sl_saved_model_need_vocab(model->saved, &model->vocab),
                                "a text needs a tokenizer (--tokenizer), or ids: ");
    SL_TRY(sl_vocab_open(options->tokenizer, options->splitter, &model->tokenizer));
    model->vocab = model->tokenizer;
    if (sl_vocab_size(model->vocab) <= model->options.ntokens)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s: it has %" PRId32 " tokens, more than the model's %" PRId64,
                    options->tokenizer, sl_vocab_size(model->vocab), model->options.ntokens);
}

/* Checksums of a tokenizer and its settings as a message, which is of whole words; empty: there is
 * none. */
enum { CHECKSUM_WORDS = (SL_VOCAB_CHECKSUM_BYTES + 3) / 4 };
typedef struct tokenizer_identity {
    char tokens[CHECKSUM_WORDS * sizeof(int32_t)], settings[CHECKSUM_WORDS * sizeof(int32_t)];
} tokenizer_identity;

static sl_status refuse_other_tokenizer(const char *path, const tokenizer_identity *local,
                                        const tokenizer_identity *first)
{
    if (!*local->tokens)
        return sl_error(SL_ERR_INVALID,
                        "this process has no tokenizer, but the first one has (checksum %s): start "
                        "all with the same --tokenizer",
                        first->tokens);
    if (!*first->tokens)
        return sl_error(SL_ERR_INVALID,
                        "this process's tokenizer is %s, but the first process has none: start all "
                        "with the same --tokenizer",
                        path);
    bool same_tokens = strcmp(local->tokens, first->tokens) == 0;
    return sl_error(SL_ERR_INVALID,
                    "this process's tokenizer %s (checksum %s%s) is not the first process's (%s): "
                    "start all with the same --tokenizer",
                    path, same_tokens ? "of its tokenizer_config.json " : "",
                    same_tokens ? local->settings : local->tokens,
                    same_tokens ? first->settings : first->tokens);
}

/* Each process makes ids of the prompt by its own tokenizer, and ends a text at its end. */
static sl_status check_same_tokenizer(const sl_train_options *options, const cli_saved_model *model)
{
    tokenizer_identity local = {{0}, {0}}, first;
    if (!model->group)
        return SL_OK;
    if (model->vocab) {
        SL_TRY(sl_vocab_checksum(model->vocab, local.tokens));
        sl_vocab_settings_checksum(model->vocab, local.settings);
    }
    first = local;
    SL_TRY(sl_group_broadcast(sl_pipe_group(model->pipe), &first, 2 * CHECKSUM_WORDS, SL_I32, 0,
                              NULL));
    bool same =
        strcmp(first.tokens, local.tokens) == 0 && strcmp(first.settings, local.settings) == 0;
    const char *path = options->tokenizer ? options->tokenizer : options->init;
    return sl_pipe_abort(model->pipe, same ? SL_OK : refuse_other_tokenizer(path, &local, &first));
}

static void refuse_two_adapters(const sl_train_options *options, const sl_model_options *saved)
{
    if (options->adapter && saved->lora.adapts)
        cli_refuse("--init is a checkpoint with adapters, so it cannot be combined with --adapter");
}

static void check_context(cli_model_needs needs, const sl_model_options *options)
{
    int64_t most = sl_model_positions(options);
    if (needs.context && cli_line_value(needs.line, needs.context) && needs.given > most)
        cli_refuse("--%s must be at most %" PRId64 ", the model's positions, got %" PRId64,
                   needs.context, most, needs.given);
}

sl_status cli_saved_model_load(const sl_train_options *options, cli_model_needs needs,
                               cli_saved_model *out)
{
    const char *path = options->init;
    *out = (cli_saved_model){0};
    SL_TRY(cli_name_checkpoints(sl_saved_model_open(path, &out->saved), path));
    const sl_model_options *saved = sl_saved_model_options(out->saved);
    if (!saved)
        return sl_error(SL_ERR_NOT_FOUND,
                        "%s: it has no config.json: give the directory of a model or of a "
                        "checkpoint",
                        path);
    out->options = *saved;
    check_context(needs, saved);
    if (needs.tokenizer || options->tokenizer)
        SL_TRY(open_tokenizer(options, out));
    else
        out->vocab = sl_saved_model_vocab(out->saved);
    refuse_two_adapters(options, saved);
    if (options->adapter)
        SL_TRY(sl_adapter_options(options->adapter, &out->options.lora));
    SL_TRY(build_pipe(options, needs.overlapping, out));
    SL_TRY(check_same_tokenizer(options, out));
    cli_warn_of_devices(out->pipe, options->devices, options->precision);
    SL_TRY(sl_saved_model_load(out->saved, out->pipe, NULL, NULL));
    return options->adapter ? sl_adapter_load(options->adapter, out->pipe) : SL_OK;
}

int64_t cli_context(const cli_line *line, const char *name, int64_t given,
                    const cli_saved_model *model)
{
    if (cli_line_value(line, name))
        return given;
    if (model->options.context > 0)
        return model->options.context;
    if (model->prints)
        cli_complain(
            "warning: the model does not say how many tokens a row had in its training; %d are "
            "taken (--%s)",
            SL_DEFAULT_CONTEXT, name);
    return SL_DEFAULT_CONTEXT;
}

void cli_saved_model_clear(cli_saved_model *model)
{
    sl_pipe_destroy(&model->pipe);
    sl_loss_destroy(&model->loss);
    sl_module_destroy(&model->model);
    sl_device_list_destroy(&model->devices);
    sl_group_destroy(&model->group);
    sl_vocab_destroy(&model->tokenizer);
    sl_saved_model_close(&model->saved);
}

/* ---- Checkpoints in a run's directory ------------------------------------------------------- */

sl_status cli_name_checkpoints(sl_status status, const char *path)
{
    char reason[1024];
    if (status != SL_ERR_NOT_FOUND)
        return status;
    snprintf(reason, sizeof reason, "%s", sl_error_text());
    char *best = NULL, *newest = NULL;
    if (sl_train_find_checkpoints(path, &best, &newest) == SL_OK && (best || newest))
        sl_error(status, "%s: this is a run's directory; give one of its checkpoints: %s%s%s%s",
                 path, best ? best : "", best ? ", its best model" : "",
                 best && newest ? ", or the newest, " : "", newest ? newest : "");
    else
        sl_error(status, "%s", reason);
    free(best);
    free(newest);
    return status;
}

/* ---- The sizes of a model to start from ------------------------------------------------------ */

/* Sets a row of the model's as the saved one has it. One that was given must have that value,
 * unless weights are loaded as far as they fit. */
static sl_status apply_row(const cli_line *line, const sl_option *row, const void *saved,
                           sl_train_options *train)
{
    char *has = NULL, *wanted = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(sl_option_text(row, saved, &has));
    SL_TRY_OR_FAIL(sl_option_text(row, train, &wanted));
    if (!cli_line_value(line, row->name))
        SL_TRY_OR_FAIL(sl_option_set(row, train, has));
    else if (!train->partial && strcmp(has, wanted) != 0)
        status = sl_error(SL_ERR_INVALID, "%s: the model has %s %s, but %s is set to %s: remove it",
                          train->init ? train->init : "--model", row->name, has, row->name, wanted);
fail:
    free(has);
    free(wanted);
    return status;
}

/* The adapters that a run goes on from have the options that they were made with. */
static sl_status apply_adapter(const cli_line *line, const sl_model_options *model,
                               sl_train_options *train)
{
    static const char *const own[] = {"lora",         "lora-rank",    "lora-alpha",  "use-rslora",
                                      "lora-dropout", "lora-targets", "train-layers"};
    const char *source = train->adapter ? "--adapter" : "--init";
    refuse_two_adapters(train, model);
    if (!train->adapter && !model->lora.adapts)
        return SL_OK;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (cli_line_value(line, own[i]) && !train->checkpoints.resume) /* it has recorded them */
            cli_refuse("%s has adapters with options of their own, so it cannot be combined with "
                       "--%s",
                       source, own[i]);
    if (train->adapter)
        return sl_adapter_options(train->adapter, &train->model.lora);
    train->model.lora = model->lora;
    return SL_OK;
}

static bool uses_adamw(const cli_line *line, const sl_train_options *train)
{
    (void)line;
    return train->optimizer.kind == SL_OPTIMIZER_ADAMW;
}

static bool is_drawn(const cli_line *line, const sl_train_options *train)
{
    (void)line;
    return !train->init;
}

static bool has_adapters(const cli_line *line, const sl_train_options *train)
{
    (void)line;
    return train->model.lora.adapts;
}

static bool falls_without_warmup(const cli_line *line, const sl_train_options *train)
{
    return train->lr.kind >= SL_LR_LINEAR && !cli_line_value(line, "warmup");
}

/* How decoders are trained, where nothing else is asked for. Taken from the top: a condition reads
 * what rows before it have set, and of several values of an option the last that is for the run
 * stays. */
static const struct {
    const char *name;
    const char *value; /* NULL: the model has it (apply_family) */
    const char *when;  /* what the help says behind the value; NULL: nothing */
    bool (*is_for)(const cli_line *line, const sl_train_options *train); /* NULL: all runs */
} decoder_defaults[] = {
    {"dropout", NULL, "the model's", NULL},
    {"bptt", NULL, "the model's positions, at most 1024", NULL},
    {"balance", "auto", NULL, NULL}, /* the head weighs as much as several layers */
    {"shuffle", "true", NULL, NULL},
    {"epochs", "1", NULL, NULL},
    {"optimizer", "adamw", NULL, NULL},
    {"betas", "0.9,0.95", NULL, uses_adamw},
    {"weight-decay-for", "matrices", NULL, NULL},
    {"lr", "2e-5", "with --init", NULL},
    {"lr", "6e-4", "with --model", is_drawn},
    {"lr", "1e-4", "with --lora", has_adapters},
    {"lr-schedule", "cosine", NULL, NULL},
    {"warmup-ratio", "0.03", "where the rate falls to the end of the run and --warmup is not given",
     falls_without_warmup},
    {"clip", "1", NULL, NULL},
};
enum { DECODER_DEFAULTS = sizeof decoder_defaults / sizeof *decoder_defaults };

void cli_decoder_default(const char *name, char *text, size_t bytes)
{
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < DECODER_DEFAULTS && used < bytes; i++) {
        const char *value = decoder_defaults[i].value, *when = decoder_defaults[i].when;
        if (strcmp(decoder_defaults[i].name, name) == 0)
            used +=
                (size_t)snprintf(text + used, bytes - used, "%s%s%s%s", used ? ", " : "",
                                 value ? value : "", value && when ? " " : "", when ? when : "");
    }
}

static const sl_option *find_train_row(const char *name)
{
    const sl_option *row = sl_train_option_row(0);
    for (int i = 1; row && strcmp(row->name, name) != 0; i++)
        row = sl_train_option_row(i);
    assert(row); /* the table's names are options */
    return row;
}

static sl_status apply_defaults(const cli_line *line, sl_train_options *train)
{
    for (int i = 0; i < DECODER_DEFAULTS; i++) {
        const char *name = decoder_defaults[i].name, *value = decoder_defaults[i].value;
        bool is_for = !decoder_defaults[i].is_for || decoder_defaults[i].is_for(line, train);
        if (value && is_for && !cli_line_value(line, name))
            SL_TRY(sl_option_set(find_train_row(name), train, value));
    }
    return SL_OK;
}

/* Takes what a decoder has beside the rows of options. */
static sl_status apply_family(const cli_line *line, const sl_model_options *model,
                              sl_train_options *train)
{
    train->model.family = model->family;
    train->model.decoder = model->decoder;
    train->model.base_is_bf16 = model->base_is_bf16 && !train->partial;
    SL_TRY(apply_adapter(line, model, train));
    if (!cli_line_value(line, "dropout"))
        train->model.dropout = model->dropout;
    if (!cli_line_value(line, "bptt"))
        train->bptt = model->context;
    return apply_defaults(line, train);
}

/* `options`: a saved model's, or those of the name in --model. */
static sl_status apply_model(const cli_line *line, const sl_model_options *model,
                             sl_train_options *train)
{
    sl_train_options source;
    source.model = *model;
    train->model.ntokens = model->ntokens;
    for (const sl_option *row = sl_plan_option_rows; row->name; row++)
        if (row->in_model && strcmp(row->name, "dropout") != 0) /* it is no size */
            SL_TRY(apply_row(line, row, &source, train));
    return model->family == SL_FAMILY_TUTORIALS ? SL_OK : apply_family(line, model, train);
}

static bool is_directory(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

sl_status cli_saved_model_apply_sizes(const cli_line *line, sl_train_options *train)
{
    sl_model_options options;
    bool has;
    const char *name = cli_line_value(line, "model");
    if (name && train->init)
        cli_refuse("--init has a model, so it cannot be combined with --model");
    if (name) {
        SL_TRY(sl_model_options_named(name, &options));
        return apply_model(line, &options, train);
    }
    if (!train->init)
        return SL_OK;
    sl_status status =
        cli_name_checkpoints(sl_saved_model_read_options(train->init, &options, &has), train->init);
    if (status == SL_ERR_NOT_FOUND && train->checkpoints.resume)
        return SL_OK; /* the checkpoint has weights */
    SL_TRY(status);
    if (has)
        return apply_model(line, &options, train);
    return is_directory(train->init) && !train->partial && !train->checkpoints.resume
               ? sl_error(
                     SL_ERR_NOT_FOUND,
                     "%s: it has no config.json with the model's sizes: give the tensors' file "
                     "instead, and the sizes as options",
                     train->init)
               : SL_OK;
}
