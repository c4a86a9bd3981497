/* What a run measures of itself. */
#include "sluice/app/plan.h"

#include "support/check.h"

static void steps_are_means_and_memory_is_a_sum(void **state)
{
    sl_run_meter meter = {0};
    sl_run_meter_add_step(&meter, &(sl_run_step_times){5, 1, 0.5, 0.25});
    sl_run_meter_add_step(&meter, &(sl_run_step_times){8, 2, 1.5, 0.75});
    sl_run_meter_add_memory(&meter, 100, 10, 20, 30);
    sl_run_meter_add_memory(&meter, 100, 10, 20, 5);
    sl_run_meter_add_memory(&meter, 30, 10, 20, 5); /* the peaks were at different times */
    const sl_run_measures measures = sl_run_meter_measures(&meter, 0.75);
    assert_float_equal(measures.step_seconds, 5, 1e-12);
    assert_float_equal(measures.exchange_seconds, 1, 1e-12);
    assert_float_equal(measures.update_seconds, 0.5, 1e-12);
    assert_float_equal(measures.one_stage, 0.75, 0);
    assert_int_equal(measures.activation_bytes, 105);
    assert_null(measures.forward);
    assert_false(measures.shares_cores);
}

static void stages_are_those_that_were_set_last(void **state)
{
    double forward[2][2] = {{1, 2}, {3, 4}}, backward[2] = {5, 6};
    int all[] = {0, 0, 0}, some[] = {0, 0, 2};
    sl_run_meter meter = {0};
    sl_utilization utilization = {
        .ranks = 3, .stages = 2, .forward = forward[0], .backward = backward, .cores = some};
    sl_run_meter_set_stages(&meter, &utilization);
    assert_true(meter.is_mixed && !meter.shares_cores);
    utilization.cores = all;
    utilization.forward = forward[1];
    sl_run_meter_set_stages(&meter, &utilization);
    assert_true(!meter.is_mixed && meter.shares_cores);
    const sl_run_measures measures = sl_run_meter_measures(&meter, 0);
    assert_float_equal(measures.forward[0], 3, 0);
    assert_float_equal(measures.forward[1], 4, 0);
    assert_float_equal(measures.backward[1], 6, 0);
    assert_true(measures.shares_cores);
    utilization.cores = NULL;
    sl_run_meter_set_stages(&meter, &utilization);
    assert_true(!meter.is_mixed && !meter.shares_cores);
}

int run_meter_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_means_and_memory_is_a_sum),
        cmocka_unit_test(stages_are_those_that_were_set_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
