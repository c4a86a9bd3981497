#include "text/splitters.h"

#include "support/check.h"
#include "text/unicode_tables.h"

#include <stdio.h>
#include <string.h>

/* `expected`: the pieces, each with a | behind it. */
static void expect_pieces(const char *splitter, const char *text, const char *expected)
{
    const sli_splitter *split = sli_splitter_find(splitter);
    const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
    char pieces[512] = "";
    size_t used = 0;
    assert_non_null(split);
    for (const uint8_t *next; at < end; at = next) {
        next = split->next(at, end);
        assert_true(next > at && next <= end);
        used += (size_t)snprintf(pieces + used, sizeof pieces - used, "%.*s|", (int)(next - at),
                                 (const char *)at);
    }
    assert_string_equal(pieces, expected);
}

static void both_leave_the_last_white_space_to_the_word(void **state)
{
    static const char *const names[] = {"gpt2", "cl100k"};
    for (int i = 0; i < 2; i++) {
        expect_pieces(names[i], "a b", "a| b|");
        expect_pieces(names[i], "a   b", "a|  | b|");
        expect_pieces(names[i], "a  ", "a|  |");
        expect_pieces(names[i], "a \xC2\xA0!", "a| |\xC2\xA0|!|");
        expect_pieces(names[i], " \xE3\x80\x80", " \xE3\x80\x80|"); /* U+3000 */
    }
}

static void gpt2_splits_by_kinds(void **state)
{
    expect_pieces("gpt2", "12345 67", "12345| 67|");
    expect_pieces("gpt2", "(a) ((b))", "(|a|)| ((|b|))|");
    expect_pieces("gpt2", "a\t\tb", "a|\t|\t|b|");
    expect_pieces("gpt2", "a\n\nb", "a|\n|\n|b|");
    expect_pieces("gpt2", "a\n b", "a|\n| b|");
    expect_pieces("gpt2", "\xC2\xBD\xE2\x85\xA7x", "\xC2\xBD\xE2\x85\xA7|x|"); /* 1/2, Ⅷ */
    expect_pieces("gpt2",
                  "a\xE1\xA0\x8E"
                  "b",
                  "a|\xE1\xA0\x8E|b|");                /* U+180E is no space */
    expect_pieces("gpt2", "a\xCC\x81", "a|\xCC\x81|"); /* nor a mark a letter */
}

static void cl100k_splits_by_kinds(void **state)
{
    expect_pieces("cl100k", "1234567 89", "123|456|7| |89|");
    expect_pieces("cl100k", "(a) ((b))", "(a|)| ((|b|))|");
    expect_pieces("cl100k", "a\t\tb", "a|\t|\tb|");
    expect_pieces("cl100k", "a \n\n  b", "a| \n\n| | b|");
    expect_pieces("cl100k", "a\n \n", "a|\n \n|");
    expect_pieces("cl100k", "a!\r\n\nb", "a|!\r\n\n|b|");
    expect_pieces("cl100k", "\nb\r", "\n|b|\r|");
}

static void qwen2_splits_as_cl100k_but_for_digits(void **state)
{
    expect_pieces("qwen2", "1234 (a) it'S\n \nb", "1|2|3|4| (|a|)| it|'S|\n \n|b|");
}

static void contractions_have_the_pattern_s_case(void **state)
{
    expect_pieces("gpt2", "it's we'll I'VE '", "it|'s| we|'ll| I|'|VE| '|");
    expect_pieces("cl100k", "it'S we'Ll I'VE '", "it|'S| we|'Ll| I|'VE| '|");
    expect_pieces("gpt2", "x'r", "x|'|r|");
    expect_pieces("cl100k", "x'r", "x|'r|");
    expect_pieces("gpt2", "'\xC5\xBFx", "'|\xC5\xBFx|");
    expect_pieces("cl100k", "'\xC5\xBFx", "'\xC5\xBF|x|"); /* U+017F is an s of (?i) */
    expect_pieces("cl100k", " 'Sx", " '|Sx|");             /* the space takes the apostrophe */
    expect_pieces("gpt2", "it\xE2\x80\x99s", "it|\xE2\x80\x99|s|");
}

static void names_are_those_of_the_list(void **state)
{
    assert_null(sli_splitter_find("GPT2"));
    assert_null(sli_splitter_find(""));
}

/* As tokenizers 0.23.3 and tiktoken 0.14 have them. */
static void tables_have_unicode_16(void **state)
{
    static const uint32_t expected[] = {
        [SLI_LETTER] = 141028, [SLI_NUMBER] = 1911, [SLI_SPACE] = 25};
    uint32_t counts[SLI_SPACE + 1] = {0}, least = 0;
    for (size_t i = 0; i < sizeof sli_character_ranges / sizeof *sli_character_ranges; i++) {
        const sli_character_range *range = &sli_character_ranges[i];
        assert_true(range->first >= least && range->last >= range->first);
        least = range->last + 1;
        counts[range->is] += range->last - range->first + 1;
    }
    for (int kind = SLI_LETTER; kind <= SLI_SPACE; kind++)
        assert_int_equal(counts[kind], expected[kind]);
}

int splitters_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_leave_the_last_white_space_to_the_word),
        cmocka_unit_test(gpt2_splits_by_kinds),
        cmocka_unit_test(cl100k_splits_by_kinds),
        cmocka_unit_test(qwen2_splits_as_cl100k_but_for_digits),
        cmocka_unit_test(contractions_have_the_pattern_s_case),
        cmocka_unit_test(names_are_those_of_the_list),
        cmocka_unit_test(tables_have_unicode_16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
