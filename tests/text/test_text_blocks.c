/* Reading a text file in blocks: where its lines begin, and where a block ends. */
#include "text/text_blocks.h"
#include "text/text_encoder.h"

#include "io/scratch.h"
#include "support/check.h"
#include "text/drawn_texts.h"
#include "text/tokens.h"

enum { AT_ONCE = 1 << 14 }; /* bytes in which an end of a line is looked for */

static uint64_t find_line(const sli_text_blocks *text, uint64_t from)
{
    uint64_t found = 0;
    check_ok(sli_text_blocks_find_line(text, from, &found));
    return found;
}

/* A line end as the last byte that is read at once, as the first of the next ones, and beside them.
 */
static void lines_are_found_across_reads(void **state)
{
    static char bytes[3 * AT_ONCE];
    char *path = scratch_path(*state, "text");
    for (int at = AT_ONCE - 2; at <= AT_ONCE + 2; at++) {
        sli_text_blocks text;
        memset(bytes, 'a', sizeof bytes);
        bytes[at] = '\n';
        write_file(path, bytes, sizeof bytes);
        check_ok(sli_text_blocks_open(path, &text));
        assert_int_equal(find_line(&text, 0), 0);
        for (int from = 1; from <= 3; from++)
            assert_int_equal(find_line(&text, (uint64_t)from), at + 1);
        assert_int_equal(find_line(&text, (uint64_t)at), at + 1);
        assert_int_equal(find_line(&text, (uint64_t)at + 1), at + 1); /* it begins there */
        assert_int_equal(find_line(&text, (uint64_t)at + 2), sizeof bytes);
        assert_int_equal(find_line(&text, sizeof bytes), sizeof bytes);
        assert_int_equal(find_line(&text, sizeof bytes + 5), sizeof bytes);
        sli_text_blocks_close(&text);
    }
}

/* Reads blocks of so many bytes; each ends where the whole text could be cut, and all are it. */
static void check_blocks(const sl_vocab *vocab, const char *path, const char *expected,
                         size_t expected_bytes, uint64_t block_bytes)
{
    sli_text_blocks text;
    char *block;
    size_t bytes, done = 0;
    check_ok(sli_text_blocks_open(path, &text));
    for (;;) {
        check_ok(sli_text_blocks_next(&text, vocab, block_bytes, &block, &bytes));
        if (bytes == 0)
            break;
        assert_true(done + bytes <= expected_bytes);
        assert_memory_equal(block, expected + done, bytes);
        free(block);
        done += bytes;
        assert_int_equal(sli_text_blocks_is_last(&text), done == expected_bytes);
    }
    assert_null(block);
    assert_int_equal(done, expected_bytes);
    sli_text_blocks_close(&text);
    sli_text_blocks_close(&text);
}

/* A word of many blocks has no place to cut: it is read on, and cut behind it. */
static void block_without_a_cut_grows(void **state)
{
    enum { WORD = 1000 };
    char bytes[2 * WORD + 20];
    char *path = scratch_path(*state, "text");
    SCOPED(sl_vocab) *vocab = make_vocab("gpt2", "");
    sli_text_blocks text;
    char *read;
    size_t count = 0;
    memset(bytes, 'a', sizeof bytes);
    memcpy(bytes + WORD, " b c d ", 7);
    write_file(path, bytes, sizeof bytes);
    for (uint64_t block = 1; block <= 9; block++)
        check_blocks(vocab, path, bytes, sizeof bytes, block);
    check_ok(sli_text_blocks_open(path, &text));
    check_ok(sli_text_blocks_next(&text, vocab, 7, &read, &count));
    free(read);
    assert_in_range(count, WORD, WORD + 7);
    assert_true(text.offset < WORD + 21); /* and no more was read */
    sli_text_blocks_close(&text);
}

static void empty_range_has_no_block(void **state)
{
    char *path = scratch_path(*state, "text");
    SCOPED(sl_vocab) *vocab = make_vocab("gpt2", "");
    sli_text_blocks text;
    char *block;
    size_t bytes = 1;
    write_file(path, "one two\nthree", 13);
    check_ok(sli_text_blocks_open(path, &text));
    text.offset = text.end = 8;
    check_ok(sli_text_blocks_next(&text, vocab, 4, &block, &bytes));
    assert_null(block);
    assert_int_equal(bytes, 0);
    text.end = 13;
    check_ok(sli_text_blocks_next(&text, vocab, 100, &block, &bytes));
    assert_int_equal(bytes, 5);
    assert_memory_equal(block, "three", 5);
    free(block);
    sli_text_blocks_close(&text);
}

/* The error tells of no more than it takes to know. */
static void file_of_another_kind_is_refused_early(void **state)
{
    enum { BYTES = SLI_TEXT_BLOCK_BYTES + SLI_TEXT_BLOCK_BYTES / 4 };
    char *path = scratch_path(*state, "text"), *bytes = malloc(BYTES);
    SCOPED(sl_vocab) *vocab = make_vocab("gpt2", "");
    sl_tokens tokens;
    assert_non_null(bytes);
    for (int i = 0; i < BYTES; i++)
        bytes[i] = "\xFF\xFF\xFF\xFF"
                   "a b "[i % 8];
    write_file(path, bytes, BYTES);
    free(bytes);
    check_error(sli_tokens_read(vocab, path, "T", sli_whole_text, 0, &tokens), SL_ERR_FORMAT,
                "T: expected text in UTF-8, but of its 5242880 bytes at least ");
    const char *number = strstr(sl_error_text(), "at least ");
    assert_non_null(number);
    assert_in_range(strtol(number + strlen("at least "), NULL, 10), BYTES / 3,
                    BYTES / 3 + SLI_TEXT_PART_BYTES);
}

int text_blocks_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_are_found_across_reads, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(block_without_a_cut_grows, scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(file_of_another_kind_is_refused_early, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(empty_range_has_no_block, scratch_create, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
