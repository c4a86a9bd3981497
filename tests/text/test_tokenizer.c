#define _GNU_SOURCE /* open_memstream, popen */

#include "io/scratch.h"

#include "sluice/app/text.h"
#include "support/check.h"

#include <time.h>
#include <unictype.h>
#include <unistr.h>

/* ---- Lines whose tokens are written out -------------------------------------------------- */

/* Appends the line's tokens to a stream, each with `after` behind it. */
static void write_tokens(sl_tokenizer *tokenizer, const char *line, size_t bytes, char after,
                         FILE *to)
{
    sl_token token;
    check_ok(sl_tokenizer_start(tokenizer, line, bytes));
    while (sl_tokenizer_next(tokenizer, &token)) {
        assert_true(token.bytes > 0);
        fwrite(token.text, 1, token.bytes, to);
        fputc(after, to);
    }
    assert_false(sl_tokenizer_next(tokenizer, &token));
}

/* `expected`: the tokens, each with a | behind it. */
static void expect_tokens(const char *line, size_t bytes, const char *expected)
{
    SCOPED(sl_tokenizer) *tokenizer = NULL;
    FREED char *text = NULL;
    size_t text_bytes;
    FILE *stream = open_memstream(&text, &text_bytes);
    assert_non_null(stream);
    check_ok(sl_tokenizer_create(&tokenizer));
    write_tokens(tokenizer, line, bytes, '|', stream);
    assert_int_equal(fclose(stream), 0);
    assert_string_equal(text, expected);
}

typedef struct line_case {
    const char *line, *expected;
} line_case;

static void expect_cases(const line_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        expect_tokens(cases[i].line, strlen(cases[i].line), cases[i].expected);
}
#define EXPECT_CASES(cases) expect_cases(cases, sizeof(cases) / sizeof *(cases))

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

static void line_is_lowered_and_cut_at_white_space_and_symbols(void **state)
{
    static const line_case cases[] = {
        {"", ""},
        {" \t\r\n\v\f\x1C\x1D\x1E\x1F ", ""},
        {"One TWO\tthree", "one|two|three|"},
        {"U.S.A. 1,000", "u|.|s|.|a|.|1|,|000|"},
        {"don't", "don|'|t|"},
        {"@,@", "@|,|@|"},
        {"(what?!)", "(|what|?|!|)|"},
        {"a;b:c", "a|b|c|"},
        {";:;", ""},
        {"<unk> @-@ = =", "<unk>|@-@|=|=|"},
        {"[\\]^_`{|}~/*&%$#@+-=", "[\\]^_`{|}~/*&%$#@+-=|"},
    };
    EXPECT_CASES(cases);
}

static void quote_is_removed_and_joins_its_neighbours(void **state)
{
    static const line_case cases[] = {
        {"\"quoted\"", "quoted|"},
        {"a\"b", "ab|"},
        {"a \" b", "a|b|"},
        {"\"\"\"", ""},
    };
    EXPECT_CASES(cases);
}

static void line_break_is_white_space_once_quotes_are_gone(void **state)
{
    static const line_case cases[] = {
        {"a<br />b", "a|b|"},
        {"a<BR />b", "a|b|"},
        {"<br /><br />", ""},
        {"<b\"r /\">", ""},
        {"<<br />>", "<|>|"},
        {"<br/>", "<br/>|"},
        {"<br  />", "<br|/>|"},
        {"<br\t/>", "<br|/>|"},
        {"<br\xC2\xA0/>", "<br|/>|"},
        {"<br.", "<br|.|"},
        {"<br /", "<br|/|"},
        {"<br ", "<br|"},
        {"<", "<|"},
    };
    EXPECT_CASES(cases);
}

static void zero_byte_is_replaced(void **state)
{
    expect_tokens("a\0B c\0", 6, "a" REPLACEMENT "b|c" REPLACEMENT "|");
}

static void letter_beyond_ascii_is_lowered_as_python_does(void **state)
{
    static const line_case cases[] = {
        {"\xC3\x84\xD0\x96\xF0\x90\x90\x80", "\xC3\xA4\xD0\xB6\xF0\x90\x90\xA8|"},
        {"\xC4\xB0", "i\xCC\x87|"},                /* I with a dot: two characters */
        {"\xE2\x84\xAA", "k|"},                    /* Kelvin sign: ASCII */
        {"\xC8\xBA", "\xE2\xB1\xA5|"},             /* grows from two bytes to three */
        {"\xCE\xA3", "\xCF\x83|"},                 /* sigma by itself: not final */
        {"\xCE\x91\xCE\xA3", "\xCE\xB1\xCF\x82|"}, /* at the end of a word: final */
        {"\xCE\x91\xCE\xA3\xCE\x91", "\xCE\xB1\xCF\x83\xCE\xB1|"},
        {"a\xCE\xA3 b", "a\xCF\x82|b|"},
        {"a\xCE\xA3.b", "a\xCF\x83|.|b|"}, /* a full stop is skipped */
        {"a.\xCE\xA3", "a|.|\xCF\x82|"},
        {"a\xCE\xA3\"b", "a\xCF\x82"
                         "b|"}, /* a quote is not */
        {"a\xCC\x81\xCE\xA3\xCC\x81", "a\xCC\x81\xCF\x82\xCC\x81|"},
        {"a\xCE\xA3\xFF", "a\xCF\x82" REPLACEMENT "|"},
    };
    EXPECT_CASES(cases);
}

static void white_space_beyond_ascii_separates_tokens(void **state)
{
    static const char *const spaces[] = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
                                         "\xE2\x80\x80", "\xE2\x80\x8A", "\xE2\x80\xA8",
                                         "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F",
                                         "\xE3\x80\x80"};
    static const char *const others[] = {"\xE2\x80\x8B", "\xE1\xA0\x8E", "\xEF\xBB\xBF"};
    char line[16], expected[20];
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        snprintf(line, sizeof line, "%sa%sb%s", spaces[i], spaces[i], spaces[i]);
        expect_tokens(line, strlen(line), "a|b|");
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(line, sizeof line, "a%sb", others[i]);
        snprintf(expected, sizeof expected, "%s|", line);
        expect_tokens(line, strlen(line), expected);
    }
}

/* As by Python's errors="replace": one U+FFFD for each beginning of a character. */
static void bytes_that_are_no_utf8_are_replaced(void **state)
{
    static const struct {
        const char *bytes;
        int replacements;
    } invalid[] = {{"\xFF", 1},         {"\x80", 1},         {"\xC3", 1},
                   {"\xE2\x80", 1},     {"\xC0\xAF", 2},     {"\xC2", 1},
                   {"\xF0\x9F\x98", 1}, {"\xED\xA0\x80", 3}, {"\xF4\x90\x80\x80", 4},
                   {"\xE0\x80\x80", 3}, {"\xC2\xC2", 2},     {"\xE2\xC2", 2}};
    static const char four[] = REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT;
    char line[32], expected[64];
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        int bytes = invalid[i].replacements * (int)strlen(REPLACEMENT);
        snprintf(line, sizeof line, "A%s %sB", invalid[i].bytes, invalid[i].bytes);
        snprintf(expected, sizeof expected, "a%.*s|%.*sb|", bytes, four, bytes, four);
        expect_tokens(line, strlen(line), expected);
    }
    expect_tokens("\xC2\"\x85", 3, REPLACEMENT REPLACEMENT "|"); /* no white space */
}

static void line_longer_than_the_one_before_is_taken_whole(void **state)
{
    enum { LETTERS = 100000 };
    FREED char *line = malloc(2 * LETTERS);
    sl_tokenizer *tokenizer;
    sl_token token;
    assert_non_null(line);
    check_ok(sl_tokenizer_create(&tokenizer));
    assert_false(sl_tokenizer_next(tokenizer, &token)); /* not started: an empty line */
    for (size_t letters = 1; letters <= LETTERS; letters *= 10) {
        for (size_t i = 0; i < letters; i++)
            memcpy(line + 2 * i, "\xC8\xBA", 2); /* every letter grows */
        check_ok(sl_tokenizer_start(tokenizer, line, 2 * letters));
        assert_true(sl_tokenizer_next(tokenizer, &token));
        assert_int_equal(token.bytes, 3 * letters);
    }
    sl_tokenizer_destroy(&tokenizer);
}

/* ---- Against Python ---------------------------------------------------------------------- */

/* Python's tables and libunistring's may be of different Unicode versions. Text is made of code
 * points that both know: what a version assigns, later ones lower alike. */
typedef struct alphabet {
    uint32_t *codes;
    size_t count;
} alphabet;

static FILE *start_python(const char *arguments)
{
    char command[1024];
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(command, sizeof command,
             "/usr/bin/python3 '%s/tests/text/basic_english_reference.py' %s",
             source ? source : ".", arguments);
    FILE *python = popen(command, "r");
    assert_non_null(python);
    return python;
}

static alphabet read_alphabet(void)
{
    alphabet made = {malloc(0x110000 * sizeof(uint32_t)), 0};
    unsigned first, last;
    assert_non_null(made.codes);
    FILE *python = start_python("assigned");
    while (fscanf(python, "%X %X", &first, &last) == 2)
        for (unsigned code = first; code <= last; code++)
            if (!uc_is_general_category(code, UC_UNASSIGNED))
                made.codes[made.count++] = code;
    assert_int_equal(pclose(python), 0);
    assert_true(made.count > 100000);
    return made;
}

static void need_python(void)
{
    if (access("/usr/bin/python3", X_OK) == 0)
        return;
    print_message("skipped: no /usr/bin/python3 to compare with\n");
    skip();
}

/* Holds the tokens of every line of a text against Python's. */
static void expect_as_python(scratch *dir, const char *text, size_t text_bytes)
{
    FREED char *ours = NULL;
    size_t ours_bytes, got = 0;
    FILE *stream = open_memstream(&ours, &ours_bytes);
    sl_tokenizer *tokenizer;
    assert_non_null(stream);
    check_ok(sl_tokenizer_create(&tokenizer));
    for (const char *line = text, *end; line < text + text_bytes; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + text_bytes - line));
        write_tokens(tokenizer, line, (size_t)(end - line), '\n', stream);
        fputc('\n', stream);
    }
    sl_tokenizer_destroy(&tokenizer);
    assert_int_equal(fclose(stream), 0);

    char arguments[600];
    write_file(scratch_path(dir, "lines"), text, text_bytes);
    snprintf(arguments, sizeof arguments, "tokens '%s'", dir->path);
    FILE *python = start_python(arguments);
    FREED char *theirs = malloc(ours_bytes + 2); /* more than ours would show */
    assert_non_null(theirs);
    for (size_t more; (more = fread(theirs + got, 1, ours_bytes + 1 - got, python)) > 0;)
        got += more;
    pclose(python);
    for (size_t i = 0; i < ours_bytes && i < got; i++)
        if (ours[i] != theirs[i])
            fail_msg("byte %zu: ours %.30s, Python's %.30s", i, ours + (i > 15 ? i - 15 : 0),
                     theirs + (i > 15 ? i - 15 : 0));
    assert_int_equal(ours_bytes, got);
}

static void write_character(uint32_t code, FILE *to)
{
    uint8_t bytes[4];
    int length = u8_uctomb(bytes, code, 4);
    assert_true(length > 0);
    fwrite(bytes, 1, (size_t)length, to);
}

/* Each character between letters, at a sigma's sides, and by itself. */
static void every_character_gives_pythons_tokens(void **state)
{
    need_python();
    alphabet all = read_alphabet();
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    for (size_t i = 0; i < all.count; i++) {
        if (all.codes[i] == '\n')
            continue;
        fputc('A', stream);
        write_character(all.codes[i], stream);
        fputs("B\xCE\xA3", stream); /* sigma */
        write_character(all.codes[i], stream);
        fputs("C ", stream);
        write_character(all.codes[i], stream);
        fputs("\xCE\xA3 ", stream);
        write_character(all.codes[i], stream);
        fputc('\n', stream);
    }
    assert_int_equal(fclose(stream), 0);
    expect_as_python(*state, text, bytes);
    free(text);
    free(all.codes);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Mostly what the tokenizer treats in its own way. */
static void write_random_piece(const alphabet *all, uint64_t *random, FILE *to)
{
    static const char *const pieces[] = {
        "'",        "\"",       ".",        "<br />",   ",",
        "(",        ")",        "!",        "?",        ";",
        ":",        " ",        "  ",       "<",        "<br",
        "/>",       "\t",       "\r",       "\x1F",     "A",
        "z",        "Word",     "\xC2\x85", "\xC2\xA0", "\xE3\x80\x80",
        "\xCE\xA3", "\xCE\x91", "\xCC\x81", "\xC4\xB0", "\xC2\xAD",
        "\xFF",     "\xC2",     "\xE2\x80", "\x85",     "<b\"r />"};
    uint32_t kind = next_random(random) % 8;
    if (kind == 0)
        write_character(all->codes[next_random(random) % all->count], to);
    else if (kind == 1)
        write_character(all->codes[next_random(random) % 1200], to); /* Latin, Greek, Cyrillic … */
    else
        fputs(pieces[next_random(random) % (sizeof pieces / sizeof *pieces)], to);
}

static void random_lines_give_pythons_tokens(void **state)
{
    need_python();
    alphabet all = read_alphabet();
    uint64_t seed = (uint64_t)time(NULL), random = seed;
    print_message("seed %llu\n", (unsigned long long)seed);
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    for (int line = 0; line < 30000; line++) {
        for (uint32_t pieces = next_random(&random) % 24; pieces > 0; pieces--)
            write_random_piece(&all, &random, stream);
        fputc('\n', stream);
    }
    assert_int_equal(fclose(stream), 0);
    expect_as_python(*state, text, bytes);
    free(text);
    free(all.codes);
}

int tokenizer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_is_lowered_and_cut_at_white_space_and_symbols),
        cmocka_unit_test(quote_is_removed_and_joins_its_neighbours),
        cmocka_unit_test(line_break_is_white_space_once_quotes_are_gone),
        cmocka_unit_test(zero_byte_is_replaced),
        cmocka_unit_test(letter_beyond_ascii_is_lowered_as_python_does),
        cmocka_unit_test(white_space_beyond_ascii_separates_tokens),
        cmocka_unit_test(bytes_that_are_no_utf8_are_replaced),
        cmocka_unit_test(line_longer_than_the_one_before_is_taken_whole),
        cmocka_unit_test_setup_teardown(every_character_gives_pythons_tokens, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(random_lines_give_pythons_tokens, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
