/* sluice generate: text from a saved model, or ids of tokens. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    sl_train_options run;
    const char *prompt, *prompt_ids, *chat;
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
    {.name = "chat", .value = "TEXT", .group = "Text", FIELD(TEXT, chat),
     .help = "Say TEXT to a model that has conversations (ChatML, Llama 3), and print its answer"},
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

/* The ids of --prompt, with room for those that are generated; *ids is malloc'ed. */
static sl_status encode_prompt(const settings *parsed, const cli_saved_model *model, int32_t **ids,
                               int64_t *length)
{
    sl_tokens prompt;
    SL_TRY(parsed->chat ? sl_chat_encode(model->vocab, parsed->chat, &prompt)
                        : sl_tokens_encode(model->vocab, parsed->prompt, strlen(parsed->prompt),
                                           true, &prompt));
    *length = prompt.count;
    *ids = cli_allocate((size_t)(*length + parsed->tokens), sizeof **ids);
    for (int64_t i = 0; i < *length; i++)
        (*ids)[i] = prompt.ids[i];
    sl_tokens_free(&prompt);
    if (*length == 0)
        return sl_error(SL_ERR_INVALID, "--prompt must have at least one token, got \"%s\"",
                        parsed->prompt);
    return model->prints && !parsed->chat && sl_vocab_has_words(model->vocab)
               ? warn_unknown_words(model->vocab, parsed->prompt)
               : SL_OK;
}

/* Those of --prompt-ids. */
static sl_status read_prompt_ids(const settings *parsed, const cli_saved_model *model,
                                 int32_t **ids, int64_t *length)
{
    const char *text = parsed->prompt_ids;
    size_t most = strlen(text) / 2 + 1;
    char *end;
    *length = 0;
    *ids = cli_allocate(most + (size_t)parsed->tokens, sizeof **ids);
    for (;; text = end + 1) {
        errno = 0;
        long long id = strtoll(text, &end, 10);
        if (*text < '0' || *text > '9' || (*end != ',' && *end != '\0'))
            return sl_error(SL_ERR_INVALID,
                            "--prompt-ids must be ids separated by commas, such as 504,1463, got "
                            "\"%s\"",
                            parsed->prompt_ids);
        if (errno != 0 || id >= model->options.ntokens)
            return sl_error(SL_ERR_INVALID,
                            "--prompt-ids: id %.*s, number %" PRId64
                            " of the list, is not in 0 .. %" PRId64 ", the model's vocabulary",
                            (int)(end - text), text, *length + 1, model->options.ntokens - 1);
        (*ids)[(*length)++] = (int32_t)id;
        if (*end == '\0')
            return SL_OK;
    }
}

/* Prints the text of ids, without marks, or where the prompt is in ids, these. */
static sl_status print_tokens(const settings *parsed, const sl_vocab *vocab, int32_t *ids,
                              int64_t length)
{
    char *text;
    size_t bytes;
    int64_t kept = 0;
    for (int64_t i = 0; parsed->prompt_ids && i < length; i++)
        printf("%" PRId32 "%c", ids[i], i + 1 < length ? ' ' : '\n');
    if (parsed->prompt_ids)
        return SL_OK;
    for (int64_t i = 0; i < length; i++)
        if (!sl_vocab_is_special(vocab, ids[i]))
            ids[kept++] = ids[i];
    SL_TRY(sl_tokens_decode(vocab, ids, kept, &text, &bytes));
    for (size_t i = 0; i < bytes; i++) /* nothing that is printed has a zero */
        text[i] = text[i] ? text[i] : ' ';
    char *shown = sl_escape_text(text, true);
    puts(shown ? shown : "?");
    free(shown);
    free(text);
    return SL_OK;
}

static sl_status generate_text(const settings *parsed, const cli_saved_model *model)
{
    int32_t *ids = NULL;
    int64_t length = 0, said = 0;
    sl_status status = parsed->prompt_ids ? read_prompt_ids(parsed, model, &ids, &length)
                                          : encode_prompt(parsed, model, &ids, &length);
    if (parsed->chat)
        said = length;
    if (status == SL_OK)
        status = sl_generate(model->pipe, &parsed->generation, ids, &length, parsed->tokens);
    if (status == SL_OK && model->prints)
        status = print_tokens(parsed, model->vocab, ids + said, length - said);
    free(ids);
    return status;
}

static sl_status run_generate(cli_line *line, void *settings_read)
{
    static const char *const drawing[] = {"temperature", "top-k", "seed"};
    settings *parsed = settings_read;
    cli_saved_model model;
    if (!parsed->run.init)
        cli_refuse("generate needs --init DIR");
    for (size_t i = 0; parsed->greedy && i < sizeof drawing / sizeof *drawing; i++)
        if (cli_line_value(line, drawing[i]))
            cli_refuse("--greedy draws no random numbers, so it cannot be combined with --%s",
                       drawing[i]);
    if (parsed->prompt_ids && cli_line_value(line, "prompt"))
        cli_refuse("--prompt-ids is a prompt in ids, so it cannot be combined with --prompt");
    if (parsed->chat && (parsed->prompt_ids || cli_line_value(line, "prompt")))
        cli_refuse("--chat is a prompt, so it cannot be combined with --prompt or --prompt-ids");
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
        status = generate_text(parsed, &model);
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
