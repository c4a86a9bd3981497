/* The basic_english tokenizer, as a scan.
 *
 * torchtext runs a list of substitutions over the line, one after the other, and splits the result
 * at white space. Their order shows only once: " is removed before "<br />" is looked for,
 * so that <b"r /> is one. No other substitution makes or breaks a match of a later one. So two
 * passes do the same work: fold_line lowers the line and removes ", and the scan below cuts what is
 * left, where each byte is one of
 *
 *   white space, ; and :             ends a token
 *   ' . , ( ) ! ?                    ends a token and is one
 *   <                                may begin "<br />", which ends a token
 *   all else                         belongs to a token */
#include "core/error.h"
#include "text/tokens.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <unicase.h>
#include <unictype.h>
#include <unistr.h>

/* ---- Lower case ------------------------------------------------------------------------- */

/* Lower case as Python's str.lower has it is Unicode's full mapping without regard to language.
 * Among some 1,400 letters that have a lower case, all but two become one other character, whatever
 * stands around them. The two:
 *
 *   U+0130, I with a dot, becomes two: i and U+0307, a combining dot;
 *   U+03A3, capital sigma, becomes a final sigma at the end of a word: after a cased letter and
 *   with none following, where case-ignorable characters (accents, full stops, …) are skipped.
 *
 * libunistring has functions for whole strings that know both, but these allocate, refuse what is
 * not UTF-8, and take many times longer than a character's look-up. tests/text/test_tokenizer.c
 * holds every character against Python. */
enum {
    CAPITAL_I_WITH_DOT = 0x130,
    COMBINING_DOT_ABOVE = 0x307,
    CAPITAL_SIGMA = 0x3A3,
    SMALL_FINAL_SIGMA = 0x3C2,
};

static bool cased_letter_before(const uint8_t *at, const uint8_t *line)
{
    ucs4_t character;
    while ((at = u8_prev(&character, at, line)))
        if (!uc_is_property_case_ignorable(character))
            return uc_is_property_cased(character);
    return false;
}

static bool cased_letter_after(const uint8_t *at, const uint8_t *end)
{
    ucs4_t character;
    for (int length; at < end; at += length) {
        length = u8_mbtoucr(&character, at, (size_t)(end - at));
        if (length < 0)
            return false;
        if (!uc_is_property_case_ignorable(character))
            return uc_is_property_cased(character);
    }
    return false;
}

/* Python's list beyond ASCII. */
static bool is_wide_space(ucs4_t c)
{
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Folds the character at *in, a zero or one beyond ASCII, and moves both pointers past it. Returns
 * how many bytes are not UTF-8. */
static int fold_wide(const uint8_t *line, const uint8_t *end, const uint8_t **in, uint8_t **out)
{
    ucs4_t character;
    int length = u8_mbtoucr(&character, *in, (size_t)(end - *in));
    if (length < 0 || character == 0) {
        int broken = length < 0 ? sli_broken_bytes(*in, end) : 0;
        *in += broken ? broken : 1;
        *out += u8_uctomb(*out, SLI_REPLACEMENT, 4);
        return broken;
    }
    const uint8_t *next = *in + length;
    if (is_wide_space(character)) {
        *(*out)++ = '\n';
    } else {
        ucs4_t lower = uc_tolower(character);
        if (character == CAPITAL_SIGMA && cased_letter_before(*in, line) &&
            !cased_letter_after(next, end))
            lower = SMALL_FINAL_SIGMA;
        *out += u8_uctomb(*out, lower, 4);
        if (character == CAPITAL_I_WITH_DOT)
            *out += u8_uctomb(*out, COMBINING_DOT_ABOVE, 4);
    }
    *in = next;
    return 0;
}

enum { MOST_GROWTH = 3 }; /* of a line's bytes: one that is no text becomes U+FFFD */

/* ---- Cutting ---------------------------------------------------------------------------- */

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
    int64_t invalid, controls;
};

sl_status sl_tokenizer_create(sl_tokenizer **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? SL_OK : sli_no_memory("sl_tokenizer_create", "a tokenizer");
}

void sl_tokenizer_destroy(sl_tokenizer **tokenizer)
{
    if (!tokenizer || !*tokenizer)
        return;
    free((*tokenizer)->line);
    free(*tokenizer);
    *tokenizer = NULL;
}

static sl_status reserve_line(sl_tokenizer *tokenizer, size_t line_bytes)
{
    size_t needed = MOST_GROWTH * line_bytes + LINE_BREAK_BYTES;
    if (needed <= tokenizer->capacity)
        return SL_OK;
    free(tokenizer->line); /* its content is the last line's */
    tokenizer->capacity = 0;
    tokenizer->line = line_bytes < SIZE_MAX / (MOST_GROWTH + 1) ? malloc(needed) : NULL;
    if (!tokenizer->line)
        return sli_no_memory("sl_tokenizer_start", "a line of %zu bytes", line_bytes);
    tokenizer->capacity = needed;
    return SL_OK;
}

/* Writes the line to the tokenizer's: in lower case; without any "; with a line end for each white
 * space beyond ASCII (not a blank, for "<br />" is only that with a true blank); and with U+FFFD
 * for zeros and for what is not UTF-8. Returns how many bytes it wrote. */
static size_t fold_line(sl_tokenizer *tokenizer, const char *line, size_t bytes)
{
    const uint8_t *start = (const uint8_t *)line, *in = start, *end = in + bytes;
    uint8_t *to = (uint8_t *)tokenizer->line;
    int64_t controls = 0;
    while (in < end) {
        while (in < end && (uint8_t)(*in - 1) < 0x7F) {
            uint8_t c = *in++;
            *to = (uint8_t)(c | ((unsigned)(c - 'A') < 26u ? 0x20 : 0));
            to += c != '"';
            controls += sli_is_control(c);
        }
        if (in == end)
            break;
        controls += *in == 0;
        tokenizer->invalid += fold_wide(start, end, &in, &to);
    }
    tokenizer->controls += controls;
    return (size_t)(to - (uint8_t *)tokenizer->line);
}

sl_status sl_tokenizer_start(sl_tokenizer *tokenizer, const char *line, size_t bytes)
{
    tokenizer->at = tokenizer->end = NULL;
    SL_TRY(reserve_line(tokenizer, bytes));
    size_t folded = fold_line(tokenizer, line, bytes);
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

int64_t sli_tokenizer_invalid_bytes(const sl_tokenizer *tokenizer)
{
    return tokenizer->invalid;
}

int64_t sli_tokenizer_control_characters(const sl_tokenizer *tokenizer)
{
    return tokenizer->controls;
}
