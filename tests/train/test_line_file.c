#include "io/scratch.h"
#include "support/check.h"
#include "train/line_file.h"

#include <fcntl.h>

static void check_content(const char *path, const char *expected)
{
    char content[64] = "";
    assert_int_equal(read_file(path, content, sizeof content - 1), strlen(expected));
    assert_string_equal(content, expected);
}

static void lines_are_added_to_what_is_there(void **state)
{
    sli_line_file file;
    char *path = scratch_path(*state, "lines");
    check_ok(sli_line_file_open(path, &file));
    assert_true(file.created);
    check_ok(sli_line_file_add(&file, "one\n", 4));
    sli_line_file_close(&file);
    check_ok(sli_line_file_open(path, &file));
    assert_false(file.created);
    sli_line_file_continue(&file); /* the last line has an end */
    check_ok(sli_line_file_add(&file, "two\n", 4));
    check_content(path, "one\ntwo\n");
    check_ok(sli_line_file_empty(&file));
    sli_line_file_continue(&file); /* there is none */
    check_content(path, "");
    check_ok(sli_line_file_add(&file, "three\n", 6));
    sli_line_file_close(&file);
    check_content(path, "three\n");
}

static void line_that_was_cut_off_is_ended(void **state)
{
    sli_line_file file;
    char *path = scratch_path(*state, "lines");
    write_file(path, "one\ntw", 6);
    check_ok(sli_line_file_open(path, &file));
    sli_line_file_continue(&file);
    check_content(path, "one\ntw"); /* what is only looked at stays as it is */
    check_ok(sli_line_file_add(&file, "three\n", 6));
    check_ok(sli_line_file_add(&file, "four\n", 5));
    sli_line_file_close(&file);
    check_content(path, "one\ntw\nthree\nfour\n");
}

static void pipe_takes_lines_and_has_none(void **state)
{
    sli_line_file file;
    char *path = scratch_path(*state, "pipe"), got[16] = "";
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    check_ok(sli_line_file_open(path, &file));
    check_ok(sli_line_file_empty(&file));
    sli_line_file_continue(&file);
    check_ok(sli_line_file_add(&file, "one\n", 4));
    sli_line_file_close(&file);
    assert_int_equal(read(reader, got, sizeof got), 4);
    assert_string_equal(got, "one\n");
    close(reader);
}

static void file_that_cannot_be_opened_has_the_systems_reason(void **state)
{
    (void)state;
    sli_line_file file;
    check_error(sli_line_file_open("/nowhere/lines", &file), SL_ERR_IO,
                "No such file or directory");
}

int line_file_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(lines_are_added_to_what_is_there),
        WITH_SCRATCH(line_that_was_cut_off_is_ended),
        WITH_SCRATCH(pipe_takes_lines_and_has_none),
        cmocka_unit_test(file_that_cannot_be_opened_has_the_systems_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
