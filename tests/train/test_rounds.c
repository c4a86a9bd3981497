/* Measurements of the same numbers at different times. */
#include "support/check.h"
#include "train/plan/rounds.h"

static void add(sli_rounds *rounds, double first, double second)
{
    const double values[] = {first, second};
    check_ok(sli_rounds_add(rounds, values, 2));
}

static void median_is_the_middle_of_each_number(void **state)
{
    sli_rounds rounds = {0};
    add(&rounds, 3, 100);
    assert_float_equal(sli_rounds_median(&rounds, 0), 3, 0);
    assert_float_equal(sli_rounds_spread(&rounds), 0, 0);
    add(&rounds, 1, 400);
    assert_float_equal(sli_rounds_median(&rounds, 0), 2, 0);
    assert_float_equal(sli_rounds_median(&rounds, 1), 250, 0);
    add(&rounds, 9, 200);
    assert_float_equal(sli_rounds_median(&rounds, 0), 3, 0);
    assert_float_equal(sli_rounds_median(&rounds, 1), 200, 0);
    sli_rounds_clear(&rounds);
}

/* Of 3 rounds all count, of 4 the middle two, of 8 the middle four. */
static void spread_is_that_of_the_middle_half(void **state)
{
    static const double sums[] = {10, 12, 11, 100, 1, 11.5, 500, 2};
    static const double spreads[] = {0, 2.0 / 11, 2.0 / 11, 1.0 / 11.5, 2.0 / 11, 0, 0, 0};
    sli_rounds rounds = {0};
    for (int i = 0; i < 8; i++) {
        add(&rounds, sums[i] / 2, sums[i] / 2);
        if (spreads[i] > 0)
            assert_float_equal(sli_rounds_spread(&rounds), spreads[i], 1e-12);
    }
    assert_float_equal(sli_rounds_spread(&rounds), (12 - 10) / 11.25, 1e-12);
    sli_rounds_clear(&rounds);
}

/* Two of a bad moment do not count where there are enough others. */
static void rounds_agree_when_the_middle_ones_do(void **state)
{
    sli_rounds rounds = {0};
    for (int i = 0; i < 4; i++)
        add(&rounds, 1, 1);
    assert_float_equal(sli_rounds_spread(&rounds), 0, 0);
    assert_false(sli_rounds_agree(&rounds)); /* too few */
    add(&rounds, 2, 1);
    assert_true(sli_rounds_agree(&rounds)); /* of 5 one is left out at each end */
    add(&rounds, 2, 1);
    assert_false(sli_rounds_agree(&rounds));
    add(&rounds, 1.01, 1);
    assert_false(sli_rounds_agree(&rounds));
    add(&rounds, 1.01, 1);
    assert_true(sli_rounds_agree(&rounds)); /* of 8 two */
    assert_float_equal(sli_rounds_median(&rounds, 0), 1.005, 1e-12);
    sli_rounds_clear(&rounds);
}

/* However far apart they are. */
static void most_rounds_are_enough(void **state)
{
    sli_rounds rounds = {0};
    for (int i = 0; i < SLI_MOST_ROUNDS; i++) {
        assert_false(sli_rounds_agree(&rounds));
        add(&rounds, 1 << i % 4, 0);
    }
    assert_true(sli_rounds_agree(&rounds));
    sli_rounds_clear(&rounds);
}

int rounds_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_is_the_middle_of_each_number),
        cmocka_unit_test(spread_is_that_of_the_middle_half),
        cmocka_unit_test(rounds_agree_when_the_middle_ones_do),
        cmocka_unit_test(most_rounds_are_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
