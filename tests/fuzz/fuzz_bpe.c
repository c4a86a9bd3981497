/* Any bytes as the files of a byte-level BPE: each must end in one sentence, or in a tokenizer
 * whose tokens of any text are that text. A zero ends a vocab.json, and a merges.txt follows; all
 * of it is a rank file as well, and the text. */
#include "fuzz/fuzz.h"

#include "text/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

static void check_text(const sli_bpe *bpe, const char *text, size_t bytes)
{
    sl_tokens tokens;
    size_t at = 0;
    demand(sli_bpe_encode(bpe, text, bytes, false, false, &tokens) == SL_OK, "encoded");
    bool is_text = bytes == 0 || !u8_check((const uint8_t *)text, bytes);
    demand(is_text == (tokens.invalid_bytes == 0), "counted");
    for (int64_t i = 0; i < tokens.count; i++) {
        sl_token token = sli_bpe_token(bpe, tokens.ids[i]);
        demand(token.bytes > 0, "a token");
        demand(!is_text ||
                   (token.bytes <= bytes - at && memcmp(token.text, text + at, token.bytes) == 0),
               "the text's bytes");
        at += token.bytes;
    }
    demand(!is_text || at == bytes, "all of the text");
    sl_tokens_free(&tokens);
}

static void check_parsed(sl_status status, sli_bpe *bpe, const char *text, size_t bytes)
{
    demand(status == SL_OK || status == SL_ERR_FORMAT, "refused for its format");
    demand((status == SL_OK) == (bpe != NULL), "NULL after an error");
    if (bpe)
        check_text(bpe, text, bytes);
    sli_bpe_destroy(&bpe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes ? bytes : 1); /* of its own, so that reading past its end is seen */
    sli_bpe *bpe;
    demand(text != NULL, "memory");
    memcpy(text, data, bytes);
    const char *zero = memchr(text, 0, bytes);
    size_t head = zero ? (size_t)(zero - text) : bytes, rest = zero ? head + 1 : bytes;
    const sli_named_text vocab = {"vocab.json", text, head},
                         merges = {"merges.txt", text + rest, bytes - rest},
                         ranks = {"ranks", text, bytes};
    sl_status status = sli_bpe_parse_vocab(&vocab, &merges, sli_splitter_find("gpt2"), &bpe);
    check_parsed(status, bpe, text, bytes);
    status = sli_bpe_parse_ranks(&ranks, sli_splitter_find("cl100k"), &bpe);
    check_parsed(status, bpe, text, bytes);
    free(text);
    return 0;
}
