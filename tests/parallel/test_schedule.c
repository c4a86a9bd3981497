#include "sluice/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void names_parse_back_to_their_kinds(void **state)
{
    (void)state;
    for (int kind = SL_SCHEDULE_GPIPE; kind <= SL_SCHEDULE_1F1B; kind++) {
        sl_schedule_kind parsed;
        assert_int_equal(sl_schedule_kind_parse(sl_schedule_kind_name((sl_schedule_kind)kind),
                                                &parsed),
                         SL_OK);
        assert_int_equal(parsed, kind);
    }
    for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++) {
        sl_recompute parsed;
        assert_int_equal(sl_recompute_parse(sl_recompute_name((sl_recompute)mode), &parsed), SL_OK);
        assert_int_equal(parsed, mode);
    }
}

static void unknown_names_are_refused_with_the_choices(void **state)
{
    (void)state;
    sl_schedule_kind kind;
    sl_recompute recompute;
    assert_int_equal(sl_schedule_kind_parse("zigzag", &kind), SL_ERR_NOT_FOUND);
    assert_string_equal(sl_error_text(), "schedule must be gpipe or 1f1b, got \"zigzag\"");
    assert_int_equal(sl_recompute_parse("Always", &recompute), SL_ERR_NOT_FOUND);
    assert_string_equal(sl_error_text(),
                        "recompute must be except_last, never or always, got \"Always\"");
}

static void table_without_stages_or_micros_is_refused(void **state)
{
    (void)state;
    sl_schedule *schedule = (sl_schedule *)state; /* must be nulled */
    assert_int_equal(sl_schedule_gpipe(0, 4, SL_RECOMPUTE_NEVER, &schedule), SL_ERR_INVALID);
    assert_null(schedule);
    assert_string_equal(sl_error_text(), "sl_schedule_gpipe: stages must be at least 1, got 0");
    assert_int_equal(sl_schedule_1f1b(2, -1, SL_RECOMPUTE_NEVER, &schedule), SL_ERR_INVALID);
    assert_string_equal(sl_error_text(),
                        "sl_schedule_1f1b: micro-batches must be at least 1, got -1");
    assert_int_equal(sl_schedule_forward_only(1 << 20, 1 << 20, &schedule), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(), "too large"));
    assert_int_equal(sl_schedule_create((sl_schedule_kind)7, 1, 1, SL_RECOMPUTE_NEVER, &schedule),
                     SL_ERR_INVALID);
}

static void own_table_is_copied_row_by_row(void **state)
{
    (void)state;
    sl_action actions[] = {{SL_ACTION_FORWARD, 0},
                           {SL_ACTION_BACKWARD, 0},
                           {SL_ACTION_FORWARD_DISCARD, 0},
                           {SL_ACTION_RECOMPUTE, 0},
                           {SL_ACTION_BACKWARD, 0}};
    int counts[] = {2, 0, 3};
    sl_schedule *schedule;
    assert_int_equal(sl_schedule_from_table(3, 1, counts, actions, &schedule), SL_OK);
    memset(actions, 0xff, sizeof actions);
    assert_int_equal(sl_schedule_stages(schedule), 3);
    assert_int_equal(sl_schedule_micros(schedule), 1);
    const sl_action *row;
    assert_int_equal(sl_schedule_actions(schedule, 0, &row), 2);
    assert_int_equal(row[1].kind, SL_ACTION_BACKWARD);
    assert_int_equal(sl_schedule_actions(schedule, 1, &row), 0);
    assert_int_equal(sl_schedule_actions(schedule, 2, &row), 3);
    assert_int_equal(row[1].kind, SL_ACTION_RECOMPUTE);
    sl_schedule_destroy(&schedule);
    assert_null(schedule);
    sl_schedule_destroy(&schedule);

    int negative[] = {2, -1, 3};
    assert_int_equal(sl_schedule_from_table(3, 1, negative, actions, &schedule), SL_ERR_INVALID);
    assert_string_equal(sl_error_text(), "sl_schedule_from_table: stage 1 has -1 actions");
}

static void forward_only_runs_every_micro_once_in_order(void **state)
{
    (void)state;
    sl_schedule *schedule;
    assert_int_equal(sl_schedule_forward_only(2, 3, &schedule), SL_OK);
    assert_int_equal(sl_schedule_validate(schedule), SL_OK);
    for (int stage = 0; stage < 2; stage++) {
        const sl_action *row;
        assert_int_equal(sl_schedule_actions(schedule, stage, &row), 3);
        for (int micro = 0; micro < 3; micro++) {
            assert_int_equal(row[micro].kind, SL_ACTION_FORWARD_DISCARD);
            assert_int_equal(row[micro].micro, micro);
        }
    }
    sl_schedule_destroy(&schedule);
}

/* Calls visit for both schedules, every checkpoint mode and all sizes up to 6 stages, 9 micros. */
static void for_each_schedule(void (*visit)(const sl_schedule *, sl_recompute))
{
    for (int kind = SL_SCHEDULE_GPIPE; kind <= SL_SCHEDULE_1F1B; kind++)
        for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++)
            for (int stages = 1; stages <= 6; stages++)
                for (int micros = 1; micros <= 9; micros++) {
                    sl_schedule *schedule;
                    assert_int_equal(sl_schedule_create((sl_schedule_kind)kind, stages, micros,
                                                        (sl_recompute)mode, &schedule),
                                     SL_OK);
                    visit(schedule, (sl_recompute)mode);
                    sl_schedule_destroy(&schedule);
                }
}

static void check_valid(const sl_schedule *schedule, sl_recompute recompute)
{
    (void)recompute;
    if (sl_schedule_validate(schedule) != SL_OK)
        fail_msg("%s", sl_error_text());
}

static void every_generated_table_is_valid(void **state)
{
    (void)state;
    for_each_schedule(check_valid);
}

static void check_backward_order(const sl_schedule *schedule, sl_recompute recompute)
{
    (void)recompute;
    for (int stage = 0; stage < sl_schedule_stages(schedule); stage++) {
        const sl_action *row;
        int count = sl_schedule_actions(schedule, stage, &row);
        int expected = sl_schedule_micros(schedule) - 1;
        for (int i = 0; i < count; i++)
            if (row[i].kind == SL_ACTION_BACKWARD)
                assert_int_equal(row[i].micro, expected--);
    }
}

static void every_schedule_goes_backward_from_last_to_first(void **state)
{
    (void)state;
    for_each_schedule(check_backward_order);
}

static void check_recomputations(const sl_schedule *schedule, sl_recompute recompute)
{
    int micros = sl_schedule_micros(schedule);
    int expected = recompute == SL_RECOMPUTE_ALWAYS  ? micros
                   : recompute == SL_RECOMPUTE_NEVER ? 0
                                                     : micros - 1;
    for (int stage = 0; stage < sl_schedule_stages(schedule); stage++) {
        const sl_action *row;
        int count = sl_schedule_actions(schedule, stage, &row), recomputations = 0;
        for (int i = 0; i < count; i++) {
            recomputations += row[i].kind == SL_ACTION_RECOMPUTE;
            if (row[i].kind == SL_ACTION_FORWARD && recompute == SL_RECOMPUTE_EXCEPT_LAST)
                assert_int_equal(row[i].micro, micros - 1);
        }
        assert_int_equal(recomputations, expected);
    }
}

static void stages_recompute_all_but_the_last_or_none_by_mode(void **state)
{
    (void)state;
    for_each_schedule(check_recomputations);
}

int schedule_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_parse_back_to_their_kinds),
        cmocka_unit_test(unknown_names_are_refused_with_the_choices),
        cmocka_unit_test(table_without_stages_or_micros_is_refused),
        cmocka_unit_test(own_table_is_copied_row_by_row),
        cmocka_unit_test(forward_only_runs_every_micro_once_in_order),
        cmocka_unit_test(every_generated_table_is_valid),
        cmocka_unit_test(every_schedule_goes_backward_from_last_to_first),
        cmocka_unit_test(stages_recompute_all_but_the_last_or_none_by_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
