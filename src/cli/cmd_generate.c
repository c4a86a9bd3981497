/* sluice generate: text from a saved model, or ids of tokens. */
#include "cli/cli.h"
#include "cli/prompts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct settings {
    sl_train_options run;
    const char *prompt, *prompt_ids, *prompts, *chat;
    bool greedy, json;
    int64_t tokens, batch_size;
    sl_generate_options generation;
} settings;

static const char *const run_names[] = {"init",      "adapter",         "tokenizer", "splitter",
                                        "precision", "batch-invariant", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "prompt", .value = "TEXT", .group = "Text", FIELD(TEXT, prompt), .initial = "the",
     .help = "The text's beginning"},
    {.name = "prompt-ids", .value = "LIST", .group = "Text", FIELD(TEXT, prompt_ids),
     .help = "Begin with these ids of tokens, such as 504,1463, and print ids; the model needs no "
             "tokenizer"},
    {.name = "prompts", .value = "FILE", .group = "Text", FIELD(TEXT, prompts),
     .help = "Write a text for each line of FILE that is not blank, several at once: the line is its "
             "beginning, or, where FILE ends with .jsonl, the JSON line has it as \"prompt\", or a "
             "conversation as \"messages\""},
    {.name = "batch-size", .value = "N", .group = "Text", FIELD(INT64, batch_size), RANGE(1, 65536),
     .initial = "8", .needs = "prompts", .help = "Number of texts that are written at once"},
    {.name = "json", .group = "Text", FIELD(FLAG, json), .needs = "prompts",
     .help = "Print a JSON line for each text: the prompt's line with what was added as \"text\""},
    {.name = "chat", .value = "TEXT", .group = "Text", FIELD(TEXT, chat),
     .help = "Say TEXT to a model that has conversations (ChatML, Llama 3), and print its answer; -: "
             "say each line of standard input, in one conversation"},
    {.name = "tokens", .value = "N", .group = "Text", FIELD(INT64, tokens), RANGE(1, 1000000),
     .initial = "50",
     .help = "Number of tokens to add, at most: the text ends at the tokenizer's end of text"},
    {.name = "greedy", .group = "Text", FIELD(FLAG, greedy),
     .help = "Always take the most probable token"},
    {.name = "temperature", .value = "X", .group = "Text", FIELD(DOUBLE, generation.temperature),
     .initial = "1",
     .help = "Divide the logits by X: below 1 probable tokens get more probable, above 1 less"},
    {.name = "top-k", .value = "K", .group = "Text", FIELD(INT, generation.top_k),
     .help = "Draw from the K most probable tokens; 0: from all"},
    {.name = "top-p", .value = "X", .group = "Text", FIELD(DOUBLE, generation.top_p), .highest = 1,
     .help = "Of these, draw from the most probable ones that have X of the probability together; 0: "
             "from all"},
    {.name = "min-p", .value = "X", .group = "Text", FIELD(DOUBLE, generation.min_p), .highest = 1,
     .help = "Of these, draw from those that are at least X times as probable as the best; 0: from "
             "all"},
    {.name = "repetition-penalty", .value = "X", .group = "Text",
     FIELD(DOUBLE, generation.repetition_penalty), .initial = "1",
     .help = "Divide positive logits of tokens that the text has by X, and multiply negative ones"},
    {.name = "seed", .value = "S", .group = "Text", FIELD(SEED, generation.seed), .initial = "1",
     .help = "Seed of the random draws"},
    {.name = "context", .value = "N", .group = "Text", FIELD(INT64, generation.context),
     RANGE(1, SL_MAX_CONTEXT), .optional = true,
     .help = "Number of preceding tokens that the model sees, at most the model's positions; by default "
             "as many as in a row of its training"},
    CLI_DEVICES_ROW,
    {0},
};
/* clang-format on */

/* Those of --prompt-ids. */
static sl_status read_prompt_ids(const char *list, int64_t ntokens, sl_tokens *out)
{
    const char *text = list;
    char *end;
    *out = (sl_tokens){.ids = cli_allocate(strlen(text) / 2 + 1, sizeof *out->ids)};
    for (;; text = end + 1) {
        errno = 0;
        long long id = strtoll(text, &end, 10);
        if (*text < '0' || *text > '9' || (*end != ',' && *end != '\0'))
            return sl_error(SL_ERR_INVALID,
                            "--prompt-ids must be ids separated by commas, such as 504,1463, got "
                            "\"%s\"",
                            list);
        if (errno != 0 || id >= ntokens)
            return sl_error(SL_ERR_INVALID,
                            "--prompt-ids: id %.*s, number %" PRId64
                            " of the list, is not in 0 .. %" PRId64 ", the model's vocabulary",
                            (int)(end - text), text, out->count + 1, ntokens - 1);
        out->ids[out->count++] = (int32_t)id;
        if (*end == '\0')
            return SL_OK;
    }
}

/* ---- Texts ------------------------------------------------------------------------------ */

static sl_status print_token(void *context, int64_t text, int32_t id)
{
    (void)text;
    return cli_made_text_add(context, id);
}

/* Prints the text, with its prompt if it is `shown`, as it is made. */
static sl_status continue_text(const settings *parsed, const cli_saved_model *model,
                               const sl_tokens *prompt, bool shown, cli_made_text *text)
{
    sl_generate_options generation = parsed->generation;
    int64_t length = prompt->count;
    int32_t *ids = cli_allocate((size_t)(length + parsed->tokens), sizeof *ids);
    memcpy(ids, prompt->ids, (size_t)length * sizeof *ids);
    *text = (cli_made_text){.vocab = parsed->prompt_ids ? NULL : model->vocab};
    sl_status status = SL_OK;
    if (model->prints && length > generation.context)
        cli_complain("warning: the prompt has %" PRId64 " tokens, of which the model sees the last "
                     "%" PRId64 " (--context)",
                     length, generation.context);
    for (int64_t i = 0; model->prints && shown && i < length && status == SL_OK; i++)
        status = cli_made_text_add(text, ids[i]);
    if (model->prints) {
        generation.added = print_token;
        generation.context_of_added = text;
    }
    status = sl_pipe_abort(model->pipe, status);
    if (status == SL_OK)
        status = sl_generate(model->pipe, &generation, ids, &length, parsed->tokens);
    if (model->prints && status == SL_OK)
        status = cli_made_text_end(text);
    else if (model->prints)
        (void)putchar('\n');
    free(ids);
    return status;
}

static sl_status continue_prompt(const settings *parsed, const cli_saved_model *model,
                                 const char *prompt)
{
    sl_tokens tokens = {0};
    cli_made_text text = {NULL};
    sl_status status;
    SL_TRY_OR_FAIL(parsed->prompt_ids
                       ? read_prompt_ids(parsed->prompt_ids, model->options.ntokens, &tokens)
                       : cli_prompt_encode(model, prompt, &tokens));
    SL_TRY_OR_FAIL(continue_text(parsed, model, &tokens, true, &text));
fail:
    cli_made_text_clear(&text);
    sl_tokens_free(&tokens);
    return status;
}

static sl_status continue_prompts(const settings *parsed, const cli_saved_model *model)
{
    sl_generate_options generation = parsed->generation;
    generation.rows = parsed->batch_size;
    return cli_prompts_run(&(cli_prompts_options){.path = parsed->prompts,
                                                  .json = parsed->json,
                                                  .tokens = parsed->tokens,
                                                  .generation = &generation},
                           model);
}

/* ---- Conversations ---------------------------------------------------------------------- */

typedef struct conversation {
    sl_message *messages; /* whose contents are owned */
    size_t count, room;
} conversation;

static void add_message(conversation *talk, const char *role, const char *content)
{
    if (talk->count == talk->room) {
        sl_message *grown = cli_allocate(2 * talk->room + 2, sizeof *grown);
        if (talk->count > 0)
            memcpy(grown, talk->messages, talk->count * sizeof *grown);
        free(talk->messages);
        talk->messages = grown;
        talk->room = 2 * talk->room + 2;
    }
    size_t bytes = strlen(content) + 1;
    char *copy = cli_allocate(bytes, 1);
    memcpy(copy, content, bytes);
    talk->messages[talk->count++] = (sl_message){role, copy};
}

static void end_conversation(conversation *talk)
{
    for (size_t i = 0; i < talk->count; i++)
        free((char *)talk->messages[i].content);
    free(talk->messages);
}

/* Says a text, and prints the answer, which becomes part of the conversation. */
static sl_status say(const settings *parsed, const cli_saved_model *model, const char *said,
                     conversation *talk)
{
    sl_tokens tokens;
    cli_made_text answer = {NULL};
    add_message(talk, "user", said);
    SL_TRY(sl_chat_encode(model->vocab, talk->messages, talk->count, &tokens));
    sl_status status = continue_text(parsed, model, &tokens, false, &answer);
    add_message(talk, "assistant", answer.text ? answer.text : "");
    cli_made_text_clear(&answer);
    sl_tokens_free(&tokens);
    return status;
}

/* A line of standard input is what the user says. */
static sl_status talk_by_lines(const settings *parsed, const cli_saved_model *model,
                               conversation *talk)
{
    cli_lines lines = {.from = stdin, .name = "standard input"};
    const char *line;
    sl_status status;
    const sl_group *group = sl_pipe_group(model->pipe);
    if (group && sl_group_size(group) > 1)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "--chat - reads the standard input of one process, but there are %d",
                        sl_group_size(group));
    for (;;) {
        if (isatty(STDIN_FILENO))
            fputs("> ", stderr);
        SL_TRY_OR_FAIL(cli_lines_next(&lines, &line));
        if (!line)
            break;
        SL_TRY_OR_FAIL(say(parsed, model, line, talk));
    }
fail:
    cli_lines_clear(&lines);
    return status;
}

static sl_status chat(const settings *parsed, const cli_saved_model *model)
{
    conversation talk = {NULL};
    sl_status status = strcmp(parsed->chat, "-") == 0 ? talk_by_lines(parsed, model, &talk)
                                                      : say(parsed, model, parsed->chat, &talk);
    end_conversation(&talk);
    return status;
}

/* ---- The command ------------------------------------------------------------------------ */

static void refuse_combinations(const settings *parsed, const cli_line *line)
{
    static const char *const drawing[] = {"temperature", "top-k", "top-p", "min-p", "seed"},
                             *const beginnings[] = {"chat", "prompt-ids", "prompts", "prompt"};
    for (size_t i = 0; parsed->greedy && i < sizeof drawing / sizeof *drawing; i++)
        if (cli_line_value(line, drawing[i]))
            cli_refuse("--greedy draws no random numbers, so it cannot be combined with --%s",
                       drawing[i]);
    const char *given = NULL;
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        if (!cli_line_value(line, beginnings[i]))
            continue;
        if (given)
            cli_refuse("--%s is a prompt, so it cannot be combined with --%s", given,
                       beginnings[i]);
        given = beginnings[i];
    }
}

static sl_status run_generate(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    cli_saved_model model;
    if (!parsed->run.init)
        cli_refuse("generate needs --init DIR");
    refuse_combinations(parsed, line);
    if (parsed->greedy)
        parsed->generation.temperature = 0;
    const cli_model_needs needed = {.tokenizer = !parsed->prompt_ids,
                                    .overlapping = parsed->prompts != NULL,
                                    .line = line,
                                    .context = "context",
                                    .given = parsed->generation.context};
    sl_status status;
    SL_TRY_OR_FAIL(cli_saved_model_load(&parsed->run, needed, &model));
    const sl_vocab *vocab = model.vocab ? model.vocab : sl_saved_model_vocab(model.saved);
    bool has_words =
        vocab ? sl_vocab_has_words(vocab) : model.options.family == SL_FAMILY_TUTORIALS;
    parsed->generation.never = has_words ? SL_VOCAB_UNKNOWN : -1;
    parsed->generation.end = vocab ? sl_vocab_end(vocab) : -1;
    parsed->generation.stops = parsed->generation.end >= 0;
    parsed->generation.context = cli_context(line, "context", parsed->generation.context, &model);
    SL_TRY_OR_FAIL(parsed->chat      ? chat(parsed, &model)
                   : parsed->prompts ? continue_prompts(parsed, &model)
                                     : continue_prompt(parsed, &model, parsed->prompt));
fail:
    cli_saved_model_clear(&model);
    return status;
}

const cli_command cmd_generate = {
    .name = "generate",
    .summary = "write text with a saved model",
    .doc = "Writes text with a saved model. The same seed gives the same text.",
    .examples =
        "sluice generate --init book --prompt \"it was\" --top-k 20\n"
        "sluice generate --init SmolLM2-135M-Instruct --chat \"Write a haiku.\" --tokens 60\n",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .run_names = run_names,
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_generate,
};
