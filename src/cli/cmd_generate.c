/* sluice generate: text from saved weights. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/saved_model.h"
#include "cli/warnings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    const char *init, *prompt, *devices;
    bool greedy;
    int64_t tokens;
    sl_generate_options how;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "init", .value = "FILE", .type = SL_OPTION_TEXT, .offset = offsetof(settings, init),
     .help = "Weights: a safetensors file, the index of several, or a checkpoint's directory; the "
             "vocabulary beside them"},
    {.name = "prompt", .value = "TEXT", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, prompt),
     .help = "What the text begins with"},
    {.name = "tokens", .value = "N", .type = SL_OPTION_INT64, .offset = offsetof(settings, tokens),
     .lowest = 1, .highest = 1000000,
     .help = "Tokens to add"},
    {.name = "greedy", .type = SL_OPTION_FLAG, .offset = offsetof(settings, greedy),
     .help = "Always the most probable token"},
    {.name = "temperature", .value = "X", .type = SL_OPTION_DOUBLE,
     .offset = offsetof(settings, how.temperature),
     .help = "Below 1 sharper, above 1 flatter"},
    {.name = "top-k", .value = "K", .type = SL_OPTION_INT, .offset = offsetof(settings, how.top_k),
     .help = "Draw among the K most probable tokens; 0: all"},
    {.name = "seed", .value = "S", .type = SL_OPTION_SEED, .offset = offsetof(settings, how.seed),
     .help = "Seed of the draws"},
    {.name = "context", .value = "N", .type = SL_OPTION_INT64,
     .offset = offsetof(settings, how.context), .lowest = 1, .highest = 5000, .optional = true,
     .default_value = 35,
     .help = "Tokens of the past that the model sees"},
    {.name = "devices", .value = "LIST", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, devices),
     .help = "One device a stage; without it cpu:0, all cores"},
    {0},
};
/* clang-format on */

static void set_defaults(void *to)
{
    *(settings *)to =
        (settings){.prompt = "the", .tokens = 50, .how = {.temperature = 1, .seed = 1}};
}

static void complete(const cli_command_line *line, settings *to)
{
    static const char *const drawing[] = {"temperature", "top-k"};
    if (!to->init)
        cli_refuse("generate needs --init FILE", NULL);
    for (size_t i = 0; to->greedy && i < sizeof drawing / sizeof *drawing; i++)
        if (cli_given(line, drawing[i])) {
            char option[32];
            snprintf(option, sizeof option, "--%s", drawing[i]);
            cli_refuse("--greedy draws nothing, so it allows no other choice", option);
        }
    if (to->greedy)
        to->how.temperature = 0;
}

static void print_tokens(const sl_vocab *vocab, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        fputs(i > 0 ? " " : "", stdout);
        cli_print_text(sl_vocab_token(vocab, ids[i]).text, 0);
    }
    printf("\n");
}

static sl_status generate(const settings *from, const cli_saved_model *saved)
{
    sl_tokens prompt;
    SL_TRY(sl_tokens_encode(saved->vocab, from->prompt, strlen(from->prompt), &prompt));
    if (prompt.count == 0) {
        sl_tokens_free(&prompt);
        return sl_error(SL_ERR_INVALID, "--prompt must have at least one token, got \"%s\"",
                        from->prompt);
    }
    int64_t length = prompt.count;
    int32_t *ids = malloc((size_t)(length + from->tokens) * sizeof *ids);
    sl_status status = cli_warn_unknown_words(saved->vocab, from->prompt);
    if (status == SL_OK && ids) {
        memcpy(ids, prompt.ids, (size_t)length * sizeof *ids);
        status = sl_generate(saved->pipe, &from->how, ids, &length, from->tokens);
    } else if (status == SL_OK) {
        status = sl_error(SL_ERR_MEMORY, "no memory for the text");
    }
    if (status == SL_OK)
        print_tokens(saved->vocab, ids, length);
    free(ids);
    sl_tokens_free(&prompt);
    return status;
}

static int run(cli_command_line *line)
{
    settings parsed;
    cli_saved_model saved;
    cli_set(line, &parsed);
    complete(line, &parsed);
    sl_status status = cli_saved_model_load(parsed.init, parsed.devices, &saved);
    if (status == SL_OK)
        status = generate(&parsed, &saved);
    cli_saved_model_clear(&saved);
    return cli_finish(status);
}

const cli_command cmd_generate = {
    .name = "generate",
    .summary = "text from saved weights",
    .doc = "Writes text with saved weights. The same seed gives the same text.",
    .tables = {{options, 0}},
    .settings_bytes = sizeof(settings),
    .set_defaults = set_defaults,
    .run = run,
};
