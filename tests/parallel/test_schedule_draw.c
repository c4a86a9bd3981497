/* The golden tables in schedules.txt are drawn by hand, and sl_schedule_draw must draw the same. */
#include "sluice/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_golden(const char *kind_name, int stages, int micros, const char *mode,
                         const char *expected)
{
    sl_schedule_kind kind;
    sl_recompute recompute;
    sl_schedule *schedule;
    char *drawing;
    assert_int_equal(sl_schedule_kind_parse(kind_name, &kind), SL_OK);
    assert_int_equal(sl_recompute_parse(mode, &recompute), SL_OK);
    assert_int_equal(sl_schedule_create(kind, stages, micros, recompute, &schedule), SL_OK);
    assert_int_equal(sl_schedule_draw(schedule, &drawing), SL_OK);
    if (strcmp(drawing, expected) != 0)
        fail_msg("%s, %d stages, %d micro-batches, %s must be\n%sand is\n%s", kind_name, stages,
                 micros, mode, expected, drawing);
    free(drawing);
    sl_schedule_destroy(&schedule);
}

/* A command line, then a row for each stage. */
static void schedules_are_drawn_as_the_golden_tables_show(void **state)
{
    (void)state;
    const char *source = getenv("SLUICE_SOURCE_DIR");
    char path[4096], line[512], kind[16], mode[16], expected[4096];
    int stages, micros, found = 0;
    assert_non_null(source);
    snprintf(path, sizeof path, "%s/tests/parallel/schedules.txt", source);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "--schedule %15s --pp %d --chunks %d --checkpoint %15s", kind, &stages,
                   &micros, mode) != 4)
            continue;
        *expected = '\0';
        for (int s = 0; s < stages; s++) {
            assert_non_null(fgets(line, sizeof line, file));
            strcat(expected, line);
        }
        check_golden(kind, stages, micros, mode, expected);
        found++;
    }
    fclose(file);
    assert_true(found > 10);
}

static void table_that_deadlocks_is_drawn_as_far_as_it_runs(void **state)
{
    (void)state;
    sl_action actions[] = {
        {SL_ACTION_FORWARD, 0},  {SL_ACTION_BACKWARD, 0}, {SL_ACTION_FORWARD, 1},
        {SL_ACTION_BACKWARD, 1}, {SL_ACTION_FORWARD, 0},  {SL_ACTION_FORWARD, 1},
        {SL_ACTION_BACKWARD, 1}, {SL_ACTION_BACKWARD, 0},
    };
    int counts[] = {4, 4};
    sl_schedule *schedule;
    char *drawing;
    assert_int_equal(sl_schedule_from_table(2, 2, counts, actions, &schedule), SL_OK);
    assert_int_equal(sl_schedule_draw(schedule, &drawing), SL_OK);
    assert_string_equal(drawing, "F0 ..\n"
                                 ".. F0\n");
    free(drawing);
    sl_schedule_destroy(&schedule);
}

static void table_of_nothing_is_drawn_as_empty_rows(void **state)
{
    (void)state;
    int counts[] = {0, 0};
    sl_schedule *schedule;
    char *drawing;
    assert_int_equal(sl_schedule_from_table(2, 1, counts, NULL, &schedule), SL_OK);
    assert_int_equal(sl_schedule_draw(schedule, &drawing), SL_OK);
    assert_string_equal(drawing, "\n\n");
    free(drawing);
    sl_schedule_destroy(&schedule);
}

int schedule_draw_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_are_drawn_as_the_golden_tables_show),
        cmocka_unit_test(table_that_deadlocks_is_drawn_as_far_as_it_runs),
        cmocka_unit_test(table_of_nothing_is_drawn_as_empty_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
