/* sluice generate: text from saved weights. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/saved_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_INIT = 0x100,
    KEY_PROMPT,
    KEY_TOKENS,
    KEY_GREEDY,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_SEED,
    KEY_CONTEXT,
    KEY_DEVICES
};

typedef struct settings {
    const char *init, *prompt, *devices;
    bool greedy;
    const char *drawn; /* an option that was given and says how to draw */
    int64_t tokens;
    sl_generate_options how;
} settings;

static const struct argp_option options[] = {
    {"init", KEY_INIT, "FILE", 0,
     "Weights: a safetensors file, the index of several, or a checkpoint's directory; the "
     "vocabulary beside them",
     1},
    {"prompt", KEY_PROMPT, "TEXT", 0, "What the text begins with (default \"the\")", 1},
    {"tokens", KEY_TOKENS, "N", 0, "Tokens to add (default 50)", 1},
    {"greedy", KEY_GREEDY, NULL, 0, "Always the most probable token", 1},
    {"temperature", KEY_TEMPERATURE, "X", 0, "Below 1 sharper, above 1 flatter (default 1)", 1},
    {"top-k", KEY_TOP_K, "K", 0, "Draw among the K most probable tokens; 0: all (default)", 1},
    {"seed", KEY_SEED, "S", 0, "Seed of the draws (default 1)", 1},
    {"context", KEY_CONTEXT, "N", 0, "Tokens of the past that the model sees (default 35)", 1},
    {"devices", KEY_DEVICES, "LIST", 0, "One device a stage (default cpu:0: all cores)", 1},
    {0},
};

static void complete(settings *to)
{
    if (!to->init)
        cli_refuse("generate needs --init FILE", NULL);
    if (to->greedy && to->drawn)
        cli_refuse("--greedy draws nothing, so it allows no other choice", to->drawn);
    if (to->greedy)
        to->how.temperature = 0;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings *to = state->input;
    switch (key) {
    case KEY_INIT:
        to->init = cli_parse_path("init", text);
        return 0;
    case KEY_PROMPT:
        to->prompt = text;
        return 0;
    case KEY_TOKENS:
        to->tokens = cli_parse_integer("tokens", text, 1, 1000000);
        return 0;
    case KEY_GREEDY:
        to->greedy = true;
        return 0;
    case KEY_TEMPERATURE:
        to->drawn = "--temperature";
        to->how.temperature = cli_parse_real("temperature", text);
        return 0;
    case KEY_TOP_K:
        to->drawn = "--top-k";
        to->how.top_k = (int)cli_parse_integer("top-k", text, 0, INT32_MAX);
        return 0;
    case KEY_SEED:
        to->how.seed = cli_parse_seed("seed", text);
        return 0;
    case KEY_CONTEXT:
        to->how.context = cli_parse_integer("context", text, 1, 5000);
        return 0;
    case KEY_DEVICES:
        to->devices = text;
        return 0;
    case ARGP_KEY_ARG:
        cli_refuse("generate takes options only", text);
    case ARGP_KEY_END:
        complete(to);
        return 0;
    case ARGP_KEY_ERROR:
        cli_end_at_option(state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
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
    sl_status status = SL_OK;
    if (ids) {
        memcpy(ids, prompt.ids, (size_t)length * sizeof *ids);
        status = sl_generate(saved->pipe, &from->how, ids, &length, from->tokens);
    } else {
        status = sl_error(SL_ERR_MEMORY, "no memory for the text");
    }
    if (status == SL_OK)
        print_tokens(saved->vocab, ids, length);
    free(ids);
    sl_tokens_free(&prompt);
    return status;
}

int cmd_generate(int argc, char **argv)
{
    static const struct argp parser = {
        .options = options,
        .parser = parse_option,
        .doc = "Writes text with saved weights. The same seed gives the same text.",
    };
    settings parsed = {.prompt = "the", .tokens = 50, .how = {.temperature = 1, .seed = 1}};
    cli_saved_model saved;
    cli_parse(&parser, argc, argv, &parsed);
    sl_status status = cli_saved_model_load(parsed.init, parsed.devices, &saved);
    if (status == SL_OK)
        status = generate(&parsed, &saved);
    cli_saved_model_clear(&saved);
    return cli_finish(status);
}
