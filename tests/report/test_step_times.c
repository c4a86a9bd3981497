#include "io/scratch.h"
#include "sluice/report.h"
#include "support/check.h"

/* Stage 0 on rank 0, stages 1 and 2 on rank 1; 20 s a step, 12 of them in the pipe, whose timeline
 * has 6. */
static void time_in_the_pipe_is_divided_as_its_timeline(void **state)
{
    (void)state;
    static const sl_stage_info stages[] = {{.rank = 0}, {.rank = 1}, {.rank = 1}};
    static const sl_timeline_entry timeline[] = {
        {{.stage = 0, .kind = SL_ACTION_FORWARD}, 0, 1},
        {{.stage = 0, .kind = SL_ACTION_BACKWARD_WEIGHT}, 4, 6},
        {{.stage = 1, .kind = SL_ACTION_FORWARD}, 1, 2},
        {{.stage = 2, .kind = SL_ACTION_RECOMPUTE}, 2, 2.5},
        {{.stage = 2, .kind = SL_ACTION_BACKWARD}, 2.5, 5},
    };
    static const double expected[2][SL_TIME_KINDS] = {{2, 4, 0, 6, 5, 2, 1, 0.5},
                                                      {2, 5, 1, 4, 5, 2, 1, 0.5}};
    const sl_step_info step = {.seconds = 20,
                               .data_seconds = 1,
                               .optimizer_seconds = 2,
                               .reduce_seconds = 5,
                               .timeline = timeline,
                               .timeline_count = 5};
    const sl_run_info info = {.stages = stages, .stage_count = 3};
    sl_step_times *times;
    check_ok(sl_step_times_create(&times));
    assert_int_equal(sl_step_times_ranks(times), 0);
    sl_reporter reporter = sl_step_times_reporter(times);
    check_ok(reporter.started(reporter.context, &info));
    check_ok(reporter.step(reporter.context, &step));
    check_ok(reporter.step(reporter.context, &step));
    check_ok(
        reporter.checkpoint(reporter.context, &(sl_checkpoint_event){.kind = SL_CHECKPOINT_SAVED,
                                                                     .copy_seconds = 1}));
    assert_int_equal(sl_step_times_ranks(times), 2);
    for (int rank = 0; rank < 2; rank++)
        for (int kind = 0; kind < SL_TIME_KINDS; kind++)
            assert_float_equal(sl_step_times_mean(times, rank, (sl_time_kind)kind),
                               expected[rank][kind], 1e-12);
    assert_int_equal(sl_step_times_slowest(times), 1);
    assert_string_equal(sl_time_kind_name(SL_TIME_WAITING), "waiting");
    sl_step_times_destroy(&times);
    assert_null(times);
}

int step_times_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_in_the_pipe_is_divided_as_its_timeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
