/* The patterns, in the notation of Rust's and Python's regex; of the alternatives the first that
 * matches is taken:
 *
 *   gpt2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   cl100k   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 *            ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+      (" ?" begins this line)
 *   qwen2    as cl100k with \p{N}, over the text's NFC
 *   smollm   \p{N}, and gpt2 for what is between
 *
 * \s+(?!\S) leaves the last character of white space to the word behind it. */
#include "text/splitters.h"

#include "sluice/app/text.h"
#include "text/unicode_tables.h"

#include <string.h>
#include <unistr.h>

/* ---- Characters --------------------------------------------------------------------------- */

static sli_character find_range(uint32_t code)
{
    size_t low = 0, high = sizeof sli_character_ranges / sizeof *sli_character_ranges;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sli_character_ranges[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    const sli_character_range *range = &sli_character_ranges[low];
    return low < sizeof sli_character_ranges / sizeof *sli_character_ranges && code >= range->first
               ? range->is
               : SLI_OTHER;
}

static sli_character ascii_kind(uint8_t c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return SLI_LETTER;
    if (c >= '0' && c <= '9')
        return SLI_NUMBER;
    return c == ' ' || (c >= '\t' && c <= '\r') ? SLI_SPACE : SLI_OTHER;
}

/* Of the character at `*at`, which moves behind it. */
static sli_character next_kind(const uint8_t **at, const uint8_t *end)
{
    if (**at < 0x80)
        return ascii_kind(*(*at)++);
    ucs4_t code;
    *at += u8_mbtouc_unsafe(&code, *at, (size_t)(end - *at));
    return find_range(code);
}

/* Whether a character of that kind is at `at`. */
static bool is_at(const uint8_t *at, const uint8_t *end, sli_character kind)
{
    return at < end && next_kind(&at, end) == kind;
}

/* The end of the run of such characters, at most `most`, at `at`. */
static const uint8_t *skip(const uint8_t *at, const uint8_t *end, sli_character kind, size_t most)
{
    for (const uint8_t *next = at; most > 0 && next < end; at = next, most--)
        if (next_kind(&next, end) != kind)
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
    const uint8_t *stop = skip(at, end, SLI_SPACE, SIZE_MAX), *last = stop;
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
    sli_character kind = next_kind(&next, end);
    return kind == SLI_SPACE ? white_space(at, end) : skip(next, end, kind, SIZE_MAX);
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static const uint8_t *lines_or_white_space(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *stop = skip(at, end, SLI_SPACE, SIZE_MAX);
    while (stop > at && !is_line_end(stop - 1, end))
        stop--;
    return stop > at ? stop : white_space(at, end);
}

/* cl100k's and qwen2's, which differ in how many digits a piece has. */
static const uint8_t *split_by_digits(const uint8_t *at, const uint8_t *end, size_t most_digits)
{
    const uint8_t *found = *at == '\'' ? contraction(at, end, true) : NULL, *next = at;
    if (found)
        return found;
    sli_character kind = next_kind(&next, end);
    if (kind == SLI_NUMBER)
        return skip(at, end, SLI_NUMBER, most_digits);
    if (kind == SLI_LETTER || (!is_line_end(at, end) && is_at(next, end, SLI_LETTER)))
        return skip(next, end, SLI_LETTER, SIZE_MAX);
    if (kind == SLI_OTHER || (*at == ' ' && is_at(next, end, SLI_OTHER))) {
        next = skip(next, end, SLI_OTHER, SIZE_MAX);
        while (is_line_end(next, end))
            next++;
        return next;
    }
    return lines_or_white_space(at, end);
}

static const uint8_t *split_cl100k(const uint8_t *at, const uint8_t *end)
{
    return split_by_digits(at, end, 3);
}

static const uint8_t *split_qwen2(const uint8_t *at, const uint8_t *end)
{
    return split_by_digits(at, end, 1);
}

/* SmolLM: every digit is a piece, and GPT-2's pattern splits what is between them. */
static const uint8_t *split_smollm(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *next = at;
    sli_character kind = next_kind(&next, end);
    if (kind == SLI_NUMBER)
        return next;
    if (kind == SLI_SPACE) {
        const uint8_t *stop = skip(at, end, SLI_SPACE, SIZE_MAX);
        if (is_at(stop, end, SLI_NUMBER))
            return stop;
    }
    return split_gpt2(at, end);
}

bool sli_is_white_space(uint32_t code)
{
    return code < 0x80 ? ascii_kind((uint8_t)code) == SLI_SPACE : find_range(code) == SLI_SPACE;
}

/* ---- Names -------------------------------------------------------------------------------- */

const char *const sl_splitters[] = {"gpt2", "smollm", "cl100k", "qwen2", NULL};
const char sli_splitter_names[] = "gpt2, smollm, cl100k, qwen2";

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define OTHERS      "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const sli_splitter splitters[] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     split_gpt2, false},
    {"smollm", NULL, split_smollm, false},
    {"cl100k", CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" OTHERS, split_cl100k,
     false},
    {"qwen2", CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" OTHERS, split_qwen2, true},
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
