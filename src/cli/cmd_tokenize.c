/* sluice tokenize: the ids of a text, and the text of ids. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct settings {
    const char *tokenizer, *splitter;
    bool print, decode, special, resume;
    const char *output;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "tokenizer", .value = "DIR|FILE", FIELD(TEXT, tokenizer),
     .help = "A model's directory or one with vocab.json and merges.txt, a tokenizer.json, "
             "SentencePiece's tokenizer.model, or a rank file of tiktoken, as Llama 3's "
             "tokenizer.model is"},
    {.name = "splitter", .value = "NAME", FIELD(TEXT, splitter), .choices = sl_splitters,
     .help = "How text is split into words: as by GPT-2, SmolLM, GPT-4 and Llama 3, Qwen2 to "
             "Qwen3.5, or GPT-4o. A rank file needs one, and for vocab.json it is gpt2 by default"},
    {.name = "print", FIELD(FLAG, print),
     .help = "Print the ids of the text on standard input, separated by spaces"},
    {.name = "special", FIELD(FLAG, special), .needs = "print",
     .help = "Take special tokens in the text, such as <|endoftext|>, as such, and add those that the "
             "tokenizer has before and behind a text"},
    {.name = "decode", FIELD(FLAG, decode),
     .help = "Write the text of the ids on standard input"},
    {.name = "output", .letter = 'o', .value = "FILE", FIELD(TEXT, output),
     .help = "Write the tokens of the text files to FILE, such as tokens/train.bin, which llm.c and "
             "sluice train read, with the end of text behind each"},
    {.name = "resume", FIELD(FLAG, resume), .needs = "output",
     .help = "Go on where writing the same tokens was cut off, by a kill or a full disk; do nothing "
             "if they are written"},
    {0},
};
/* clang-format on */

/* All of standard input, malloc'ed, with a 0 behind it. */
static sl_status read_input(char **text, size_t *bytes)
{
    size_t room = 1 << 16;
    *bytes = 0;
    *text = malloc(room);
    while (*text) {
        *bytes += fread(*text + *bytes, 1, room - *bytes - 1, stdin);
        (*text)[*bytes] = '\0';
        if (ferror(stdin))
            return sl_error(SL_ERR_IO, "standard input cannot be read: %s", strerror(errno));
        if (feof(stdin))
            return SL_OK;
        char *grown = realloc(*text, room *= 2);
        if (!grown)
            free(*text);
        *text = grown;
    }
    return sl_error(SL_ERR_MEMORY, "standard input: no memory for %zu bytes", room);
}

static sl_status print_ids(const settings *parsed, const sl_vocab *vocab, const char *text,
                           size_t bytes)
{
    sl_tokens tokens;
    SL_TRY(sl_tokens_encode(vocab, text, bytes, parsed->special, &tokens));
    cli_warn_of_text(&(sl_text_info){.path = "standard input",
                                     .invalid_bytes = tokens.invalid_bytes},
                     NULL, NULL);
    for (int64_t i = 0; i < tokens.count; i++)
        printf("%" PRId32 "%c", tokens.ids[i], i + 1 < tokens.count ? ' ' : '\n');
    sl_tokens_free(&tokens);
    return SL_OK;
}

/* The ids of a text of numbers; *ids is malloc'ed. */
static sl_status read_ids(const sl_vocab *vocab, const char *text, size_t bytes, int32_t **ids,
                          int64_t *count)
{
    static const char blanks[] = " \t\r\n";
    const char *word = text + strspn(text, blanks), *end = text + bytes;
    *ids = cli_allocate(bytes / 2 + 1, sizeof **ids);
    for (*count = 0; word < end;) {
        size_t length = strcspn(word, blanks);
        char *stop;
        errno = 0;
        long long id = strtoll(word, &stop, 10);
        int shown = (int)(length < 40 ? length : 40);
        if (*word < '0' || *word > '9' || stop != word + length)
            return sl_error(SL_ERR_INVALID,
                            "word %" PRId64 " of standard input must be an id, got \"%.*s\"",
                            *count + 1, shown, word);
        if (errno != 0 || id >= sl_vocab_size(vocab))
            return sl_error(SL_ERR_INVALID,
                            "id %.*s, number %" PRId64 " of standard input, is not in 0 .. %" PRId32
                            ", the tokenizer's vocabulary",
                            shown, word, *count + 1, sl_vocab_size(vocab) - 1);
        (*ids)[(*count)++] = (int32_t)id;
        word = stop + strspn(stop, blanks);
    }
    return SL_OK;
}

static sl_status write_text(const sl_vocab *vocab, const char *text, size_t bytes)
{
    int32_t *ids = NULL;
    int64_t count;
    char *decoded = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(read_ids(vocab, text, bytes, &ids, &count));
    SL_TRY_OR_FAIL(sl_tokens_decode(vocab, ids, count, &decoded, &bytes));
    (void)fwrite(decoded, 1, bytes, stdout); /* cli_finish sees an error */
fail:
    free(decoded);
    free(ids);
    return status;
}

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The progress line. What an earlier call has done is passed over quickly, and tells nothing. */
typedef struct progress {
    cli_screen screen;
    double begun;   /* 0: not yet */
    uint64_t first; /* bytes that were done then */
} progress;

static void draw_progress(void *context, uint64_t done, uint64_t bytes)
{
    progress *view = context;
    if (view->begun == 0) {
        view->begun = seconds();
        view->first = done;
    }
    double passed = seconds() - view->begun, rate = (double)(done - view->first) / passed;
    char left[96] = "";
    if (passed > 1 && rate > 0)
        snprintf(left, sizeof left, " | %s MB/s | %s left", cli_real_text(1e-6 * rate, 1).text,
                 cli_duration_text((double)(bytes - done) / rate).text);
    cli_screen_draw_live(&view->screen, "tokenizing | %s of %s | %d%%%s",
                         cli_bytes_text((int64_t)done).text, cli_bytes_text((int64_t)bytes).text,
                         bytes > 0 ? (int)(100.0 * (double)done / (double)bytes) : 100, left);
}

static sl_status write_tokens(const settings *parsed, const cli_line *line, const sl_vocab *vocab)
{
    sl_tokens_written written;
    progress view = {0};
    SL_TRY(sl_error_context(sl_train_check_output(&(sl_train_options){0}, parsed->output),
                            "--output: "));
    cli_screen_create(&view.screen, 1, isatty(STDERR_FILENO) == 1);
    sl_status status = sl_tokens_write(
        vocab, (const char *const *)line->words, line->word_count, parsed->output,
        &(sl_tokens_writing){.resume = parsed->resume, .progress = draw_progress, .context = &view},
        &written);
    cli_screen_clear(&view.screen);
    SL_TRY(status);
    cli_warn_of_text(&(sl_text_info){.path = line->word_count == 1 ? line->words[0] : "the texts",
                                     .invalid_bytes = written.invalid_bytes},
                     NULL, NULL);
    printf("%s tokens written to ", cli_count_text(written.tokens).text);
    cli_print_text(parsed->output, 0);
    if (written.files > 1)
        printf(" and %s more", cli_count_text(written.files - 1).text);
    if (written.resumed_bytes > 0)
        printf(" (those of %s of text by an earlier call)",
               cli_bytes_text((int64_t)written.resumed_bytes).text);
    printf("\n");
    return SL_OK;
}

static sl_status run_tokenize(cli_line *line, void *settings_read)
{
    const settings *parsed = settings_read;
    sl_vocab *vocab;
    char *text = NULL;
    size_t bytes;
    if (!parsed->tokenizer)
        cli_refuse("tokenize needs --tokenizer DIR|FILE");
    if (parsed->print + parsed->decode + (parsed->output != NULL) != 1)
        cli_refuse("tokenize needs one of --output FILE, --print and --decode");
    if ((parsed->output != NULL) != (line->word_count > 0))
        cli_refuse(parsed->output ? "tokenize --output needs the files of a text"
                                  : "--print and --decode read standard input, not files");
    sl_status status;
    SL_TRY(sl_vocab_open(parsed->tokenizer, parsed->splitter, &vocab));
    if (parsed->output) {
        SL_TRY_OR_FAIL(write_tokens(parsed, line, vocab));
    } else {
        SL_TRY_OR_FAIL(read_input(&text, &bytes));
        SL_TRY_OR_FAIL(parsed->print ? print_ids(parsed, vocab, text, bytes)
                                     : write_text(vocab, text, bytes));
    }
fail:
    free(text);
    sl_vocab_destroy(&vocab);
    return status;
}

const cli_command cmd_tokenize = {
    .name = "tokenize",
    .summary = "turn text into a tokenizer's ids, or ids into text",
    .arguments = "[FILE...]",
    .doc = "Prints the ids of the text on standard input by the tokenizer of a model, such as "
           "GPT-2 or Llama 3, or writes the text of ids, or the tokens of files to one that can be "
           "trained on. All of the input is one text; without "
           "--special, what looks like a special token in it is text, and none is added.",
    .examples = "sluice tokenize --tokenizer SmolLM2-135M text/*.txt -o tokens/train.bin\n"
                "sluice tokenize --tokenizer gpt2 --print < book.txt\n"
                "sluice tokenize --tokenizer llama3/tokenizer.model --splitter cl100k --print < "
                "book.txt\n",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_tokenize,
};
