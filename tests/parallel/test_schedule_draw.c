/* The golden tables: schedules/<schedule>-<stages>x<micros>-<checkpoint>.txt are drawn by hand, and
 * sl_schedule_draw must draw the same. */
#include "sluice/schedule.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

static void check_golden(const char *folder, const char *name)
{
    char kind_name[16], checkpoint_name[16], path[4352];
    int stages, micros;
    if (sscanf(name, "%15[^-]-%dx%d-%15[^.].txt", kind_name, &stages, &micros, checkpoint_name) !=
        4)
        fail_msg("%s: the name must be <schedule>-<stages>x<micros>-<checkpoint>.txt", name);
    sl_schedule_kind kind;
    sl_recompute recompute;
    assert_int_equal(sl_schedule_kind_parse(kind_name, &kind), SL_OK);
    assert_int_equal(sl_recompute_parse(checkpoint_name, &recompute), SL_OK);

    sl_schedule *schedule;
    char *drawing;
    assert_int_equal(sl_schedule_create(kind, stages, micros, recompute, &schedule), SL_OK);
    assert_int_equal(sl_schedule_draw(schedule, &drawing), SL_OK);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *expected = read_file(path);
    if (strcmp(drawing, expected) != 0)
        fail_msg("%s must be\n%sand is\n%s", name, expected, drawing);
    free(expected);
    free(drawing);
    sl_schedule_destroy(&schedule);
}

static void schedules_are_drawn_as_the_golden_files_show(void **state)
{
    (void)state;
    const char *source = getenv("SLUICE_SOURCE_DIR");
    assert_non_null(source);
    char folder[4000];
    snprintf(folder, sizeof folder, "%s/tests/parallel/schedules", source);
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        check_golden(folder, entry->d_name);
        found++;
    }
    closedir(directory);
    assert_true(found >= 10);
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
        cmocka_unit_test(schedules_are_drawn_as_the_golden_files_show),
        cmocka_unit_test(table_that_deadlocks_is_drawn_as_far_as_it_runs),
        cmocka_unit_test(table_of_nothing_is_drawn_as_empty_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
