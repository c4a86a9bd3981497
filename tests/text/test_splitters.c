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

static void qwen3_5_has_marks_in_words(void **state)
{
    expect_pieces("qwen3.5", "a\xCC\x81z 12 it'S", "a\xCC\x81z| |1|2| it|'S|");
    expect_pieces("qwen3.5", "!!\xCC\x81", "!!|\xCC\x81|");
    expect_pieces("qwen2", "!!\xCC\x81", "!!\xCC\x81|");
    expect_pieces("qwen3.5", " \xCC\x81\n!\n", " \xCC\x81|\n|!\n|");
}

static void o200k_splits_by_case(void **state)
{
    expect_pieces("o200k", "camelCase HTTPServer", "camel|Case| HTTPServer|");
    expect_pieces("o200k", "xY XYZ", "x|Y| XYZ|");
    expect_pieces("o200k", "it's IT'LL x'\xC5\xBF '", "it's| IT'LL| x'\xC5\xBF| '|");
    expect_pieces("o200k", "12345 (ab)//\n/ c", "123|45| (|ab|)//\n/| c|");
    /* What has no case is of both classes: the regex goes back to it where no small letter comes.
     */
    expect_pieces("o200k", "\xE6\x97\xA5XY", "\xE6\x97\xA5|XY|");
    expect_pieces("o200k", "\xE6\x97\xA5XYz", "\xE6\x97\xA5XYz|");
    expect_pieces("o200k", "X\xCC\x81Y", "X\xCC\x81|Y|");
    expect_pieces("o200k", "\xCC\x81XY!\xCC\x81", "\xCC\x81|XY|!\xCC\x81|");
    expect_pieces("o200k", "a\n\n  b", "a|\n\n| | b|");
}

static void smollm_has_digits_apart(void **state)
{
    expect_pieces("smollm", "a 12  3 b", "a| |1|2|  |3| b|");
    expect_pieces("smollm", " \n1\xC2\xBD'll", " \n|1|\xC2\xBD|'ll|");
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
    enum { RUNS = sizeof sli_character_runs / sizeof *sli_character_runs, END = 0x110000 };
    uint32_t counts[SLI_SPACE + 1] = {0};
    assert_int_equal(sli_character_runs[0] >> 8, 0);
    for (size_t i = 0; i < RUNS; i++) {
        uint32_t first = sli_character_runs[i] >> 8,
                 next = i + 1 < RUNS ? sli_character_runs[i + 1] >> 8 : END;
        assert_true(next > first);
        counts[sli_character_runs[i] & 0xFF] += next - first;
    }
    assert_int_equal(counts[SLI_UPPER] + counts[SLI_LOWER] + counts[SLI_CASELESS], 141028);
    assert_int_equal(counts[SLI_NUMBER], 1911);
    assert_int_equal(counts[SLI_SPACE], 25);
}

int splitters_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_leave_the_last_white_space_to_the_word),
        cmocka_unit_test(gpt2_splits_by_kinds),
        cmocka_unit_test(cl100k_splits_by_kinds),
        cmocka_unit_test(qwen2_splits_as_cl100k_but_for_digits),
        cmocka_unit_test(qwen3_5_has_marks_in_words),
        cmocka_unit_test(o200k_splits_by_case),
        cmocka_unit_test(smollm_has_digits_apart),
        cmocka_unit_test(contractions_have_the_pattern_s_case),
        cmocka_unit_test(names_are_those_of_the_list),
        cmocka_unit_test(tables_have_unicode_16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
