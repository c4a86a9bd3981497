#include "core/error.h"
#include "support/check.h"

#include <errno.h>
#include <string.h>

static void error_sets_the_text_and_returns_the_code(void **state)
{
    assert_int_equal(sl_error(SL_ERR_INVALID, "chunks must be at least 1, got %d", 0),
                     SL_ERR_INVALID);
    assert_string_equal(sl_error_text(), "chunks must be at least 1, got 0");
}

static void error_may_quote_the_current_text(void **state)
{
    sl_error(SL_ERR_IO, "disk full");
    sl_error(SL_ERR_IO, "saving failed: %s", sl_error_text());
    assert_string_equal(sl_error_text(), "saving failed: disk full");
}

static void context_goes_before_the_text_and_leaves_success_alone(void **state)
{
    sl_error(SL_ERR_MEMORY, "no memory");
    assert_int_equal(sl_error_context(SL_ERR_MEMORY, "[stage %d] ", 1), SL_ERR_MEMORY);
    assert_string_equal(sl_error_text(), "[stage 1] no memory");
    assert_int_equal(sl_error_context(SL_OK, "[never] "), SL_OK);
    assert_string_equal(sl_error_text(), "[stage 1] no memory");
}

static void missing_memory_is_one_sentence(void **state)
{
    assert_int_equal(sli_no_memory("sl_x_create", "%d things", 3), SL_ERR_MEMORY);
    assert_string_equal(sl_error_text(), "sl_x_create: no memory for 3 things");
    assert_int_equal(sli_no_memory(NULL, "a thing"), SL_ERR_MEMORY);
    assert_string_equal(sl_error_text(), "no memory for a thing");
}

static void error_longer_than_the_buffer_is_cut(void **state)
{
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    sl_error(SL_ERR_INVALID, "%s", longer);
    assert_int_equal(strlen(sl_error_text()), 1023);
    sl_error_context(SL_ERR_INVALID, "[stage 1] ");
    assert_int_equal(strlen(sl_error_text()), 1023);
    assert_memory_equal(sl_error_text(), "[stage 1] x", 11);
}

/* What a terminal would obey is shown: ESC, line ends, DEL, C1 in both of its forms. */
static void error_quotes_no_control_characters(void **state)
{
    sl_error(SL_ERR_FORMAT, "tensor \"%s\"", "a\x1b[2J\n\x7f\x9b\xc2\x9bz");
    assert_string_equal(sl_error_text(), "tensor \"a\\x1b[2J\\x0a\\x7f\\x9b\\xc2\\x9bz\"");
    sl_error_context(SL_ERR_FORMAT, "fi\tle: ");
    assert_string_equal(sl_error_text(),
                        "fi\\x09le: tensor \"a\\x1b[2J\\x0a\\x7f\\x9b\\xc2\\x9bz\"");
}

static void added_lines_keep_their_ends(void **state)
{
    sli_error_copy copy;
    sl_error(SL_ERR_INVALID, "wrong\nname");
    sl_status status = sli_error_add_lines(SL_ERR_INVALID, "0F0 ...\n... 1F0\n");
    status = sl_error_context(status, "fi\nle: ");
    sli_error_save(&copy, status);
    sl_error(SL_ERR_IO, "another");
    assert_int_equal(sli_error_restore(&copy), SL_ERR_INVALID);
    assert_string_equal(sl_error_text(), "fi\\x0ale: wrong\\x0aname:\n0F0 ...\n... 1F0");
}

static void error_keeps_utf8_and_is_cut_between_characters(void **state)
{
    char longer[2048];
    sl_error(SL_ERR_FORMAT, "%s", "na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x98\x80 back\\slash");
    assert_string_equal(sl_error_text(), "na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x98\x80 back\\slash");
    sl_error(SL_ERR_FORMAT, "%s", "\xe6\x97|\xc0\x80|\xed\xa0\x80"); /* cut, overlong, half */
    assert_string_equal(sl_error_text(), "\\xe6\\x97|\\xc0\\x80|\\xed\\xa0\\x80");
    memset(longer, 0x1b, sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    sl_error(SL_ERR_FORMAT, "%s", longer);
    assert_int_equal(strlen(sl_error_text()), 1020);
    assert_string_equal(sl_error_text() + 1016, "\\x1b");
}

static void copy_brings_an_error_back_uncut(void **state)
{
    char longest[SLI_ERROR_BYTES];
    sli_error_copy copy;
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    sl_error(SL_ERR_FORMAT, "%s", longest);
    assert_int_equal(sli_error_save(&copy, sli_error_set_rank(SL_ERR_FORMAT, 3)), SL_ERR_FORMAT);
    sl_error(SL_ERR_IO, "another");
    assert_int_equal(sli_error_rank(), SLI_NO_RANK);
    check_error(sli_error_restore(&copy), SL_ERR_FORMAT, longest);
    assert_int_equal(sli_error_rank(), 3);
    check_ok(sli_error_save(&copy, SL_OK));
    check_ok(sli_error_restore(&copy));
    assert_string_equal(sl_error_text(), longest);
}

static void io_error_says_what_failed_and_why(void **state)
{
    errno = ENOSPC;
    check_error(sli_io_error("file", "cannot be written"), SL_ERR_IO,
                "file: cannot be written: No space left");
    errno = ENOENT;
    check_error(sli_io_error("file", "cannot be opened"), SL_ERR_NOT_FOUND,
                "file: cannot be opened: No such file");
}

static void every_code_has_a_name(void **state)
{
    for (int code = SL_ERR_CONFLICT; code <= SL_OK; code++)
        assert_string_not_equal(sl_status_name((sl_status)code), "unknown status");
}

int status_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_sets_the_text_and_returns_the_code),
        cmocka_unit_test(error_may_quote_the_current_text),
        cmocka_unit_test(context_goes_before_the_text_and_leaves_success_alone),
        cmocka_unit_test(missing_memory_is_one_sentence),
        cmocka_unit_test(error_longer_than_the_buffer_is_cut),
        cmocka_unit_test(error_quotes_no_control_characters),
        cmocka_unit_test(added_lines_keep_their_ends),
        cmocka_unit_test(error_keeps_utf8_and_is_cut_between_characters),
        cmocka_unit_test(copy_brings_an_error_back_uncut),
        cmocka_unit_test(io_error_says_what_failed_and_why),
        cmocka_unit_test(every_code_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
