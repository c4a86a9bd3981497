/* sluice export: a model's directory in another form. */
#include "cli/cli.h"

#include <sys/stat.h>

typedef struct settings {
    sl_train_options run;
    const char *output;
    bool merge;
} settings;

static const char *const run_names[] = {"init", "adapter", "save-dtype", "shard-size", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "merge", .group = "Export", FIELD(FLAG, merge), .needs = "adapter",
     .help = "Add what the adapter computes to the weights that it belongs to, which gives a model without one"},
    {.name = "output", .value = "DIR", .group = "Export", FIELD(TEXT, output), .letter = 'o',
     .help = "Directory to write, which is replaced whole where sluice has saved a model there"},
    CLI_DEVICES_ROW,
    {0},
};
/* clang-format on */

static void refuse_input(const char *output, const char *input)
{
    struct stat one, other;
    if (input && stat(output, &one) == 0 && stat(input, &other) == 0 &&
        one.st_dev == other.st_dev && one.st_ino == other.st_ino)
        cli_refuse("--output: %s is an input and must not be overwritten", output);
}

static sl_status write_model(const settings *parsed, cli_saved_model *model)
{
    sl_model_options plain = model->options;
    const sl_model_saving saving = {parsed->run.save_type, parsed->run.checkpoints.shard_bytes};
    if (parsed->merge)
        SL_TRY(sl_adapter_merge(model->pipe));
    plain.lora = (sl_lora_options){0};
    return sl_model_save(model->pipe, &plain, sl_saved_model_vocab(model->saved), &saving,
                         parsed->output);
}

static sl_status run_export(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    cli_saved_model model;
    (void)line;
    if (!parsed->run.init || !parsed->output)
        cli_refuse("export needs --init DIR and --output DIR");
    if (parsed->run.adapter && !parsed->merge)
        cli_refuse("--adapter of export needs --merge: a model's directory has no adapter beside "
                   "the weights");
    refuse_input(parsed->output, parsed->run.init);
    refuse_input(parsed->output, parsed->run.adapter);
    SL_TRY(sl_error_context(sl_train_check_output(&parsed->run, parsed->output), "--output: "));
    sl_status status = cli_saved_model_load(&parsed->run, false, &model);
    if (status == SL_OK)
        status = write_model(parsed, &model);
    cli_saved_model_clear(&model);
    return status;
}

const cli_command cmd_export = {
    .name = "export",
    .summary = "write a model's directory in another form",
    .doc =
        "Writes the model of --init as a directory of Hugging Face, in f32 or bf16; with --merge "
        "those of an adapter are added to its weights.",
    .examples = "sluice export --init SmolLM2-135M --adapter adapter --merge -o merged\n",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .run_names = run_names,
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_export,
};
