/* sluice export: a model's directory in another form. */
#include "cli/cli.h"

#include <string.h>
#include <sys/stat.h>

typedef struct settings {
    sl_train_options run;
    const char *output, *gguf, *llmc;
    sl_gguf_type gguf_type;
    bool merge;
} settings;

static const char *const run_names[] = {"init", "adapter", "save-dtype", "shard-size", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "merge", .group = "Export", FIELD(FLAG, merge),
     .help = "Add what the adapter computes to the weights that it belongs to, which gives a model without one"},
    {.name = "output", .value = "DIR", .group = "Export", FIELD(TEXT, output), .letter = 'o',
     .help = "Directory to write, which is replaced whole where sluice has saved a model there"},
    {.name = "gguf", .value = "FILE", .group = "Export", FIELD(TEXT, gguf),
     .help = "Write FILE in the form of llama.cpp instead, with the tokenizer"},
    {.name = "gguf-type", .value = "TYPE", .group = "Export", FIELD(CHOICE, gguf_type),
     .choices = sl_gguf_type_names, .initial = "f16", .needs = "gguf",
     .help = "How FILE has the matrices: as f32, f16, bf16, or 8-bit multiples of an f16 (q8_0)"},
    {.name = "llmc", .value = "FILE", .group = "Export", FIELD(TEXT, llmc),
     .help = "Write a GPT-2 as FILE in the form of llm.c instead, in the type of --save-dtype"},
    CLI_DEVICES_ROW,
    {0},
};
/* clang-format on */

static void refuse_input(const char *output, const char *input)
{
    struct stat one, other;
    if (input && stat(output, &one) == 0 && stat(input, &other) == 0 &&
        one.st_dev == other.st_dev && one.st_ino == other.st_ino)
        cli_refuse("%s is an input and must not be overwritten", output);
}

/* A tokenizer that the model has and that cannot be read would be missing in a GGUF file. */
static sl_status find_vocab(const cli_saved_model *model, const sl_vocab **out)
{
    sl_status status = sl_saved_model_need_vocab(model->saved, out);
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

static sl_status write_model(const settings *parsed, cli_saved_model *model)
{
    sl_model_options plain = model->options;
    if (plain.lora.adapts && !parsed->merge)
        cli_refuse("export needs --merge for a model with an adapter: a model's directory has no "
                   "adapter beside the weights");
    if (!plain.lora.adapts && parsed->merge)
        cli_refuse("--merge needs --adapter, or a checkpoint of adapters as --init");
    const sl_model_saving saving = {parsed->run.save_type, parsed->run.checkpoints.shard_bytes,
                                    sl_saved_model_generation(model->saved)};
    if (parsed->merge)
        SL_TRY(sl_adapter_merge(model->pipe));
    plain.lora = (sl_lora_options){0};
    if (parsed->gguf) {
        const sl_vocab *vocab;
        SL_TRY(find_vocab(model, &vocab));
        return sl_model_export_gguf(model->pipe, &plain, vocab, parsed->gguf_type, parsed->gguf);
    }
    if (parsed->llmc)
        return sl_model_export_llmc(model->pipe, &plain, saving.type, parsed->llmc);
    return sl_model_save(model->pipe, &plain, sl_saved_model_vocab(model->saved), &saving,
                         parsed->output);
}

static sl_status run_export(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    static const char *const of_directory[] = {"output", "save-dtype", "shard-size"};
    cli_saved_model model;
    const char *file = parsed->gguf ? parsed->gguf : parsed->llmc,
               *kind = parsed->gguf ? "--gguf" : "--llmc", *output = file ? file : parsed->output;
    if (!parsed->run.init || !output)
        cli_refuse("export needs --init DIR and --output DIR, --gguf FILE or --llmc FILE");
    for (size_t i = 0; file && i < sizeof of_directory / sizeof *of_directory; i++) {
        bool is_used = parsed->llmc && strcmp(of_directory[i], "save-dtype") == 0;
        if (cli_line_value(line, of_directory[i]) && !is_used)
            cli_refuse("%s FILE is what is written, so it cannot be combined with --%s", kind,
                       of_directory[i]);
    }
    if (parsed->gguf && parsed->llmc)
        cli_refuse("--gguf and --llmc cannot be combined: each is a file to write");
    refuse_input(output, parsed->run.init);
    refuse_input(output, parsed->run.adapter);
    SL_TRY(sl_error_context(sl_train_check_output(&parsed->run, output),
                            "%s: ", file ? kind : "--output"));
    sl_status status;
    SL_TRY_OR_FAIL(cli_saved_model_load(&parsed->run, (cli_model_needs){0}, &model));
    SL_TRY_OR_FAIL(write_model(parsed, &model));
fail:
    cli_saved_model_clear(&model);
    return status;
}

const cli_command cmd_export = {
    .name = "export",
    .summary = "write a model's directory in another form",
    .doc =
        "Writes the model of --init as a directory of Hugging Face, in f32 or bf16, or as a GGUF "
        "file, or a GPT-2 as llm.c's; with --merge what an adapter computes is added to its "
        "weights.",
    .examples = "sluice export --init SmolLM2-135M --adapter adapter --merge -o merged\n"
                "sluice export --init merged --gguf merged.gguf --gguf-type q8_0\n"
                "sluice export --init gpt2 --llmc gpt2_124M.bin\n",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .run_names = run_names,
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_export,
};
