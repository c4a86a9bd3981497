/* Any bytes as a line of text: every token must be one that the tokenizer may give, and tokens of
 * valid text must be their own tokens. */
#include "fuzz/fuzz.h"

#include "sluice/app/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

static void check_token(sl_token token)
{
    demand(token.bytes > 0, "a token with bytes");
    for (size_t i = 0; i < token.bytes; i++) {
        unsigned char c = (unsigned char)token.text[i];
        demand(c != ' ' && (c < 0x09 || c > 0x0D) && (c < 0x1C || c > 0x1F), "free of white space");
        demand(!strchr("\";:", c) || c == '\0', "free of what is removed");
        demand(c < 'A' || c > 'Z', "in lower case");
        demand(token.bytes == 1 || !strchr("'.,()!?", c) || c == '\0', "cut at symbols");
    }
}

/* Cuts a line into tokens and writes them with a line end after each; returns how many bytes. */
static size_t write_tokens(sl_tokenizer *tokenizer, const char *line, size_t bytes, char *to,
                           size_t room)
{
    sl_token token;
    size_t written = 0;
    demand(sl_tokenizer_start(tokenizer, line, bytes) == SL_OK, "started");
    while (sl_tokenizer_next(tokenizer, &token)) {
        check_token(token);
        demand(written + token.bytes + 1 <= room, "as short as the line allows");
        memcpy(to + written, token.text, token.bytes);
        written += token.bytes;
        to[written++] = '\n';
    }
    demand(!sl_tokenizer_next(tokenizer, &token), "at the end for good");
    return written;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t room = 3 * bytes + 2;
    char *line = malloc(bytes ? bytes : 1), *first = malloc(room), *second = malloc(room);
    sl_tokenizer *tokenizer;
    demand(line && first && second, "memory");
    demand(sl_tokenizer_create(&tokenizer) == SL_OK, "created");
    memcpy(line, data, bytes); /* of its own, so that reading past its end is seen */
    size_t written = write_tokens(tokenizer, line, bytes, first, room);
    if (!u8_check(data, bytes)) {
        demand(!u8_check((const uint8_t *)first, written), "UTF-8 again");
        size_t again = write_tokens(tokenizer, first, written, second, room);
        demand(again == written && memcmp(first, second, written) == 0, "the same tokens again");
    }
    sl_tokenizer_destroy(&tokenizer);
    free(line);
    free(first);
    free(second);
    return 0;
}
