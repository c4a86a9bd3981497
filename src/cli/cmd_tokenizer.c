/* sluice tokenizer train: a tokenizer made of texts. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct settings {
    int64_t vocab_size;
    const char *special, *splitter, *output;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "vocab-size", .value = "N", FIELD(INT64, vocab_size), RANGE(1, INT32_MAX), .optional = true,
     .help = "How many tokens: the special ones, the 256 bytes, and those that are made of others"},
    {.name = "special", .value = "TOKEN", FIELD(TEXT, special),
     .help = "A special token; may be given several times. The first has id 0 and is the end of a "
             "text. Default: <|endoftext|>"},
    {.name = "splitter", .value = "NAME", FIELD(TEXT, splitter), .choices = sl_splitters,
     .initial = "gpt2",
     .help = "How text is split into words, in which bytes merge"},
    {.name = "output", .letter = 'o', .value = "DIR", FIELD(TEXT, output),
     .help = "The directory that the tokenizer is written to"},
    {0},
};
/* clang-format on */

/* The special tokens of the line, or the one by default; `special` has room for all. */
static int read_special(const cli_line *line, const char **special)
{
    int count = 0;
    for (int i = 0; i < line->given_count; i++)
        if (strcmp(line->given[i].option->name, "special") == 0)
            special[count++] = line->given[i].text;
    if (count == 0)
        special[count++] = "<|endoftext|>";
    return count;
}

/* Ends the program where the line asks for nothing that can be done. */
static void check_line(const cli_line *line, const settings *parsed)
{
    static const char expected[] = "tokenizer: expected train";
    if (line->word_count == 0)
        cli_refuse("%s", expected);
    if (strcmp(line->words[0], "train") != 0)
        cli_refuse("%s, got \"%s\"", expected, line->words[0]);
    if (line->word_count == 1)
        cli_refuse("tokenizer train: expected the files of a text");
    if (parsed->vocab_size == 0)
        cli_refuse("tokenizer train needs --vocab-size N");
    if (!parsed->output)
        cli_refuse("tokenizer train needs --output DIR");
}

static void show(const settings *parsed, const cli_line *line, const sl_bpe_trained *trained)
{
    cli_warn_of_text(&(sl_text_info){.path = line->word_count == 2 ? line->words[1] : "the texts",
                                     .invalid_bytes = trained->invalid_bytes},
                     NULL, NULL);
    printf("%s different words became a vocabulary of %s tokens",
           cli_count_text(trained->different_words).text, cli_count_text(trained->vocab_size).text);
    if (trained->vocab_size < parsed->vocab_size)
        printf(", since no more pairs are left");
    printf("\ntokenizer written to ");
    cli_print_text(parsed->output, 0);
    printf("\n");
}

static sl_status run_tokenizer(cli_line *line, void *settings_read)
{
    const settings *parsed = settings_read;
    sl_bpe_trained trained;
    check_line(line, parsed);
    SL_TRY(sl_error_context(sl_train_check_output(&(sl_train_options){0}, parsed->output),
                            "--output: "));
    const char **special = cli_allocate((size_t)line->given_count + 1, sizeof *special);
    sl_bpe_training training = {.vocab_size = (int32_t)parsed->vocab_size,
                                .special = special,
                                .special_count = read_special(line, special),
                                .splitter = parsed->splitter};
    sl_status status = sl_bpe_train((const char *const *)line->words + 1, line->word_count - 1,
                                    &training, parsed->output, &trained);
    free(special);
    SL_TRY(status);
    show(parsed, line, &trained);
    return SL_OK;
}

const cli_command cmd_tokenizer = {
    .name = "tokenizer",
    .summary = "train a tokenizer on text files",
    .arguments = "train FILE...",
    .doc = "Trains a byte-level BPE on text files, as Hugging Face's BpeTrainer does, with the "
           "same merges, and writes tokenizer.json and tokenizer_config.json, which transformers "
           "opens. Special tokens in the files are text.",
    .examples = "sluice tokenizer train --vocab-size 32000 text/*.txt -o mytok\n"
                "sluice tokenize --tokenizer mytok --print < book.txt\n",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_tokenizer,
};
