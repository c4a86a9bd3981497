/* sluice eval: the loss of a saved model on a split, and the logits of its first batch. */
#include "cli/cli.h"
#include "sluice/app/inference.h"
#include "sluice/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    sl_train_options run;
    const char *logits, *task;
    sl_split split;
    bool json;
} settings;

static const char *const run_names[] = {
    "init",       "adapter",         "data", "tokenizer",        "splitter",  "mask-prompt",
    "token-type", "eval-batch-size", "bptt", "eval-max-batches", "precision", "batch-invariant",
    NULL,
};

static const char *const splits[] = {"train", "valid", "test", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "split", .value = "NAME", .group = "Evaluation", FIELD(CHOICE, split),
     .choices = splits, .initial = "test",
     .help = "Text to evaluate"},
    {.name = "task", .value = "FILE", .group = "Evaluation", FIELD(TEXT, task),
     .help = "Ask questions of multiple choice instead of --data: lines {\"context\", \"endings\", "
             "\"label\"}, or an evaluation of llm.c (.bin)"},
    {.name = "logits", .value = "FILE", .group = "Evaluation", FIELD(TEXT, logits),
     .help = "Write the first batch to FILE (safetensors): inputs and targets, ids [N, T], and "
             "logits [N, T, V]"},
    {.name = "json", .group = "Evaluation", FIELD(FLAG, json),
     .help = "Print the result as one JSON object: split, loss, with all its digits, perplexity "
             "and targets, the number of tokens that were scored; of a task acc, acc_norm and "
             "questions"},
    CLI_DEVICES_ROW,
    {0},
};
/* clang-format on */

/* ---- Logits ------------------------------------------------------------------------------- */

/* Writes the first batch: `inputs` and `targets`, I64 [N, T], and `logits`, F32 [N, T, V]. */
static sl_status write_logits(const char *path, const cli_saved_model *model,
                              const sl_batches *batches)
{
    int64_t rows = batches->columns, length = sl_batches_block_length(batches, 0), ntokens;
    int64_t count = rows * length;
    sl_shape shape = sl_shape_2d(rows, length);
    int32_t *ids = cli_allocate((size_t)count, 2 * sizeof *ids); /* inputs, then targets */
    int64_t *wide = cli_allocate((size_t)count, 2 * sizeof *wide);
    float *values = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(sl_batches_block(batches, 0, ids, ids + count));
    SL_TRY_OR_FAIL(sl_compute_logits(model->pipe, ids, rows, length, &values, &ntokens));
    if (!model->prints)
        goto fail;
    for (int64_t i = 0; i < 2 * count; i++)
        wide[i] = ids[i];
    const sl_safetensors_item items[] = {{"inputs", SL_I64, shape, wide},
                                         {"targets", SL_I64, shape, wide + count},
                                         {"logits", SL_F32, sl_shape_3d(rows, length, ntokens),
                                          values}};
    status = sl_safetensors_save(path, items, sizeof items / sizeof *items, NULL, 0);
fail:
    free(values);
    free(wide);
    free(ids);
    return status;
}

/* ---- Evaluation --------------------------------------------------------------------------- */

/* Releases it. */
static sl_status print_object(json_t *json)
{
    char *text = json ? json_dumps(json, JSON_REAL_PRECISION(17)) : NULL;
    json_decref(json);
    if (!text)
        return sl_error(SL_ERR_MEMORY, "no memory for the result");
    puts(text);
    free(text);
    return SL_OK;
}

/* A loss or perplexity that is no finite number becomes null. */
static sl_status print_json(const char *split, const sl_evaluation *result)
{
    json_t *json =
        json_pack("{ss so? so? sI}", "split", split, "loss", json_real(result->loss), "perplexity",
                  json_real(result->perplexity), "targets", (json_int_t)result->tokens);
    return print_object(json);
}

static sl_status print_result(const settings *parsed, const sl_evaluation *result)
{
    const char *split = sl_split_name(parsed->split);
    if (parsed->json)
        return print_json(split, result);
    printf("%s loss %s | %s ppl %s | %" PRId64 " tokens\n", split,
           cli_real_text(result->loss, 4).text, split, cli_real_text(result->perplexity, 2).text,
           result->tokens);
    return SL_OK;
}

/* `path` is the split's, to name it in errors: a text may be too short. */
static sl_status evaluate_text(const settings *parsed, const cli_saved_model *model,
                               const char *path, const sl_tokens *tokens)
{
    const sl_train_options *run = &parsed->run;
    sl_batches batches;
    sl_evaluation result;
    if (model->prints)
        cli_warn_of_text(&(sl_text_info){.path = path,
                                         .tokens = tokens->count,
                                         .unknown = tokens->unknown_count,
                                         .invalid_bytes = tokens->invalid_bytes},
                         run->init, NULL);
    SL_TRY(sl_error_context(sl_batchify(tokens->ids, tokens->count, run->eval_batch_size, run->bptt,
                                        &batches),
                            "%s: ", path));
    if (parsed->logits)
        SL_TRY(write_logits(parsed->logits, model, &batches));
    SL_TRY(sl_evaluate_tokens(model->pipe, tokens,
                              &(sl_evaluate_options){.batch_size = run->eval_batch_size,
                                                     .bptt = run->bptt,
                                                     .max_batches = run->eval_max_batches},
                              &result));
    return model->prints ? print_result(parsed, &result) : SL_OK;
}

/* `path`: a file of rows of ids. */
static sl_status evaluate_rows(const settings *parsed, const cli_saved_model *model,
                               const char *path)
{
    const sl_train_options *run = &parsed->run;
    sl_rows *rows;
    sl_evaluation result;
    const sl_rows_options reading = {.ntokens = model->options.ntokens,
                                     .positions = sl_model_positions(&model->options),
                                     .vocab = model->vocab,
                                     .length = run->bptt,
                                     .token_type = run->token_type,
                                     .no_mask_prompt = !run->mask_prompt};
    SL_TRY(sl_rows_read(path, &reading, &rows));
    sl_status status =
        sl_evaluate_rows(model->pipe, rows,
                         &(sl_evaluate_options){.batch_size = run->eval_batch_size,
                                                .max_batches = run->eval_max_batches},
                         &result);
    sl_rows_destroy(&rows);
    SL_TRY(status);
    return model->prints ? print_result(parsed, &result) : SL_OK;
}

/* ---- Multiple choice ---------------------------------------------------------------------- */

static sl_status print_choices(const settings *parsed, const sl_choices *found)
{
    double count = (double)found->questions;
    double acc = (double)found->right / count, acc_norm = (double)found->right_by_mean / count;
    if (!parsed->json) {
        printf("acc %s | acc_norm %s | %" PRId64 " questions\n", cli_real_text(acc, 4).text,
               cli_real_text(acc_norm, 4).text, found->questions);
        return SL_OK;
    }
    json_t *json = json_pack("{sf sf sI}", "acc", acc, "acc_norm", acc_norm, "questions",
                             (json_int_t)found->questions);
    return print_object(json);
}

/* What belongs to --data would do nothing. */
static void refuse_options_of_data(const cli_line *line)
{
    static const char *const of_data[] = {"data",        "logits",          "split",
                                          "bptt",        "eval-batch-size", "eval-max-batches",
                                          "mask-prompt", "token-type"};
    for (size_t i = 0; i < sizeof of_data / sizeof *of_data; i++)
        if (cli_line_value(line, of_data[i]))
            cli_refuse("--task is what is evaluated, so it cannot be combined with --%s",
                       of_data[i]);
}

/* A task with text may lack a tokenizer because the model's is not read: adds why. */
static sl_status name_missing_vocab(sl_status status, const cli_saved_model *model)
{
    char text[1024];
    const sl_vocab *vocab;
    if (status != SL_ERR_NOT_FOUND || model->vocab)
        return status;
    snprintf(text, sizeof text, "%s", sl_error_text());
    (void)sl_saved_model_need_vocab(model->saved, &vocab);
    return sl_error(status, "%s: %s", text, sl_error_text());
}

static sl_status answer(const settings *parsed, const cli_saved_model *model)
{
    sl_choices found;
    const sl_choices_options asking = {.ntokens = model->options.ntokens,
                                       .positions = sl_model_positions(&model->options),
                                       .vocab = model->vocab};
    SL_TRY(
        name_missing_vocab(sl_evaluate_choices(model->pipe, parsed->task, &asking, &found), model));
    return model->prints ? print_choices(parsed, &found) : SL_OK;
}

/* ---- The command -------------------------------------------------------------------------- */

/* Where `data` has rows, *path is the file of the split. */
static sl_status find_rows(const char *data, sl_split split, char **path)
{
    char *others;
    SL_TRY(sl_rows_path(data, split, path));
    SL_TRY(sl_rows_path(data, SL_SPLIT_TRAIN, &others));
    bool is_missing = others && !*path;
    free(others);
    return is_missing ? sl_error(SL_ERR_NOT_FOUND, "%s: it has rows, but no %s.jsonl", data,
                                 sl_split_name(split))
                      : SL_OK;
}

static sl_status find_data(cli_line *line, const settings *parsed, char **rows,
                           cli_model_needs *needs)
{
    const sl_train_options *run = &parsed->run;
    if (sl_is_source(run->data))
        cli_refuse("--data: eval takes one source, DIR or FILE, got %s", run->data);
    SL_TRY(find_rows(run->data, parsed->split, rows));
    if (*rows && parsed->logits)
        cli_refuse("--logits writes those of a text, and %s has rows of ids", *rows);
    if (parsed->logits)
        SL_TRY(sl_error_context(sl_train_check_output(run, parsed->logits), "--logits: "));
    bool any_length = !*rows || cli_name_ends_with(*rows, ".bin"); /* as a text's rows have it */
    *needs = (cli_model_needs){.tokenizer = !*rows,
                               .line = line,
                               .context = any_length ? "bptt" : NULL,
                               .given = run->bptt};
    return SL_OK;
}

static sl_status evaluate_split(const settings *parsed, const cli_saved_model *model)
{
    sl_tokens tokens = {0};
    char *path;
    sl_status status;
    SL_TRY(sl_split_path(parsed->run.data, parsed->split, &path));
    SL_TRY_OR_FAIL(sl_split_read(model->vocab, parsed->run.data, parsed->split, &tokens));
    SL_TRY_OR_FAIL(evaluate_text(parsed, model, path, &tokens));
fail:
    sl_tokens_free(&tokens);
    free(path);
    return status;
}

static sl_status run_eval(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    cli_saved_model model = {0};
    cli_model_needs needs = {0};
    char *rows = NULL;
    sl_status status;
    if (!parsed->run.init || (!parsed->run.data && !parsed->task))
        cli_refuse("eval needs --init DIR, and --data DIR|FILE or --task FILE");
    if (parsed->task)
        refuse_options_of_data(line);
    else
        SL_TRY_OR_FAIL(find_data(line, parsed, &rows, &needs));
    SL_TRY_OR_FAIL(cli_saved_model_load(&parsed->run, needs, &model));
    if (needs.context)
        parsed->run.bptt = cli_context(line, "bptt", parsed->run.bptt, &model);
    SL_TRY_OR_FAIL(parsed->task ? answer(parsed, &model)
                   : rows       ? evaluate_rows(parsed, &model, rows)
                                : evaluate_split(parsed, &model));
fail:
    cli_saved_model_clear(&model);
    free(rows);
    return status;
}

const cli_command cmd_eval = {
    .name = "eval",
    .summary = "evaluate a saved model on a text",
    .doc = "Prints the mean loss per token of a saved model on a text, and its perplexity; or the "
           "shares of questions of multiple choice that it answers right.",
    .examples = "sluice eval --init book --data book.txt --split valid\n"
                "sluice eval --init SmolLM2-135M --task hellaswag_val.jsonl\n",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .run_names = run_names,
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_eval,
};
