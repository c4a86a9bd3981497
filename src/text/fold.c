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
#include "text/fold.h"

#include <stdint.h>
#include <unicase.h>
#include <unictype.h>
#include <unistr.h>

enum {
    CAPITAL_I_WITH_DOT = 0x130,
    COMBINING_DOT_ABOVE = 0x307,
    CAPITAL_SIGMA = 0x3A3,
    SMALL_FINAL_SIGMA = 0x3C2,
    SMALL_SIGMA = 0x3C3,
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

/* Folds the character at *in, which does not begin in ASCII, and moves both pointers past it. */
static void fold_wide(const uint8_t *line, const uint8_t *end, const uint8_t **in, uint8_t **out)
{
    ucs4_t character;
    int length = u8_mbtoucr(&character, *in, (size_t)(end - *in));
    if (length < 0) { /* not UTF-8 */
        *(*out)++ = *(*in)++;
        return;
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
}

size_t sli_fold(const char *line, size_t bytes, char *out)
{
    const uint8_t *start = (const uint8_t *)line, *in = start, *end = in + bytes;
    uint8_t *to = (uint8_t *)out;
    while (in < end) {
        while (in < end && *in < 0x80) {
            uint8_t c = *in++;
            *to = (uint8_t)(c | ((unsigned)(c - 'A') < 26u ? 0x20 : 0));
            to += c != '"';
        }
        if (in < end)
            fold_wide(start, end, &in, &to);
    }
    return (size_t)(to - (uint8_t *)out);
}
