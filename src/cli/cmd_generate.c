/* sluice generate: text from a saved model, or ids of tokens. */
#include "cli/cli.h"
#include "sluice/app/inference.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct settings {
    sl_train_options run;
    const char *prompt, *prompt_ids, *prompt_file, *chat;
    bool greedy;
    int64_t tokens;
    sl_generate_options generation;
} settings;

static const char *const run_names[] = {"init",     "adapter",   "tokenizer",
                                        "splitter", "precision", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "prompt", .value = "TEXT", .group = "Text", FIELD(TEXT, prompt), .initial = "the",
     .help = "The text's beginning"},
    {.name = "prompt-ids", .value = "LIST", .group = "Text", FIELD(TEXT, prompt_ids),
     .help = "Begin with these ids of tokens, such as 504,1463, and print ids; the model needs no "
             "tokenizer"},
    {.name = "prompt-file", .value = "FILE", .group = "Text", FIELD(TEXT, prompt_file),
     .help = "Write a text for each line of FILE that is not empty, which is its beginning"},
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
     RANGE(1, SL_MAX_POSITIONS), .optional = true,
     .help = "Number of preceding tokens that the model sees; by default as many as in a row of its "
             "training"},
    CLI_DEVICES_ROW,
    {0},
};
/* clang-format on */

/* Adds `token` in quotes to the list `words`, where it fits. */
static void add_word(char *words, size_t bytes, sl_token token)
{
    size_t used = strlen(words);
    if (used + token.bytes + sizeof ", \"\"" < bytes)
        snprintf(words + used, bytes - used, "%s\"%.*s\"", used ? ", " : "", (int)token.bytes,
                 token.text);
}

/* A prompt may ask for <unk> by its name. */
static sl_status warn_unknown_words(const sl_vocab *vocab, const char *prompt)
{
    const sl_token unknown = sl_vocab_token(vocab, SL_VOCAB_UNKNOWN);
    sl_tokenizer *tokenizer;
    sl_token token;
    char words[512] = "";
    SL_TRY(sl_tokenizer_create(&tokenizer));
    sl_status status = sl_tokenizer_start(tokenizer, prompt, strlen(prompt));
    while (status == SL_OK && sl_tokenizer_next(tokenizer, &token)) {
        bool is_name =
            token.bytes == unknown.bytes && memcmp(token.text, unknown.text, unknown.bytes) == 0;
        if (!is_name && sl_vocab_id(vocab, token.text, token.bytes) == SL_VOCAB_UNKNOWN)
            add_word(words, sizeof words, token);
    }
    sl_tokenizer_destroy(&tokenizer);
    if (words[0])
        cli_complain("warning: the vocabulary does not have these words of --prompt, which the "
                     "model sees as <unk>: %s",
                     words);
    return status;
}

static sl_status encode_prompt(const cli_saved_model *model, const char *text, sl_tokens *out)
{
    SL_TRY(sl_tokens_encode(model->vocab, text, strlen(text), true, out));
    if (out->count == 0)
        return sl_error(SL_ERR_INVALID, "a prompt must have at least one token, got \"%s\"", text);
    return model->prints && sl_vocab_has_words(model->vocab)
               ? warn_unknown_words(model->vocab, text)
               : SL_OK;
}

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

/* Prints the text, with its prompt if it is `shown`, as it is made. */
static sl_status continue_text(const settings *parsed, const cli_saved_model *model,
                               const sl_tokens *prompt, bool shown, cli_made_text *text)
{
    sl_generate_options generation = parsed->generation;
    int64_t length = prompt->count;
    int32_t *ids = cli_allocate((size_t)(length + parsed->tokens), sizeof *ids);
    memcpy(ids, prompt->ids, (size_t)length * sizeof *ids);
    *text = (cli_made_text){.vocab = parsed->prompt_ids ? NULL : model->vocab};
    for (int64_t i = 0; model->prints && shown && i < length; i++)
        cli_made_text_add(text, ids[i]);
    if (model->prints) {
        generation.added = cli_made_text_add;
        generation.context_of_added = text;
    }
    sl_status status = sl_generate(model->pipe, &generation, ids, &length, parsed->tokens);
    if (model->prints)
        cli_made_text_end(text);
    free(ids);
    return status;
}

static sl_status continue_prompt(const settings *parsed, const cli_saved_model *model,
                                 const char *prompt)
{
    sl_tokens tokens = {0};
    cli_made_text text = {NULL};
    sl_status status = parsed->prompt_ids
                           ? read_prompt_ids(parsed->prompt_ids, model->options.ntokens, &tokens)
                           : encode_prompt(model, prompt, &tokens);
    if (status == SL_OK)
        status = continue_text(parsed, model, &tokens, true, &text);
    cli_made_text_clear(&text);
    sl_tokens_free(&tokens);
    return status;
}

/* A line without its end, "\n" or "\r\n", until the next call; NULL: there is none. `name` is that
 * of the file in errors. */
static sl_status read_line(FILE *from, const char *name, char **room, size_t *bytes,
                           const char **line)
{
    ssize_t length = getline(room, bytes, from);
    *line = NULL;
    if (length < 0)
        return ferror(from) ? sl_error(SL_ERR_IO, "%s: %s", name, strerror(errno)) : SL_OK;
    if (length > 0 && (*room)[length - 1] == '\n')
        (*room)[--length] = '\0';
    if (length > 0 && (*room)[length - 1] == '\r')
        (*room)[--length] = '\0';
    *line = *room;
    return SL_OK;
}

static sl_status continue_lines(const settings *parsed, const cli_saved_model *model)
{
    FILE *file = fopen(parsed->prompt_file, "r");
    char *room = NULL;
    const char *line;
    size_t bytes = 0;
    int64_t number = 0, prompts = 0;
    sl_status status = SL_OK;
    if (!file)
        return sl_error(SL_ERR_NOT_FOUND, "%s: cannot be opened: %s", parsed->prompt_file,
                        strerror(errno));
    while (status == SL_OK) {
        status = read_line(file, parsed->prompt_file, &room, &bytes, &line);
        if (status != SL_OK || !line)
            break;
        number++;
        if (*line) {
            status = sl_error_context(continue_prompt(parsed, model, line),
                                      "%s: line %" PRId64 ": ", parsed->prompt_file, number);
            prompts++;
        }
    }
    if (status == SL_OK && prompts == 0)
        status = sl_error(SL_ERR_FORMAT, "%s: expected a prompt on each line, but there is none",
                          parsed->prompt_file);
    fclose(file);
    free(room);
    return status;
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
    char *room = NULL;
    const char *line;
    size_t bytes = 0;
    sl_status status = SL_OK;
    const sl_group *group = sl_pipe_group(model->pipe);
    if (group && sl_group_size(group) > 1)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "--chat - reads the standard input of one process, but there are %d",
                        sl_group_size(group));
    while (status == SL_OK) {
        if (isatty(STDIN_FILENO))
            fputs("> ", stderr);
        status = read_line(stdin, "standard input", &room, &bytes, &line);
        if (status != SL_OK || !line)
            break;
        if (*line)
            status = say(parsed, model, line, talk);
    }
    free(room);
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
                             *const prompts[] = {"chat", "prompt-ids", "prompt-file", "prompt"};
    for (size_t i = 0; parsed->greedy && i < sizeof drawing / sizeof *drawing; i++)
        if (cli_line_value(line, drawing[i]))
            cli_refuse("--greedy draws no random numbers, so it cannot be combined with --%s",
                       drawing[i]);
    const char *given = NULL;
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        if (!cli_line_value(line, prompts[i]))
            continue;
        if (given)
            cli_refuse("--%s is a prompt, so it cannot be combined with --%s", given, prompts[i]);
        given = prompts[i];
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
    sl_status status = cli_saved_model_load(&parsed->run, !parsed->prompt_ids, &model);
    if (status == SL_OK) {
        const sl_vocab *vocab = model.vocab ? model.vocab : sl_saved_model_vocab(model.saved);
        bool has_words =
            vocab ? sl_vocab_has_words(vocab) : model.options.family == SL_FAMILY_TUTORIALS;
        parsed->generation.never = has_words ? SL_VOCAB_UNKNOWN : -1;
        parsed->generation.end = vocab ? sl_vocab_end(vocab) : -1;
        parsed->generation.stops = parsed->generation.end >= 0;
        parsed->generation.context =
            cli_context(line, "context", parsed->generation.context, &model);
        status = parsed->chat          ? chat(parsed, &model)
                 : parsed->prompt_file ? continue_lines(parsed, &model)
                                       : continue_prompt(parsed, &model, parsed->prompt);
    }
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
