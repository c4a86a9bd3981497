/* The patterns, in the notation of Rust's and Python's regex; of the alternatives the first that
 * matches is taken:
 *
 *   gpt2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   cl100k   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 *            ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+      (" ?" begins this line)
 *   qwen2    as cl100k with \p{N}, over the text's NFC
 *   qwen3.5  as qwen2 with [\p{L}\p{M}] for \p{L}, and [^\s\p{L}\p{M}\p{N}] for [^\s\p{L}\p{N}]
 *   o200k    [^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}|
 *            ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+     (" ?" begins this line)
 *              U is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], L is [\p{Ll}\p{Lm}\p{Lo}\p{M}],
 *              and C is (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   smollm   \p{N}, and gpt2 for what is between
 *
 * \s+(?!\S) leaves the last character of white space to the word behind it. */
#include "text/splitters.h"

#include "sluice/app/text.h"
#include "text/unicode_tables.h"

#include <string.h>
#include <unistr.h>

/* ---- Characters --------------------------------------------------------------------------- */

/* Of characters that are not letters, numbers or white space. */
enum { OTHERS = SLI_OTHER | SLI_MARK };

static unsigned kind_of(uint32_t code)
{
    size_t low = 0, high = sizeof sli_character_runs / sizeof *sli_character_runs;
    while (high - low > 1) { /* the run is in low .. high - 1 */
        size_t middle = (low + high) / 2;
        if (sli_character_runs[middle] >> 8 <= code)
            low = middle;
        else
            high = middle;
    }
    return sli_character_runs[low] & 0xFF;
}

/* Of the character at `*at`, which moves behind it. */
static unsigned next_kind(const uint8_t **at, const uint8_t *end)
{
    if (**at < 0x80)
        return sli_ascii_kinds[*(*at)++];
    ucs4_t code;
    *at += u8_mbtouc_unsafe(&code, *at, (size_t)(end - *at));
    return kind_of(code);
}

/* Whether a character of these kinds is at `at`. */
static bool is_at(const uint8_t *at, const uint8_t *end, unsigned kinds)
{
    return at < end && (next_kind(&at, end) & kinds) != 0;
}

/* The end of the run of such characters at `at`. */
static const uint8_t *skip(const uint8_t *at, const uint8_t *end, unsigned kinds)
{
    for (const uint8_t *next = at; next < end; at = next) {
        while (next < end && *next < 0x80 && (sli_ascii_kinds[*next] & kinds) != 0)
            next++;
        at = next;
        if (at == end || *at < 0x80 || (next_kind(&next, end) & kinds) == 0)
            break;
    }
    return at;
}

/* The end of the digits at `at`, at most so many. */
static const uint8_t *skip_digits(const uint8_t *at, const uint8_t *end, size_t most)
{
    for (const uint8_t *next = at; most > 0 && next < end; at = next, most--)
        if (next_kind(&next, end) != SLI_NUMBER)
            break;
    return at;
}

static bool is_line_end(const uint8_t *at, const uint8_t *end)
{
    return at < end && (*at == '\r' || *at == '\n');
}

/* ---- Pieces ------------------------------------------------------------------------------- */

static bool equals(uint8_t c, char small, bool any_case)
{
    return c == (uint8_t)small || (any_case && (c | 0x20) == (uint8_t)small);
}

/* The end of a contraction behind the apostrophe at `at`; NULL: there is none. */
static const uint8_t *contraction(const uint8_t *at, const uint8_t *end, bool any_case)
{
    static const char *const short_ones = "stmd", *const long_ones[] = {"re", "ve", "ll"};
    const uint8_t *next = at + 1;
    size_t left = (size_t)(end - next);
    for (const char *c = short_ones; left >= 1 && *c; c++)
        if (equals(*next, *c, any_case))
            return next + 1;
    for (size_t i = 0; left >= 2 && i < sizeof long_ones / sizeof *long_ones; i++)
        if (equals(next[0], long_ones[i][0], any_case) &&
            equals(next[1], long_ones[i][1], any_case))
            return next + 2;
    bool is_long_s = any_case && left >= 2 && next[0] == 0xC5 && next[1] == 0xBF; /* U+017F */
    return is_long_s ? next + 2 : NULL;
}

/* \s+(?!\S)|\s+ */
static const uint8_t *white_space(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *stop = skip(at, end, SLI_SPACE), *last = stop;
    if (stop == end)
        return stop;
    do /* back to where the last character begins */
        last--;
    while ((*last & 0xC0) == 0x80);
    return last > at ? last : stop;
}

static const uint8_t *split_gpt2(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *found = *at == '\'' ? contraction(at, end, false) : NULL;
    if (found)
        return found;
    const uint8_t *word = *at == ' ' && at + 1 < end ? at + 1 : at, *next = word;
    unsigned kind = next_kind(&next, end);
    if (kind == SLI_SPACE)
        return white_space(at, end);
    unsigned kinds = kind & SLI_LETTER ? SLI_LETTER : kind == SLI_NUMBER ? SLI_NUMBER : OTHERS;
    return skip(next, end, kinds);
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static const uint8_t *lines_or_white_space(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *stop = skip(at, end, SLI_SPACE);
    while (stop > at && !is_line_end(stop - 1, end))
        stop--;
    return stop > at ? stop : white_space(at, end);
}

/*  ?[kinds]+[\r\n]*, or where it has slashes  ?[kinds]+[\r\n/]*; NULL: there is none. */
static const uint8_t *others(const uint8_t *at, const uint8_t *end, unsigned kinds,
                             bool has_slashes)
{
    const uint8_t *first = *at == ' ' ? at + 1 : at, *stop = skip(first, end, kinds);
    if (stop == first)
        return NULL;
    while (is_line_end(stop, end) || (has_slashes && stop < end && *stop == '/'))
        stop++;
    return stop;
}

/* What differs between cl100k, qwen2 and qwen3.5. */
typedef struct word_rules {
    size_t most_digits;
    unsigned letters, others;
} word_rules;

static const uint8_t *split_by_rules(const uint8_t *at, const uint8_t *end, word_rules rules)
{
    const uint8_t *found = *at == '\'' ? contraction(at, end, true) : NULL, *next = at;
    if (found)
        return found;
    unsigned kind = next_kind(&next, end);
    if (kind == SLI_NUMBER)
        return skip_digits(at, end, rules.most_digits);
    if ((kind & rules.letters) || (!is_line_end(at, end) && is_at(next, end, rules.letters)))
        return skip(next, end, rules.letters);
    found = others(at, end, rules.others, false);
    return found ? found : lines_or_white_space(at, end);
}

static const uint8_t *split_cl100k(const uint8_t *at, const uint8_t *end)
{
    return split_by_rules(at, end, (word_rules){3, SLI_LETTER, OTHERS});
}

static const uint8_t *split_qwen2(const uint8_t *at, const uint8_t *end)
{
    return split_by_rules(at, end, (word_rules){1, SLI_LETTER, OTHERS});
}

static const uint8_t *split_qwen3_5(const uint8_t *at, const uint8_t *end)
{
    return split_by_rules(at, end, (word_rules){1, SLI_LETTER | SLI_MARK, SLI_OTHER});
}

/* U*L+, else U+L*; NULL: there is neither. Where no L is behind the U, the regex goes back to the
 * last of them that is also an L. */
static const uint8_t *cased_word(const uint8_t *at, const uint8_t *end)
{
    enum { BOTH = SLI_CASELESS | SLI_MARK };
    const uint8_t *stop = at, *last_of_both = NULL;
    unsigned kind = 0;
    for (const uint8_t *next = at; next < end; stop = next) {
        kind = next_kind(&next, end);
        if ((kind & (SLI_UPPER | BOTH)) == 0)
            break;
        if (kind & BOTH)
            last_of_both = next;
    }
    if (stop < end && kind == SLI_LOWER)
        return skip(stop, end, SLI_LOWER | BOTH);
    if (last_of_both)
        return last_of_both;
    return stop > at ? stop : NULL;
}

static const uint8_t *split_o200k(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *next = at;
    unsigned kind = next_kind(&next, end);
    if (kind == SLI_NUMBER)
        return skip_digits(at, end, 3);
    /* A mark before a word is of U and L as well, and then gives the same end. */
    const uint8_t *word = kind & (SLI_LETTER | SLI_MARK) ? at : next,
                  *found = is_line_end(at, end) ? NULL : cased_word(word, end);
    if (found) {
        const uint8_t *suffix =
            found < end && *found == '\'' ? contraction(found, end, true) : NULL;
        return suffix ? suffix : found;
    }
    found = others(at, end, OTHERS, true);
    return found ? found : lines_or_white_space(at, end);
}

/* SmolLM: every digit is a piece, and GPT-2's pattern splits what is between them. */
static const uint8_t *split_smollm(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *next = at;
    unsigned kind = next_kind(&next, end);
    if (kind == SLI_NUMBER)
        return next;
    if (kind == SLI_SPACE) {
        const uint8_t *stop = skip(at, end, SLI_SPACE);
        if (is_at(stop, end, SLI_NUMBER))
            return stop;
    }
    return split_gpt2(at, end);
}

bool sli_is_white_space(uint32_t code)
{
    return kind_of(code) == SLI_SPACE;
}

bool sli_is_letter(uint32_t code)
{
    return (kind_of(code) & SLI_LETTER) != 0;
}

/* ---- Names -------------------------------------------------------------------------------- */

const char *const sl_splitters[] = {"gpt2", "smollm", "cl100k", "qwen2", "qwen3.5", "o200k", NULL};
const char sli_splitter_names[] = "gpt2, smollm, cl100k, qwen2, qwen3.5, o200k";

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BLANKS       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ENDS         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS
#define PREFIX       "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const sli_splitter splitters[] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     split_gpt2, false},
    {"smollm", NULL, split_smollm, false},
    {"cl100k", CONTRACTIONS "|" PREFIX "\\p{L}+|\\p{N}{1,3}" ENDS, split_cl100k, false},
    {"qwen2", CONTRACTIONS "|" PREFIX "\\p{L}+|\\p{N}" ENDS, split_qwen2, true},
    {"qwen3.5",
     CONTRACTIONS "|" PREFIX "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BLANKS,
     split_qwen3_5, true},
    {"o200k",
     PREFIX UPPER "*" LOWER "+" CONTRACTIONS "?|" PREFIX UPPER "+" LOWER "*" CONTRACTIONS
                  "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" BLANKS,
     split_o200k, false},
};
enum { SPLITTERS = sizeof splitters / sizeof *splitters };

const sli_splitter *sli_splitter_find(const char *name)
{
    for (int i = 0; i < SPLITTERS; i++)
        if (strcmp(name, splitters[i].name) == 0)
            return &splitters[i];
    return NULL;
}

const sli_splitter *sli_splitter_of_pattern(const char *pattern, bool composes)
{
    for (int i = 0; i < SPLITTERS; i++)
        if (splitters[i].pattern && strcmp(pattern, splitters[i].pattern) == 0 &&
            splitters[i].composes == composes)
            return &splitters[i];
    return NULL;
}
