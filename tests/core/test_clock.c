/* Times. */
#include "core/clock.h"
#include "support/check.h"

static void median_is_the_middle_of_the_sorted_times(void **state)
{
    assert_true(sli_median_seconds((double[]){3}, 1) == 3);
    assert_true(sli_median_seconds((double[]){9, 1}, 2) == 5);
    assert_true(sli_median_seconds((double[]){5, 1, 400, 2, 3}, 5) == 3);
}

static void pause_counts_as_the_most_that_it_may(void **state)
{
    sli_running_clock clock = {.seconds = 1, .read = 1e-9}; /* read when the system began */
    assert_true(sli_running_clock_read(&clock, 0.25) == 1.25);
    assert_true(sli_running_clock_read(&clock, 0.25) < 1.5);
}

int clock_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_is_the_middle_of_the_sorted_times),
        cmocka_unit_test(pause_counts_as_the_most_that_it_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
