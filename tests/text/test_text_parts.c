/* A text's ids, whole and cut: by parts that are encoded side by side, and by blocks of a file. */
#include "io/scratch.h"

#include "support/check.h"
#include "text/drawn_texts.h"
#include "text/rows.h"
#include "text/text_encoder.h"
#include "text/text_parts.h"
#include "text/token_writer.h"

static void expect_same(const sl_tokens *parts, const sl_tokens *whole)
{
    assert_int_equal(parts->count, whole->count);
    assert_int_equal(parts->line_count, whole->line_count);
    assert_int_equal(parts->invalid_bytes, whole->invalid_bytes);
    assert_memory_equal(parts->ids, whole->ids, (size_t)whole->count * sizeof *whole->ids);
}

/* The ids of all, from parts that are encoded side by side. */
static void check_parts(const sl_vocab *vocab, const char *text, size_t bytes, size_t part_bytes,
                        const sl_tokens *whole)
{
    sl_tokens parts;
    sli_text_encoder *encoder;
    check_ok(sli_text_encoder_create(vocab, part_bytes, 3, &encoder));
    for (int round = 0; round < 2; round++) { /* the second one remembers pieces of the first */
        check_ok(sli_text_encoder_run(encoder, text, bytes, false, &parts));
        expect_same(&parts, whole);
        sl_tokens_free(&parts);
    }
    sli_text_encoder_destroy(&encoder);
}

enum { PIECES = 400, MOST_DRAWN = 8 * PIECES };

/* A drawn text's ids, of the whole and by parts and blocks. */
static void check_cutting(scratch *dir, const sl_vocab *vocab, unsigned *seed)
{
    static char text[MOST_DRAWN];
    char from[600], to[600];
    snprintf(from, sizeof from, "%s", scratch_path(dir, "text"));
    snprintf(to, sizeof to, "%s", scratch_path(dir, "to.bin"));
    const char *texts[] = {from};
    sl_tokens whole;
    sl_tokens_written written;
    sli_token_file opened;
    size_t bytes = draw_text(seed, text, PIECES);
    FREED int32_t *ids = malloc(MOST_DRAWN * sizeof *ids);
    assert_non_null(ids);
    write_file(from, text, bytes);
    check_ok(sl_tokens_encode(vocab, text, bytes, false, &whole));
    check_parts(vocab, text, bytes, (size_t)test_draw(seed, 1, 60), &whole);
    const sli_tokens_limits limits = {.block_bytes = (uint64_t)test_draw(seed, 1, 60),
                                      .record_bytes = UINT64_MAX,
                                      .file_tokens = INT32_MAX};
    check_ok(sli_tokens_write(vocab, texts, 1, to, NULL, &limits, &written));
    assert_int_equal(written.tokens, whole.count);
    assert_int_equal(written.invalid_bytes, whole.invalid_bytes);
    check_ok(sli_token_file_open(to, SL_TOKENS_BY_HEADER, &opened));
    check_ok(sli_token_file_read(&opened, 0, whole.count, 1000, ids));
    assert_memory_equal(ids, whole.ids, (size_t)whole.count * sizeof *ids);
    sli_token_file_clear(&opened);
    sl_tokens_free(&whole);
}

/* The same tokenizer with an added token that any text means. */
static sl_vocab *with_added_token(const sl_vocab *plain, const char *content, const char *flag)
{
    char *printed, *list, *text = NULL;
    size_t bytes = 0;
    sl_vocab *made = NULL;
    check_ok(sli_vocab_print(plain, &printed));
    list = strstr(printed, "\"added_tokens\": [");
    assert_non_null(list);
    list += strlen("\"added_tokens\": [");
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    fprintf(to, "%.*s{\"id\": 267, \"content\": \"%s\", \"special\": false, \"%s\": true}%s",
            (int)(list - printed), printed, content, flag, list);
    fclose(to);
    check_ok(sli_vocab_parse(text, bytes, &made));
    free(text);
    free(printed);
    return made;
}

static const char with_blanks[] = "IAo= 264\nCiA= 265\nICA= 266\n";

static void texts_are_cut_where_no_token_lies_across(void **state)
{
    static const char *const added[][2] = {{"<tag>", "normalized"},   {"<tag>", "single_word"},
                                           {"<tag>", "lstrip"},       {"<tag>", "rstrip"},
                                           {"! <tag>", "normalized"}, {"a\\n", "single_word"}};
    unsigned seed = test_seed(1);
    for (int i = 0; sl_splitters[i]; i++) {
        SCOPED(sl_vocab) *vocab = make_vocab(sl_splitters[i], with_blanks);
        for (int round = 0; round < 30; round++)
            check_cutting(*state, vocab, &seed);
        for (size_t j = 0; j < sizeof added / sizeof *added; j++) {
            SCOPED(sl_vocab) *more = with_added_token(vocab, added[j][0], added[j][1]);
            for (int round = 0; round < 5; round++)
                check_cutting(*state, more, &seed);
        }
    }
}

/* A place is found in a text of any language, with any ends of lines, and beside an added token. */
static void texts_of_all_kinds_are_cut(void **state)
{
    static const char *const texts[] = {"one two", "  x = y\r\n",
                                        "\xD0\xB6\xD0\xB6 \xD0\xB6\xD0\xB6",
                                        "\xE4\xB8\xAD\xE4\xB8\xAD\n\xE4\xB8\xAD\xE4\xB8\xAD",
                                        "{\"a\": b, \"c\": d}"};
    for (int i = 0; sl_splitters[i]; i++) {
        SCOPED(sl_vocab) *plain = make_vocab(sl_splitters[i], with_blanks);
        SCOPED(sl_vocab) *more = with_added_token(plain, "<tag>", "normalized");
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
            assert_true(sli_text_last_cut(plain, texts[j], 0, strlen(texts[j])) > 0);
            assert_true(sli_text_last_cut(more, texts[j], 0, strlen(texts[j])) > 0);
        }
    }
}

int text_parts_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(texts_are_cut_where_no_token_lies_across, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(texts_of_all_kinds_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
