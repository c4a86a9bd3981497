/* The basic_english tokenizer, as a scan.
 *
 * torchtext runs a list of substitutions over the line, one after the other, and splits the result
 * at white space. Their order shows in one place only: " is removed before "<br />" is looked for,
 * so that <b"r /> is one. No other substitution makes or breaks a match of a later one. So two
 * passes do the same work: sli_fold lowers the line and removes ", and the scan below cuts what is
 * left, where each byte is one of
 *
 *   white space, ; and :             ends a token
 *   ' . , ( ) ! ?                    ends a token and is one
 *   <                                may begin "<br />", which ends a token
 *   all else                         belongs to a token */
#include "sluice/text.h"

#include "text/fold.h"

#include <stdlib.h>
#include <string.h>

enum byte_class { IN_TOKEN, SPACE, SYMBOL, ANGLE };

static const unsigned char classes[256] = {
    ['\t'] = SPACE, ['\n'] = SPACE, ['\v'] = SPACE,  ['\f'] = SPACE, ['\r'] = SPACE,
    [0x1C] = SPACE, [0x1D] = SPACE, [0x1E] = SPACE,  [0x1F] = SPACE, [' '] = SPACE,
    [';'] = SPACE,  [':'] = SPACE,  ['\''] = SYMBOL, ['.'] = SYMBOL, [','] = SYMBOL,
    ['('] = SYMBOL, [')'] = SYMBOL, ['!'] = SYMBOL,  ['?'] = SYMBOL, ['<'] = ANGLE,
};

static const char line_break[] = "<br />";
enum { LINE_BREAK_BYTES = sizeof line_break - 1 };

struct sl_tokenizer {
    char *line; /* folded; LINE_BREAK_BYTES line ends follow, so that no look ahead leaves it */
    size_t capacity;
    const char *at, *end; /* what is still to be cut */
};

sl_status sl_tokenizer_create(sl_tokenizer **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? SL_OK : sl_error(SL_ERR_MEMORY, "sl_tokenizer_create: no memory");
}

void sl_tokenizer_destroy(sl_tokenizer **tokenizer)
{
    if (!tokenizer || !*tokenizer)
        return;
    free((*tokenizer)->line);
    free(*tokenizer);
    *tokenizer = NULL;
}

static sl_status reserve(sl_tokenizer *tokenizer, size_t line_bytes)
{
    size_t needed = sli_fold_bytes_max(line_bytes) + LINE_BREAK_BYTES;
    if (needed <= tokenizer->capacity)
        return SL_OK;
    free(tokenizer->line); /* its content is not needed any more */
    tokenizer->capacity = 0;
    tokenizer->line = needed > line_bytes ? malloc(needed) : NULL;
    if (!tokenizer->line)
        return sl_error(SL_ERR_MEMORY, "sl_tokenizer_start: no memory for a line of %zu bytes",
                        line_bytes);
    tokenizer->capacity = needed;
    return SL_OK;
}

sl_status sl_tokenizer_start(sl_tokenizer *tokenizer, const char *line, size_t bytes)
{
    tokenizer->at = tokenizer->end = NULL;
    SL_TRY(reserve(tokenizer, bytes));
    size_t folded = sli_fold(line, bytes, tokenizer->line);
    memset(tokenizer->line + folded, '\n', LINE_BREAK_BYTES);
    tokenizer->at = tokenizer->line;
    tokenizer->end = tokenizer->line + folded;
    return SL_OK;
}

static enum byte_class class_at(const char *at)
{
    return (enum byte_class)classes[(unsigned char)*at];
}

static bool is_line_break(const char *at)
{
    return memcmp(at, line_break, LINE_BREAK_BYTES) == 0;
}

/* The line ends after the line stop both loops. */
bool sl_tokenizer_next(sl_tokenizer *tokenizer, sl_token *out)
{
    const char *at = tokenizer->at, *end = tokenizer->end;
    for (; at < end; at++) {
        enum byte_class class = class_at(at);
        if (class == IN_TOKEN || class == SYMBOL)
            break;
        if (class == ANGLE) {
            if (!is_line_break(at))
                break;
            at += LINE_BREAK_BYTES - 1;
        }
    }
    if (at >= end) {
        tokenizer->at = end;
        return false;
    }
    out->text = at;
    if (class_at(at++) != SYMBOL)
        while (class_at(at) == IN_TOKEN || (class_at(at) == ANGLE && !is_line_break(at)))
            at++;
    out->bytes = (size_t)(at - out->text);
    tokenizer->at = at;
    return true;
}
