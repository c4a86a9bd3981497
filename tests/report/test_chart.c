#include "core/json.h"
#include "report/chart.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Draws one curve, and gives the figure, malloc'ed. */
static char *draw(const sli_point *points, size_t count, bool log_scale)
{
    char *text;
    size_t bytes;
    const sli_curve curve = {.label = "run", .kind = "", .points = points, .count = count};
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    sli_c_numbers scope = sli_c_numbers_begin();
    sli_chart_draw(to, &(sli_chart){.title = "Loss",
                                    .y_name = "",
                                    .x_name = "step",
                                    .whole_x = true,
                                    .log_scale = log_scale,
                                    .curves = &curve,
                                    .curve_count = 1});
    sli_c_numbers_end(scope);
    assert_int_equal(fclose(to), 0);
    return text;
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        count++;
    return count;
}

static void any_numbers_give_few_ticks_at_finite_places(void **state)
{
    static const struct {
        sli_point points[3];
    } cases[] = {
        {{{1, 1e-20}, {2, 1e-320}, {3, 1e-20}}},   {{{1, 1e-320}, {2, 2e-320}, {3, 4e-320}}},
        {{{1, 1e-300}, {2, 1}, {3, 1e308}}},       {{{1, 1e308}, {2, 1e308}, {3, 1.7e308}}},
        {{{1, -1e308}, {2, 0}, {3, 1e308}}},       {{{1, 5}, {2, 5}, {3, 5}}},
        {{{1e-320, 5}, {2e-320, 6}, {3e-320, 7}}}, {{{9e18, 5}, {9e18, 5}, {9e18, 6}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int log_scale = 0; log_scale < 2; log_scale++) {
            FREED char *text = draw(cases[i].points, 3, log_scale);
            assert_in_range(count_of(text, "<text"), 0, 25 + 3); /* values at three steps */
            assert_int_equal(count_of(text, "nan") + count_of(text, "inf"), 0);
        }
}

/* Without points there is a title and a key. */
static void files_have_their_colours_and_names(void **state)
{
    static const sli_point points[] = {{1, 5}, {2, NAN}, {4, 6}}, none[] = {{1, NAN}};
    for (int drawn = 0; drawn < 2; drawn++) {
        FREED char *text = NULL;
        size_t bytes;
        const sli_curve curves[] = {{.label = "a<b",
                                     .kind = "",
                                     .dots = true,
                                     .points = drawn ? points : none,
                                     .count = drawn ? 3 : 1},
                                    {.label = "", .kind = "", .colour = 1}};
        FILE *to = open_memstream(&text, &bytes);
        assert_non_null(to);
        sli_chart_write(to, &(sli_chart){.title = "Tokens",
                                         .y_name = "a day",
                                         .x_name = "nodes",
                                         .curves = curves,
                                         .curve_count = 2});
        assert_int_equal(fclose(to), 0);
        assert_int_equal(strncmp(text, "<svg xmlns=", strlen("<svg xmlns=")), 0);
        assert_int_equal(count_of(text, "prefers-color-scheme:dark"), 1);
        assert_int_equal(count_of(text, ">Tokens, a day</text>"), 1);
        assert_int_equal(count_of(text, ">a&lt;b</text>"), 1);
        assert_int_equal(count_of(text, "<circle"), drawn ? 2 : 0);
        assert_int_equal(count_of(text, "</svg>"), 1);
    }
}

static void large_steps_are_shown_as_whole_numbers(void **state)
{
    static const sli_point points[] = {{1234567, 5}, {12345678, 6}};
    FREED char *text = draw(points, 2, false);
    assert_int_equal(count_of(text, ">step 1234567<"), 1);
    assert_int_equal(count_of(text, ">step 12345678<"), 1);
}

int chart_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_numbers_give_few_ticks_at_finite_places),
        cmocka_unit_test(files_have_their_colours_and_names),
        cmocka_unit_test(large_steps_are_shown_as_whole_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
