#include "support/check.h"
#include "train/loop/rank_times.h"

enum { RANKS = 3 };

/* Stage 0 on rank 0, stages 1 and 2 on rank 1; 20 s a step, 12 of them in the pipe, whose timeline
 * has 12, too. Rank 2 is in another process, has actions of 11 s, and ends last. */
static void time_in_the_pipe_is_divided_as_its_timeline(void **state)
{
    static const sl_stage_info stages[] = {{.rank = 0}, {.rank = 1}, {.rank = 1}, {.rank = 2}};
    static const sl_timeline_entry timeline[] = {
        {{.stage = 0, .kind = SL_ACTION_FORWARD}, 0, 1},
        {{.stage = 0, .kind = SL_ACTION_BACKWARD_WEIGHT}, 4, 6},
        {{.stage = 1, .kind = SL_ACTION_FORWARD}, 1, 2},
        {{.stage = 2, .kind = SL_ACTION_RECOMPUTE}, 2, 2.5},
        {{.stage = 2, .kind = SL_ACTION_BACKWARD}, 2.5, 5},
    };
    static const double expected[RANKS][SL_TIME_KINDS] = {{1, 2, 0, 9, 5, 2, 1, 0},
                                                          {1, 2.5, 0.5, 8, 5, 2, 1, 0}};
    sl_step_info step = {.seconds = 20,
                         .data_seconds = 1,
                         .optimizer_seconds = 2,
                         .reduce_seconds = 5,
                         .timeline = timeline,
                         .timeline_count = 5,
                         .timeline_seconds = 12,
                         .timeline_busy_seconds = 3 + 4 + 11};
    sl_rank_stats ranks[RANKS] = {0};
    assert_null(sli_rank_times_find_slowest(ranks, RANKS));
    for (int i = 0; i < 2; i++)
        sli_rank_times_add(stages, &step, ranks, RANKS);
    assert_float_equal(step.waiting_seconds, 6, 1e-12); /* the mean of 9, 8 and 1 */
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(ranks[rank].steps, rank < 2 ? 2 : 0);
        for (int kind = 0; kind < SL_TIME_KINDS; kind++)
            assert_float_equal(ranks[rank].seconds[kind], 2 * expected[rank][kind], 1e-12);
    }
    assert_ptr_equal(sli_rank_times_find_slowest(ranks, RANKS), &ranks[1]);
    assert_string_equal(sl_time_kind_name(SL_TIME_WAITING), "waiting");
}

int rank_times_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_in_the_pipe_is_divided_as_its_timeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
