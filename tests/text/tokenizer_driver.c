/* A tokenizer that is opened once and encodes many texts, for tests in Python (own_tokenizer.py).
 *
 *   tokenizer_driver TOKENIZER [SPLITTER]
 *
 * A request is a line, "encode BYTES", "special BYTES" (which matches special tokens and adds those
 * around a text) or "decode IDS", and then so many bytes of text or ids of four bytes. The answer
 * is a line with a number, and then so many ids or bytes. */
#include "sluice/app/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(bool is_true, const char *what)
{
    if (is_true)
        return;
    fprintf(stderr, "tokenizer_driver: %s\n", what);
    exit(1);
}

static void check_ok(sl_status status)
{
    check(status == SL_OK, sl_error_text());
}

static void answer(size_t count, const void *data, size_t element_bytes)
{
    printf("%zu\n", count);
    check(fwrite(data, element_bytes, count, stdout) == count && fflush(stdout) == 0,
          "the answer cannot be written");
}

static void encode(const sl_vocab *vocab, size_t bytes, bool special)
{
    sl_tokens tokens;
    char *text = malloc(bytes + 1);
    check(text && fread(text, 1, bytes, stdin) == bytes, "the text ends early");
    check_ok(sl_tokens_encode(vocab, text, bytes, special, &tokens));
    answer((size_t)tokens.count, tokens.ids, sizeof *tokens.ids);
    sl_tokens_free(&tokens);
    free(text);
}

static void decode(const sl_vocab *vocab, size_t count)
{
    char *text;
    size_t bytes;
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    check(ids && fread(ids, sizeof *ids, count, stdin) == count, "the ids end early");
    check_ok(sl_tokens_decode(vocab, ids, (int64_t)count, &text, &bytes));
    answer(bytes, text, 1);
    free(text);
    free(ids);
}

int main(int argc, char **argv)
{
    char line[64];
    sl_vocab *vocab;
    check(argc == 2 || argc == 3, "usage: tokenizer_driver TOKENIZER [SPLITTER]");
    check_ok(sl_vocab_open(argv[1], argv[2], &vocab));
    while (fgets(line, sizeof line, stdin)) {
        char *number = strchr(line, ' ');
        check(number != NULL, "a request must have a number");
        size_t count = strtoull(number, NULL, 10);
        if (strncmp(line, "decode ", 7) == 0)
            decode(vocab, count);
        else
            encode(vocab, count, strncmp(line, "special ", 8) == 0);
    }
    sl_vocab_destroy(&vocab);
    return 0;
}
