/* sluice eval: the loss of saved weights on a split. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/logits.h"
#include "cli/run_files.h"
#include "cli/saved_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    KEY_INIT = 0x100,
    KEY_DATA,
    KEY_SPLIT,
    KEY_EVAL_BATCH_SIZE,
    KEY_BPTT,
    KEY_EVAL_MAX_BATCHES,
    KEY_LOGITS,
    KEY_DEVICES
};

typedef struct settings {
    const char *init, *data, *devices, *logits;
    sl_split split;
    int64_t batch_size, bptt, max_batches;
} settings;

static const struct argp_option options[] = {
    {"init", KEY_INIT, "FILE", 0,
     "Weights: a safetensors file, the index of several, or a checkpoint's directory; the "
     "vocabulary beside them",
     1},
    {"data", KEY_DATA, "DIR", 0, "Directory of text", 1},
    {"split", KEY_SPLIT, "NAME", 0, "train, valid or test (default)", 1},
    {"eval-batch-size", KEY_EVAL_BATCH_SIZE, "N", 0, "Columns of a batch (default 10)", 1},
    {"bptt", KEY_BPTT, "T", 0, "Tokens of each column in a block (default 35)", 1},
    {"eval-max-batches", KEY_EVAL_MAX_BATCHES, "N", 0, "Batches at most; 0: all (default)", 1},
    {"logits", KEY_LOGITS, "FILE", 0,
     "Write to FILE (safetensors) the first batch's inputs and targets, ids [N, T], and its logits "
     "[N, T, V]",
     1},
    {"devices", KEY_DEVICES, "LIST", 0, "One device a stage (default cpu:0: all cores)", 1},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    static const char *const splits[] = {"train", "valid", "test", NULL};
    settings *to = state->input;
    switch (key) {
    case KEY_INIT:
        to->init = cli_parse_path("init", text);
        return 0;
    case KEY_DATA:
        to->data = cli_parse_path("data", text);
        return 0;
    case KEY_SPLIT:
        to->split = (sl_split)cli_parse_choice("split", text, splits);
        return 0;
    case KEY_EVAL_BATCH_SIZE:
        to->batch_size = cli_parse_integer("eval-batch-size", text, 1, INT64_MAX);
        return 0;
    case KEY_BPTT:
        to->bptt = cli_parse_integer("bptt", text, 1, 5000);
        return 0;
    case KEY_EVAL_MAX_BATCHES:
        to->max_batches = cli_parse_integer("eval-max-batches", text, 0, INT64_MAX);
        return 0;
    case KEY_LOGITS:
        to->logits = cli_parse_path("logits", text);
        return 0;
    case KEY_DEVICES:
        to->devices = text;
        return 0;
    case ARGP_KEY_ARG:
        cli_refuse("eval takes options only", text);
    case ARGP_KEY_END:
        if (!to->init || !to->data)
            cli_refuse("eval needs --init FILE and --data DIR", NULL);
        return 0;
    case ARGP_KEY_ERROR:
        cli_end_at_option(state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* What is too short is refused here, where the file's name is known. */
static sl_status read_split(const settings *from, const sl_vocab *vocab, sl_tokens *out,
                            sl_batches *cut)
{
    char *path;
    SL_TRY(sl_split_path(from->data, from->split, &path));
    sl_status status = sl_tokens_read(vocab, path, out);
    if (status == SL_OK) {
        status = sl_batchify(out->ids, out->count, from->batch_size, from->bptt, cut);
        if (status != SL_OK) {
            sl_tokens_free(out);
            sl_error_context(status, "%s: ", path);
        }
    }
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

int cmd_eval(int argc, char **argv)
{
    static const struct argp parser = {
        .options = options,
        .parser = parse_option,
        .doc = "Evaluates saved weights: the mean loss per token of a split, and its perplexity.",
    };
    settings parsed = {.split = SL_SPLIT_TEST, .batch_size = 10, .bptt = 35};
    cli_saved_model saved = {0};
    cli_parse(&parser, argc, argv, &parsed);
    sl_status status =
        parsed.logits ? cli_check_logits_file(parsed.logits, parsed.init, parsed.data) : SL_OK;
    if (status == SL_OK)
        status = cli_saved_model_load(parsed.init, parsed.devices, &saved);
    if (status == SL_OK)
        status = evaluate(&parsed, &saved);
    cli_saved_model_clear(&saved);
    return cli_finish(status);
}
