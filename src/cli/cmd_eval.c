/* sluice eval: the loss of saved weights on a split. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/logits.h"
#include "cli/run_files.h"
#include "cli/saved_model.h"
#include "cli/warnings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct settings {
    const char *init, *data, *devices, *logits;
    sl_split split;
    int64_t batch_size, bptt, max_batches;
} settings;

static const char *const splits[] = {"train", "valid", "test", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "init", .value = "FILE", .type = SL_OPTION_TEXT, .offset = offsetof(settings, init),
     .help = "Weights: a safetensors file, the index of several, or a checkpoint's directory; the "
             "vocabulary beside them"},
    {.name = "data", .value = "DIR", .type = SL_OPTION_TEXT, .offset = offsetof(settings, data),
     .help = "Directory of text"},
    {.name = "split", .value = "NAME", .type = SL_OPTION_CHOICE,
     .offset = offsetof(settings, split), .choices = splits,
     .help = "train, valid or test"},
    {.name = "eval-batch-size", .value = "N", .type = SL_OPTION_INT64,
     .offset = offsetof(settings, batch_size), .lowest = 1,
     .help = "Columns of a batch"},
    {.name = "bptt", .value = "T", .type = SL_OPTION_INT64, .offset = offsetof(settings, bptt),
     .lowest = 1, .highest = 5000,
     .help = "Tokens of each column in a block"},
    {.name = "eval-max-batches", .value = "N", .type = SL_OPTION_INT64,
     .offset = offsetof(settings, max_batches),
     .help = "Batches at most; 0: all"},
    {.name = "logits", .value = "FILE", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, logits),
     .help = "Write to FILE (safetensors) the first batch's inputs and targets, ids [N, T], and "
             "its logits [N, T, V]"},
    {.name = "devices", .value = "LIST", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, devices),
     .help = "One device a stage; without it cpu:0, all cores"},
    {0},
};
/* clang-format on */

static void set_defaults(void *to)
{
    *(settings *)to = (settings){.split = SL_SPLIT_TEST, .batch_size = 10, .bptt = 35};
}

/* What is too short is refused here, where the file's name is known. */
static sl_status read_split(const settings *from, const sl_vocab *vocab, sl_tokens *out,
                            sl_batches *cut)
{
    char *path, *vocabulary = NULL;
    SL_TRY(sl_split_path(from->data, from->split, &path));
    sl_status status = sl_tokens_read(vocab, path, out);
    if (status == SL_OK && sl_weights_vocab_path(from->init, &vocabulary) == SL_OK)
        cli_warn_unknown_text(out, path, vocabulary);
    if (status == SL_OK) {
        status = sl_batchify(out->ids, out->count, from->batch_size, from->bptt, cut);
        if (status != SL_OK) {
            sl_tokens_free(out);
            sl_error_context(status, "%s: ", path);
        }
    }
    free(vocabulary);
    free(path);
    return status;
}

static sl_status evaluate(const settings *from, const cli_saved_model *saved)
{
    char loss[CLI_NUMBER_BYTES], perplexity[CLI_NUMBER_BYTES];
    sl_tokens tokens;
    sl_batches batches;
    sl_evaluation result;
    SL_TRY(read_split(from, saved->vocab, &tokens, &batches));
    sl_status status = SL_OK;
    if (from->logits)
        status = cli_logits_write(from->logits, saved->pipe, &batches);
    if (status == SL_OK)
        status = sl_evaluate_tokens(saved->pipe, &tokens,
                                    &(sl_evaluate_options){.batch_size = from->batch_size,
                                                           .bptt = from->bptt,
                                                           .max_batches = from->max_batches},
                                    &result);
    sl_tokens_free(&tokens);
    if (status == SL_OK)
        printf("%s loss %s | %s ppl %s | %" PRId64 " tokens\n", sl_split_name(from->split),
               cli_real_text(result.loss, 4, loss), sl_split_name(from->split),
               cli_real_text(result.perplexity, 2, perplexity), result.tokens);
    return status;
}

static int run(cli_command_line *line)
{
    settings parsed;
    cli_saved_model saved = {0};
    cli_set(line, &parsed);
    if (!parsed.init || !parsed.data)
        cli_refuse("eval needs --init FILE and --data DIR", NULL);
    sl_status status =
        parsed.logits ? cli_check_logits_file(parsed.logits, parsed.init, parsed.data) : SL_OK;
    if (status == SL_OK)
        status = cli_saved_model_load(parsed.init, parsed.devices, &saved);
    if (status == SL_OK)
        status = evaluate(&parsed, &saved);
    cli_saved_model_clear(&saved);
    return cli_finish(status);
}

const cli_command cmd_eval = {
    .name = "eval",
    .summary = "the loss and perplexity of saved weights",
    .doc = "Evaluates saved weights: the mean loss per token of a split, and its perplexity.",
    .tables = {{options, 0}},
    .settings_bytes = sizeof(settings),
    .set_defaults = set_defaults,
    .run = run,
};
