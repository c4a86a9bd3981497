#include "sluice/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};

static void assert_close(double value, double expected)
{
    if (fabs(value - expected) > 1e-12)
        fail_msg("%.15g must be %.15g", value, expected);
}

static sl_simulation simulate(sl_schedule_kind kind, int stages, int micros, sl_recompute recompute,
                              const sl_cost_model *costs)
{
    sl_schedule *schedule;
    sl_simulation simulation;
    assert_int_equal(sl_schedule_create(kind, stages, micros, recompute, &schedule), SL_OK);
    assert_int_equal(sl_schedule_simulate(schedule, costs, &simulation), SL_OK);
    sl_schedule_destroy(&schedule);
    return simulation;
}

static void bubble_of_unit_costs_is_stages_less_one_over_micros_and_that(void **state)
{
    (void)state;
    sl_cost_model costs = {ones, ones, 0};
    for (int kind = SL_SCHEDULE_GPIPE; kind <= SL_SCHEDULE_1F1B; kind++)
        for (int stages = 1; stages <= 8; stages++)
            for (int micros = 1; micros <= 12; micros++) {
                sl_simulation simulation =
                    simulate((sl_schedule_kind)kind, stages, micros, SL_RECOMPUTE_NEVER, &costs);
                assert_close(simulation.makespan, 2 * (micros + stages - 1));
                assert_close(simulation.bubble, (stages - 1.0) / (micros + stages - 1.0));
                sl_simulation_clear(&simulation);
            }
}

/* Two stages, the first slower: forward takes 2 and 1, backward 3 and 2, a hand-over half a unit.
 *
 *     stage 0   F0 0…2      F1 2…4                            B1 8…11      B0 11…14
 *     stage 1   F0 2.5…3.5  F1 4.5…5.5  B1 5.5…7.5  B0 7.5…9.5 */
static void transfer_and_uneven_stages_are_played_as_by_hand(void **state)
{
    (void)state;
    double forward[] = {2, 1}, backward[] = {3, 2};
    sl_cost_model costs = {forward, backward, 0.5};
    sl_simulation simulation = simulate(SL_SCHEDULE_GPIPE, 2, 2, SL_RECOMPUTE_NEVER, &costs);
    const sl_timeline_entry expected[] = {
        {0, {SL_ACTION_FORWARD, 0}, 0, 2},      {0, {SL_ACTION_FORWARD, 1}, 2, 4},
        {1, {SL_ACTION_FORWARD, 0}, 2.5, 3.5},  {1, {SL_ACTION_FORWARD, 1}, 4.5, 5.5},
        {1, {SL_ACTION_BACKWARD, 1}, 5.5, 7.5}, {1, {SL_ACTION_BACKWARD, 0}, 7.5, 9.5},
        {0, {SL_ACTION_BACKWARD, 1}, 8, 11},    {0, {SL_ACTION_BACKWARD, 0}, 11, 14},
    };
    assert_int_equal(simulation.entry_count, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(simulation.entries[i].stage, expected[i].stage);
        assert_int_equal(simulation.entries[i].action.kind, expected[i].action.kind);
        assert_int_equal(simulation.entries[i].action.micro, expected[i].action.micro);
        assert_close(simulation.entries[i].start, expected[i].start);
        assert_close(simulation.entries[i].end, expected[i].end);
    }
    assert_close(simulation.makespan, 14);
    assert_close(simulation.bubble, 1 - 16.0 / 28.0);
    sl_simulation_clear(&simulation);
}

/* A recomputation costs a forward, but the last stage's discarded forwards cost nothing: one stage
 * alone does R B for each micro-batch. */
static void checkpointing_costs_one_more_forward_but_at_the_last_stage(void **state)
{
    (void)state;
    double forward[] = {1, 1}, backward[] = {2, 2};
    sl_cost_model costs = {forward, backward, 0};
    sl_simulation alone = simulate(SL_SCHEDULE_GPIPE, 1, 4, SL_RECOMPUTE_ALWAYS, &costs);
    assert_close(alone.makespan, 4 * 3);
    assert_close(alone.bubble, 0);
    sl_simulation_clear(&alone);
    /* Stage 0 forwards until 3; stage 1 has the last input then: R B of 3 each until 12; stage 0's
     * last backward follows: its recomputation was done while it waited for the gradient. */
    sl_simulation two = simulate(SL_SCHEDULE_GPIPE, 2, 3, SL_RECOMPUTE_ALWAYS, &costs);
    assert_close(two.makespan, 12 + 2);
    sl_simulation_clear(&two);
    /* in a forward-only table the last stage does compute */
    sl_schedule *schedule;
    assert_int_equal(sl_schedule_forward_only(2, 3, &schedule), SL_OK);
    sl_simulation evaluation;
    assert_int_equal(sl_schedule_simulate(schedule, &costs, &evaluation), SL_OK);
    assert_close(evaluation.makespan, 4);
    assert_int_equal(evaluation.peak_held[1], 0);
    sl_simulation_clear(&evaluation);
    sl_schedule_destroy(&schedule);
}

static void stages_of_1f1b_hold_as_many_micros_as_stages_behind_them(void **state)
{
    (void)state;
    sl_cost_model costs = {ones, ones, 0};
    for (int stages = 1; stages <= 6; stages++)
        for (int micros = 1; micros <= 8; micros++) {
            sl_simulation gpipe =
                simulate(SL_SCHEDULE_GPIPE, stages, micros, SL_RECOMPUTE_NEVER, &costs);
            sl_simulation one =
                simulate(SL_SCHEDULE_1F1B, stages, micros, SL_RECOMPUTE_NEVER, &costs);
            sl_simulation always =
                simulate(SL_SCHEDULE_1F1B, stages, micros, SL_RECOMPUTE_ALWAYS, &costs);
            for (int stage = 0; stage < stages; stage++) {
                int behind = stages - stage;
                assert_int_equal(gpipe.peak_held[stage], micros);
                assert_int_equal(one.peak_held[stage], behind < micros ? behind : micros);
                assert_int_equal(always.peak_held[stage], 1);
            }
            sl_simulation_clear(&gpipe);
            sl_simulation_clear(&one);
            sl_simulation_clear(&always);
        }
}

/* torchgpipe's clock cycles, three micro-batches and two stages:
 * (0,0) | (1,0) (0,1) | (2,0) (1,1) | (2,1), each (micro-batch, stage). */
static void forwards_of_gpipe_follow_the_clock_cycles(void **state)
{
    (void)state;
    const struct {
        int micro, stage, clock;
    } cycles[] = {{0, 0, 0}, {1, 0, 1}, {0, 1, 1}, {2, 0, 2}, {1, 1, 2}, {2, 1, 3}};
    sl_cost_model costs = {ones, ones, 0};
    sl_simulation simulation = simulate(SL_SCHEDULE_GPIPE, 2, 3, SL_RECOMPUTE_NEVER, &costs);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(simulation.entries[i].action.kind, SL_ACTION_FORWARD);
        assert_int_equal(simulation.entries[i].action.micro, cycles[i].micro);
        assert_int_equal(simulation.entries[i].stage, cycles[i].stage);
        assert_close(simulation.entries[i].start, cycles[i].clock);
    }
    sl_simulation_clear(&simulation);
}

static void faulty_tables_and_costs_are_refused(void **state)
{
    (void)state;
    double negative[] = {1, -1}, endless[] = {1, INFINITY};
    sl_schedule *schedule;
    sl_simulation simulation;
    assert_int_equal(sl_schedule_gpipe(2, 2, SL_RECOMPUTE_NEVER, &schedule), SL_OK);
    const sl_cost_model bad[] = {{negative, ones, 0}, {ones, endless, 0}, {ones, ones, NAN}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_schedule_simulate(schedule, &bad[i], &simulation), SL_ERR_INVALID);
        assert_string_equal(sl_error_text(),
                            "sl_schedule_simulate: every cost must be a number of 0 or more");
        assert_null(simulation.entries);
    }
    sl_schedule_destroy(&schedule);

    sl_action lonely = {SL_ACTION_FORWARD, 0};
    int count = 1;
    sl_cost_model costs = {ones, ones, 0};
    assert_int_equal(sl_schedule_from_table(1, 1, &count, &lonely, &schedule), SL_OK);
    assert_int_equal(sl_schedule_simulate(schedule, &costs, &simulation), SL_ERR_INVALID);
    assert_string_equal(sl_error_text(), "schedule: stage 0 never runs micro-batch 0 backward");
    sl_schedule_destroy(&schedule);
}

int schedule_simulate_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubble_of_unit_costs_is_stages_less_one_over_micros_and_that),
        cmocka_unit_test(transfer_and_uneven_stages_are_played_as_by_hand),
        cmocka_unit_test(checkpointing_costs_one_more_forward_but_at_the_last_stage),
        cmocka_unit_test(stages_of_1f1b_hold_as_many_micros_as_stages_behind_them),
        cmocka_unit_test(forwards_of_gpipe_follow_the_clock_cycles),
        cmocka_unit_test(faulty_tables_and_costs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
