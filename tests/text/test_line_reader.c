#include "text/line_reader.h"

#include "io/scratch.h"

#include "support/check.h"

#include <time.h>

/* Holds the reader's lines against cutting the same text in memory. */
static void expect_lines(const char *path, const char *text, size_t text_bytes)
{
    sli_line_reader *reader;
    const char *line, *expected = text, *end = text + text_bytes;
    size_t bytes;
    int64_t count = 0;
    write_file(path, text, text_bytes);
    check_ok(sli_line_reader_open(path, &reader));
    assert_int_equal(sli_line_reader_file_bytes(reader), text_bytes);
    for (;;) {
        check_ok(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            break;
        assert_true(expected < end);
        const char *line_end = memchr(expected, '\n', (size_t)(end - expected));
        size_t expected_bytes = (size_t)((line_end ? line_end : end) - expected);
        assert_int_equal(bytes, expected_bytes);
        assert_memory_equal(line, expected, bytes);
        expected += bytes + (line_end ? 1 : 0);
        assert_int_equal(sli_line_reader_line_count(reader), ++count);
    }
    assert_true(expected == end);
    check_ok(sli_line_reader_next(reader, &line, &bytes)); /* stays at the end */
    assert_null(line);
    sli_line_reader_close(&reader);
    sli_line_reader_close(&reader);
}

static void lines_end_at_line_ends_and_at_the_files_end(void **state)
{
    char *path = scratch_path(*state, "text");
    expect_lines(path, "", 0);
    expect_lines(path, "\n", 1);
    expect_lines(path, "a", 1);
    expect_lines(path, "a\n", 2);
    expect_lines(path, "a\n\nbc", 5);
    expect_lines(path, "a\r\n\0\n", 5);
}

/* Line lengths around the block's size and its multiples, and short ones. */
static void lines_of_any_length_are_whole(void **state)
{
    enum { BYTES = 3 << 20, BLOCK = 1 << 18 };
    char *path = scratch_path(*state, "text"), *text = malloc(BYTES);
    uint64_t seed = (uint64_t)time(NULL), random = seed;
    print_message("seed %llu\n", (unsigned long long)seed);
    assert_non_null(text);
    for (int round = 0; round < 6; round++) {
        for (size_t i = 0; i < BYTES; i++)
            text[i] = (char)('a' + i % 26);
        for (size_t at = 0; at < BYTES;) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t draw = (uint32_t)(random >> 33);
            text[at] = '\n';
            at += draw % 3 == 0 ? BLOCK * (1 + draw % 2) - 2 + draw % 5 : 1 + draw % 50000;
        }
        expect_lines(path, text, BYTES - (size_t)round);
    }
    free(text);
}

static void file_that_cannot_be_opened_or_read_is_an_error(void **state)
{
    scratch *in = *state;
    sli_line_reader *reader;
    const char *line;
    size_t bytes;
    check_error(sli_line_reader_open(scratch_path(in, "missing"), &reader), SL_ERR_NOT_FOUND,
                "cannot be opened: No such file");
    assert_null(reader);
    check_error(sli_line_reader_open(in->directory, &reader), SL_ERR_IO,
                "expected a text file, got a directory");
    /* This process's memory opens, but nothing is mapped at its address 0. */
    check_ok(sli_line_reader_open("/proc/self/mem", &reader));
    check_error(sli_line_reader_next(reader, &line, &bytes), SL_ERR_IO,
                "/proc/self/mem: cannot be read: ");
    assert_null(line);
    sli_line_reader_close(&reader);
}

int line_reader_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(lines_end_at_line_ends_and_at_the_files_end),
        WITH_SCRATCH(lines_of_any_length_are_whole),
        WITH_SCRATCH(file_that_cannot_be_opened_or_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
