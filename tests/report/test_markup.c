/* Numbers and texts as pages show them. */
#include "report/markup.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_number(double value, const char *expected)
{
    FREED char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    sli_markup_number(to, value);
    fclose(to);
    assert_string_equal(text, expected);
}

static void numbers_from_a_million_on_have_an_exponent(void **state)
{
    check_number(5.123456, "5.123");
    check_number(99999.4, "99999");
    check_number(999999, "999999");
    check_number(1e6, "1e+06");
    check_number(1.23456e9, "1.235e+09");
    check_number(-1e-7, "-1e-07");
    check_number(INFINITY, "inf");
    check_number(NAN, "–");
}

static void markup_of_a_text_is_shown(void **state)
{
    FREED char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    sli_markup_text(to, "<script>'a' & \"b\"\x1b\xff");
    fclose(to);
    assert_null(strpbrk(text, "<>\"'\x1b\xff"));
    assert_non_null(strstr(text, "&lt;script&gt;"));
    assert_non_null(strstr(text, "\xef\xbf\xbd\xef\xbf\xbd"));
}

int markup_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_from_a_million_on_have_an_exponent),
        cmocka_unit_test(markup_of_a_text_is_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
