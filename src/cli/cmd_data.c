/* sluice data: what a directory of text is made of; and the synthetic corpus. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/run_files.h"

#include "sluice/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_HEAD = 10, EXAMPLE_BPTT = 35, MAX_TOKENS = 2000000000 };

typedef struct settings {
    const char *directory;
    const char *vocab_path; /* NULL: the vocabulary is not written */
    int64_t head;
    bool synthetic;             /* write the corpus first */
    const char *only_synthetic; /* the last option given that needs --synthetic */
    sl_synthetic_options corpus;
} settings;

/* ---- Arguments --------------------------------------------------------------------------- */

enum { KEY_SYNTHETIC = 0x100, KEY_SEED, KEY_TOKENS, KEY_VOCAB, KEY_HEAD };

static const struct argp_option options[] = {
    {"vocab", KEY_VOCAB, "FILE", 0, "Write the vocabulary to FILE: one token a line, by id", 1},
    {"head", KEY_HEAD, "N", 0, "Show the vocabulary's first N tokens (default 10)", 1},
    {0, 0, NULL, 0, "Synthetic corpus:", 2},
    {"synthetic", KEY_SYNTHETIC, "DIR", 0,
     "Write random sentences of a small grammar to DIR, then show it", 2},
    {"seed", KEY_SEED, "S", 0, "Seed of the sentences (default 0)", 2},
    {"tokens", KEY_TOKENS, "N", 0,
     "Tokens in train (default 500000); valid and test have a tenth each", 2},
    {0},
};

static const char usage[] = "DIR\n--synthetic DIR";
static const char description[] =
    "Shows what a directory of text has: wiki.{train,valid,test}.tokens or "
    "{train,valid,test}.txt.\v"
    "Text is cut into tokens as torchtext's basic_english does; the vocabulary is that of the "
    "training text, by falling frequency. For a synthetic corpus, the perplexity that the best "
    "possible model reaches is shown too.";

static void set_directory(settings *to, const char *directory)
{
    if (!*directory)
        cli_refuse("data: expected a directory of text", directory);
    if (to->directory)
        cli_refuse("data: expected one directory", directory);
    to->directory = directory;
}

static void check_settings(const settings *parsed)
{
    if (!parsed->directory)
        cli_refuse("data: expected a directory of text, or --synthetic DIR", NULL);
    if (parsed->only_synthetic && !parsed->synthetic)
        cli_refuse("data: expected --synthetic with this option", parsed->only_synthetic);
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    settings *to = state->input;
    switch (key) {
    case KEY_VOCAB:
        to->vocab_path = cli_parse_path("vocab", argument);
        break;
    case KEY_HEAD:
        to->head = cli_parse_integer("head", argument, 0, INT32_MAX);
        break;
    case KEY_SYNTHETIC:
        to->synthetic = true;
        set_directory(to, argument);
        break;
    case KEY_SEED:
        to->only_synthetic = "--seed";
        to->corpus.seed = cli_parse_seed("seed", argument);
        break;
    case KEY_TOKENS:
        to->only_synthetic = "--tokens";
        to->corpus.train_tokens = cli_parse_integer("tokens", argument, 1, MAX_TOKENS);
        break;
    case ARGP_KEY_ARG:
        set_directory(to, argument);
        break;
    case ARGP_KEY_END:
        check_settings(to);
        break;
    case ARGP_KEY_ERROR:
        cli_end_at_option(state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- What is shown ----------------------------------------------------------------------- */

static void show_counts(const sl_corpus *corpus)
{
    char lines[CLI_NUMBER_BYTES], tokens[CLI_NUMBER_BYTES], unknown[CLI_NUMBER_BYTES];
    printf("%-6s %12s %14s %14s\n", "split", "lines", "tokens", "of these <unk>");
    for (int split = 0; split < SL_SPLITS; split++) {
        const sl_tokens *of = sl_corpus_tokens(corpus, (sl_split)split);
        int64_t unknown_count = 0;
        for (int64_t i = 0; i < of->count; i++)
            unknown_count += of->ids[i] == SL_VOCAB_UNKNOWN;
        printf("%-6s %12s %14s %14s  %s\n", sl_split_name((sl_split)split),
               cli_with_commas(of->line_count, lines), cli_with_commas(of->count, tokens),
               cli_with_commas(unknown_count, unknown), sl_corpus_path(corpus, (sl_split)split));
    }
}

/* The head with each token's frequency in the training text. */
static sl_status show_vocabulary(const sl_corpus *corpus, int64_t head)
{
    const sl_vocab *vocab = sl_corpus_vocab(corpus);
    const sl_tokens *train = sl_corpus_tokens(corpus, SL_SPLIT_TRAIN);
    int32_t size = sl_vocab_size(vocab);
    char text[CLI_NUMBER_BYTES];
    printf("\nvocabulary: %s types, with <unk>\n", cli_with_commas(size, text));
    int64_t *counts = calloc((size_t)size, sizeof *counts);
    if (!counts)
        return sl_error(SL_ERR_MEMORY, "no memory for %d counts", size);
    for (int64_t i = 0; i < train->count; i++)
        counts[train->ids[i]]++;
    if (head > 0)
        printf("%8s %14s  %s\n", "id", "in train", "token");
    for (int32_t id = 0; id < size && id < head; id++) {
        printf("%8d %14s  ", id, cli_with_commas(counts[id], text));
        cli_print_text(sl_vocab_token(vocab, id).text, 0);
        printf("\n");
    }
    free(counts);
    return SL_OK;
}

static sl_status show_corpus(const settings *from, const sl_corpus *corpus)
{
    double all, block;
    SL_TRY(sl_synthetic_corpus_best_perplexity(from->directory, 0, &all));
    SL_TRY(sl_synthetic_corpus_best_perplexity(from->directory, EXAMPLE_BPTT, &block));
    show_counts(corpus);
    SL_TRY(show_vocabulary(corpus, from->head));
    if (all > 0)
        printf("\nsynthetic corpus: the best possible perplexity is %.4f (%.4f in blocks of %d "
               "tokens, at whose beginnings the text before is not known)\n",
               all, block, EXAMPLE_BPTT);
    if (from->vocab_path) {
        SL_TRY(sl_vocab_save(sl_corpus_vocab(corpus), from->vocab_path));
        printf("\nvocabulary written to %s\n", from->vocab_path);
    }
    return SL_OK;
}

static sl_status run(const settings *from)
{
    sl_corpus *corpus = NULL;
    if (from->synthetic)
        SL_TRY(sl_synthetic_corpus_write(from->directory, &from->corpus));
    if (from->vocab_path)
        SL_TRY(cli_check_vocab_file(from->vocab_path, from->directory));
    sl_status status = sl_corpus_load(from->directory, NULL, &corpus);
    if (status == SL_OK)
        status = show_corpus(from, corpus);
    sl_corpus_destroy(&corpus);
    return status;
}

int cmd_data(int argc, char **argv)
{
    const struct argp parser = {options, parse_option, usage, description, NULL, NULL, NULL};
    settings parsed = {.head = DEFAULT_HEAD};
    cli_parse(&parser, argc, argv, &parsed);
    return cli_finish(run(&parsed));
}
