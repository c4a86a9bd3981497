/* sluice data: what a directory of text is made of; and the synthetic text. */
#include "cli/cli.h"
#include "sluice/app/inference.h"
#include "synthetic/chain.h"

#include <stdlib.h>

enum { MAX_TOKENS = 2000000000 };

typedef struct settings {
    const char *vocab_path; /* NULL: the vocabulary is not written */
    int64_t head;
    const char *synthetic; /* the directory to write one to first; NULL: none */
    sli_synthetic_options text;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "vocab", .value = "FILE", FIELD(TEXT, vocab_path),
     .help = "Write the vocabulary to FILE, as the tokenizer.json of a model"},
    {.name = "head", .value = "N", FIELD(INT64, head), RANGE(0, INT32_MAX), .initial = "10",
     .help = "Show the first N tokens of the vocabulary"},
    {.name = "synthetic", .value = "DIR", .group = "Synthetic text", FIELD(TEXT, synthetic),
     .help = "Write random sentences of known entropy to DIR first"},
    {.name = "seed", .value = "S", .group = "Synthetic text", FIELD(SEED, text.seed),
     .needs = "synthetic",
     .help = "Seed of the random sentences"},
    {.name = "tokens", .value = "N", .group = "Synthetic text", FIELD(INT64, text.train_tokens),
     RANGE(1, MAX_TOKENS), .initial = "500000", .needs = "synthetic",
     .help = "Tokens in the training text; validation and test text have a tenth each"},
    {0},
};
/* clang-format on */

/* ---- What is shown ----------------------------------------------------------------------- */

static void show_counts(const sl_corpus *corpus)
{
    printf("%-6s %12s %14s %14s\n", "split", "lines", "tokens", "of these <unk>");
    for (int split = 0; split < SL_SPLITS; split++) {
        const sl_tokens *tokens = sl_corpus_tokens(corpus, split);
        printf("%-6s %12s %14s %14s  ", sl_split_name(split),
               cli_count_text(tokens->line_count).text, cli_count_text(tokens->count).text,
               cli_count_text(tokens->unknown_count).text);
        cli_print_text(sl_corpus_name(corpus, split), 0);
        printf("\n");
        cli_warn_of_text(&(sl_text_info){.path = sl_corpus_name(corpus, split),
                                         .invalid_bytes = tokens->invalid_bytes},
                         NULL, NULL);
    }
}

/* The head with each token's frequency in the training text. */
static void show_vocabulary(const sl_corpus *corpus, int64_t head)
{
    const sl_vocab *vocab = sl_corpus_vocab(corpus);
    const sl_tokens *train = sl_corpus_tokens(corpus, SL_SPLIT_TRAIN);
    int32_t size = sl_vocab_size(vocab);
    printf("\nvocabulary: %s types, with <unk>\n", cli_count_text(size).text);
    int64_t *counts = cli_allocate((size_t)size, sizeof *counts);
    for (int64_t i = 0; i < train->count; i++)
        counts[train->ids[i]]++;
    if (head > 0)
        printf("%8s %14s  %s\n", "id", "in train", "token");
    for (int32_t id = 0; id < size && id < head; id++) {
        printf("%8d %14s  ", id, cli_count_text(counts[id]).text);
        cli_print_text(sl_vocab_token(vocab, id).text, 0);
        printf("\n");
    }
    free(counts);
}

static sl_status show_corpus(const settings *parsed, const char *directory, const sl_corpus *corpus)
{
    show_counts(corpus);
    show_vocabulary(corpus, parsed->head);
    if (sli_synthetic_is_text(directory))
        printf("\nsynthetic text: the best possible perplexity is %.4f (%.4f in blocks of %d "
               "tokens, without the text before each block; %.4f by the last word alone)\n",
               sli_synthetic_best_perplexity(0), sli_synthetic_best_perplexity(SL_DEFAULT_CONTEXT),
               SL_DEFAULT_CONTEXT, sli_synthetic_best_perplexity(1));
    if (parsed->vocab_path) {
        SL_TRY(sl_vocab_save(sl_corpus_vocab(corpus), parsed->vocab_path));
        printf("\nvocabulary written to ");
        cli_print_text(parsed->vocab_path, 0);
        printf("\n");
    }
    return SL_OK;
}

static sl_status run_data(cli_line *line, void *settings_read)
{
    const settings *parsed = settings_read;
    const char *directory = parsed->synthetic ? parsed->synthetic : line->words[0];
    sl_corpus *corpus;
    if (line->word_count + (parsed->synthetic != NULL) > 1)
        cli_refuse("data: expected one directory, got \"%s\"", line->words[line->word_count - 1]);
    if (directory && !*directory)
        cli_refuse("data: expected a directory of text, got \"\"");
    if (!directory)
        cli_refuse("data: expected a directory of text, or --synthetic DIR");
    if (parsed->synthetic)
        SL_TRY(sl_error_context(sl_train_check_output(&(sl_train_options){0}, directory),
                                "--synthetic: "));
    if (parsed->synthetic)
        SL_TRY(sli_synthetic_write(directory, &parsed->text));
    if (parsed->vocab_path)
        SL_TRY(sl_error_context(sl_train_check_output(&(sl_train_options){.data = directory},
                                                      parsed->vocab_path),
                                "--vocab: "));
    SL_TRY(sl_corpus_load(directory, NULL, &corpus));
    sl_status status = show_corpus(parsed, directory, corpus);
    sl_corpus_destroy(&corpus);
    return status;
}

const cli_command cmd_data = {
    .name = "data",
    .summary = "show a directory of text, or write a synthetic one",
    .arguments = "DIR|FILE\n--synthetic DIR",
    .doc =
        "Shows the sizes and the vocabulary of the texts in a directory, "
        "wiki.{train,valid,test}.tokens or {train,valid,test}.txt, or of one text file, of which "
        "90% are for training, 5% for validation and 5% for the test. "
        "Text is cut into tokens as by torchtext's basic_english. The vocabulary is that of "
        "the training text, the most frequent token first. For a synthetic text, the "
        "perplexity of the best possible model is shown too.",
    .examples = "sluice data book.txt\n"
                "sluice data --synthetic text --tokens 50000\n",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_data,
};
