#include "sluice/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ACTIONS = 64, MAX_STAGES = 4 };

/* Reads a table written as rows of actions, "F0 B0 | f0 R0 B0", with the drawing's letters. */
static sl_schedule *parse(int micros, const char *text)
{
    sl_action actions[MAX_ACTIONS];
    int counts[MAX_STAGES] = {0}, stages = 1, used = 0;
    for (const char *at = text; *at; at++) {
        if (*at == '|') {
            stages++;
        } else if (*at != ' ') {
            const char *letters = "FfRB", *found = strchr(letters, *at);
            assert_non_null(found);
            char *end;
            long micro = strtol(at + 1, &end, 10);
            actions[used++] = (sl_action){(sl_action_kind)(found - letters), (int)micro};
            counts[stages - 1]++;
            at = end - 1;
        }
    }
    sl_schedule *schedule;
    assert_int_equal(sl_schedule_from_table(stages, micros, counts, actions, &schedule), SL_OK);
    return schedule;
}

static void assert_refused(int micros, const char *table, const char *sentence)
{
    sl_schedule *schedule = parse(micros, table);
    assert_int_equal(sl_schedule_validate(schedule), SL_ERR_INVALID);
    assert_string_equal(sl_error_text(), sentence);
    sl_schedule_destroy(&schedule);
}

static void assert_accepted(int micros, const char *table)
{
    sl_schedule *schedule = parse(micros, table);
    if (sl_schedule_validate(schedule) != SL_OK)
        fail_msg("%s: %s", table, sl_error_text());
    sl_schedule_destroy(&schedule);
}

static void whole_table_is_accepted_in_any_order_that_can_run(void **state)
{
    (void)state;
    assert_accepted(1, "F0 B0");
    assert_accepted(2, "F0 f1 R1 B1 B0 | f1 F0 B0 R1 B1");
    assert_accepted(2, "f1 f0 | f0 f1");
}

static void forward_that_is_missing_is_refused(void **state)
{
    (void)state;
    assert_refused(2, "F0 F1 B1 B0 | F0 B0", "schedule: stage 1 never runs micro-batch 1 forward");
}

static void forward_that_comes_twice_is_refused(void **state)
{
    (void)state;
    assert_refused(2, "F0 f0 F1 B1 B0",
                   "schedule: stage 0, action 1: FORWARD_DISCARD 0 runs the micro-batch forward a "
                   "second time");
    assert_refused(1, "F0 B0 F0",
                   "schedule: stage 0, action 2: FORWARD 0 runs the micro-batch forward a second "
                   "time");
}

static void backward_that_is_missing_is_refused(void **state)
{
    (void)state;
    assert_refused(2, "F0 F1 B1", "schedule: stage 0 never runs micro-batch 0 backward");
    /* a single FORWARD that keeps makes it a table that must go backward */
    assert_refused(1, "f0 | F0", "schedule: stage 0 never runs micro-batch 0 backward");
    assert_refused(1, "f0 R0", "schedule: stage 0 never runs micro-batch 0 backward");
}

static void backward_that_comes_twice_is_refused(void **state)
{
    (void)state;
    assert_refused(1, "F0 B0 B0", "schedule: stage 0, action 2: BACKWARD 0 comes a second time");
}

static void backward_before_its_forward_is_refused(void **state)
{
    (void)state;
    assert_refused(1, "B0 F0",
                   "schedule: stage 0, action 0: BACKWARD 0 comes before the micro-batch's "
                   "forward");
}

static void backward_without_activations_is_refused(void **state)
{
    (void)state;
    assert_refused(1, "f0 B0",
                   "schedule: stage 0, action 1: BACKWARD 0 lacks the activations that "
                   "FORWARD_DISCARD gave up: a RECOMPUTE must come first");
}

static void recomputation_out_of_place_is_refused(void **state)
{
    (void)state;
    assert_refused(1, "R0 F0 B0",
                   "schedule: stage 0, action 0: RECOMPUTE 0 comes before the micro-batch's "
                   "forward");
    assert_refused(1, "F0 R0 B0",
                   "schedule: stage 0, action 1: RECOMPUTE 0 follows a FORWARD, which keeps the "
                   "activations already");
    assert_refused(1, "f0 R0 R0 B0",
                   "schedule: stage 0, action 2: RECOMPUTE 0 comes a second time");
    assert_refused(1, "f0 R0 B0 R0",
                   "schedule: stage 0, action 3: RECOMPUTE 0 comes after the micro-batch's "
                   "backward");
}

static void action_that_does_not_exist_is_refused(void **state)
{
    (void)state;
    assert_refused(2, "F0 F1 B1 B2",
                   "schedule: stage 0, action 3 is BACKWARD of micro-batch 2, outside 0 to 1");
    sl_action nameless = {(sl_action_kind)9, 0};
    int count = 1;
    sl_schedule *schedule;
    assert_int_equal(sl_schedule_from_table(1, 1, &count, &nameless, &schedule), SL_OK);
    assert_int_equal(sl_schedule_validate(schedule), SL_ERR_INVALID);
    assert_string_equal(sl_error_text(), "schedule: stage 0, action 0 has no kind (9)");
    sl_schedule_destroy(&schedule);
}

static void deadlock_is_refused_with_what_is_waited_for_and_a_drawing(void **state)
{
    (void)state;
    assert_refused(2, "F0 B0 F1 B1 | F0 F1 B1 B0",
                   "schedule: deadlock: stage 0 waits in BACKWARD 0 for the backward of "
                   "micro-batch 0 at stage 1, which never comes:\n"
                   "F0 ..\n"
                   ".. F0\n");
    assert_refused(2, "f0 f1 R1 B1 R0 B0 | F0 B0 F1 B1 | F1 B1 F0 B0",
                   "schedule: deadlock: stage 0 waits in BACKWARD 1 for the backward of "
                   "micro-batch 1 at stage 1, which never comes:\n"
                   "f0 f1 R1\n"
                   ".. F0 ..\n"
                   ".. .. ..\n");
}

/* Any single action taken out of a whole table leaves a faulty one. */
static void table_with_any_action_removed_is_refused(void **state)
{
    (void)state;
    sl_schedule *whole;
    assert_int_equal(sl_schedule_1f1b(3, 4, SL_RECOMPUTE_EXCEPT_LAST, &whole), SL_OK);
    sl_action actions[MAX_ACTIONS];
    int counts[3], total = 0;
    for (int stage = 0; stage < 3; stage++) {
        const sl_action *row;
        counts[stage] = sl_schedule_actions(whole, stage, &row);
        memcpy(actions + total, row, (size_t)counts[stage] * sizeof *row);
        total += counts[stage];
    }
    for (int removed = 0, stage = 0, end = counts[0]; removed < total; removed++) {
        if (removed == end)
            end += counts[++stage];
        sl_action rest[MAX_ACTIONS];
        memcpy(rest, actions, (size_t)removed * sizeof *rest);
        memcpy(rest + removed, actions + removed + 1, (size_t)(total - removed - 1) * sizeof *rest);
        counts[stage]--;
        sl_schedule *faulty;
        assert_int_equal(sl_schedule_from_table(3, 4, counts, rest, &faulty), SL_OK);
        assert_int_equal(sl_schedule_validate(faulty), SL_ERR_INVALID);
        sl_schedule_destroy(&faulty);
        counts[stage]++;
    }
    sl_schedule_destroy(&whole);
}

int schedule_validate_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_table_is_accepted_in_any_order_that_can_run),
        cmocka_unit_test(forward_that_is_missing_is_refused),
        cmocka_unit_test(forward_that_comes_twice_is_refused),
        cmocka_unit_test(backward_that_is_missing_is_refused),
        cmocka_unit_test(backward_that_comes_twice_is_refused),
        cmocka_unit_test(backward_before_its_forward_is_refused),
        cmocka_unit_test(backward_without_activations_is_refused),
        cmocka_unit_test(recomputation_out_of_place_is_refused),
        cmocka_unit_test(action_that_does_not_exist_is_refused),
        cmocka_unit_test(deadlock_is_refused_with_what_is_waited_for_and_a_drawing),
        cmocka_unit_test(table_with_any_action_removed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
