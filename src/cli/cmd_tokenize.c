/* sluice tokenize: the ids of a text, and the text of ids. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    const char *tokenizer, *splitter;
    bool print, decode;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "tokenizer", .value = "DIR|FILE", FIELD(TEXT, tokenizer),
     .help = "A directory with vocab.json and merges.txt, or a rank file of tiktoken, such as "
             "Llama 3's tokenizer.model"},
    {.name = "splitter", .value = "NAME", FIELD(TEXT, splitter), .choices = sl_bpe_splitters,
     .help = "How text is split into words: as by GPT-2, GPT-4 and Llama 3, or Qwen2 to Qwen3. A rank "
             "file needs one; for a directory it is gpt2 by default"},
    {.name = "print", FIELD(FLAG, print),
     .help = "Print the ids of the text on standard input, separated by spaces"},
    {.name = "decode", FIELD(FLAG, decode),
     .help = "Write the text of the ids on standard input"},
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

static sl_status print_ids(const sl_bpe *bpe, const char *text, size_t bytes)
{
    sl_tokens tokens;
    SL_TRY(sl_bpe_encode(bpe, text, bytes, &tokens));
    cli_warn_of_text(&(sl_text_info){.path = "standard input",
                                     .invalid_bytes = tokens.invalid_bytes},
                     NULL, NULL);
    for (int64_t i = 0; i < tokens.count; i++)
        printf("%" PRId32 "%c", tokens.ids[i], i + 1 < tokens.count ? ' ' : '\n');
    sl_tokens_free(&tokens);
    return SL_OK;
}

static sl_status write_text(const sl_bpe *bpe, const char *text, size_t bytes)
{
    static const char blanks[] = " \t\r\n";
    const char *at = text + strspn(text, blanks), *end = text + bytes;
    for (int64_t number = 1; at < end; number++) {
        size_t length = strcspn(at, blanks);
        char *stop;
        errno = 0;
        long long id = strtoll(at, &stop, 10);
        if (*at < '0' || *at > '9' || stop != at + length)
            return sl_error(SL_ERR_INVALID,
                            "word %" PRId64 " of standard input must be an id, got \"%.*s\"",
                            number, (int)(length < 40 ? length : 40), at);
        if (errno != 0 || id >= sl_bpe_size(bpe))
            return sl_error(SL_ERR_INVALID,
                            "id %.*s, number %" PRId64 " of standard input, is not in 0 .. %" PRId32
                            ", the tokenizer's vocabulary",
                            (int)(length < 40 ? length : 40), at, number, sl_bpe_size(bpe) - 1);
        sl_token token = sl_bpe_token(bpe, (int32_t)id);
        (void)fwrite(token.text, 1, token.bytes, stdout); /* cli_finish sees an error */
        at = stop + strspn(stop, blanks);
    }
    return SL_OK;
}

static sl_status run_tokenize(cli_line *line, void *settings_read)
{
    (void)line;
    const settings *parsed = settings_read;
    sl_bpe *bpe;
    char *text = NULL;
    size_t bytes;
    if (!parsed->tokenizer)
        cli_refuse("tokenize needs --tokenizer DIR|FILE");
    if (parsed->print == parsed->decode)
        cli_refuse("tokenize needs one of --print and --decode");
    SL_TRY(sl_bpe_open(parsed->tokenizer, parsed->splitter, &bpe));
    sl_status status = read_input(&text, &bytes);
    if (status == SL_OK)
        status = (parsed->print ? print_ids : write_text)(bpe, text, bytes);
    free(text);
    sl_bpe_destroy(&bpe);
    return status;
}

const cli_command cmd_tokenize = {
    .name = "tokenize",
    .summary = "turn text into a tokenizer's ids, or ids into text",
    .doc = "Prints the ids of the text on standard input by the byte-level BPE tokenizer of "
           "another model, such as GPT-2 or Llama 3, or writes the text of ids. All of the input "
           "is one text; what looks like a special token in it is text, and none is added.",
    .examples = "sluice tokenize --tokenizer gpt2 --print < book.txt\n"
                "sluice tokenize --tokenizer llama3/tokenizer.model --splitter cl100k --print < "
                "book.txt\n",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_tokenize,
};
