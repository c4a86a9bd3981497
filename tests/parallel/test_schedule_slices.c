/* Tables whose micro-batches are cut into slices: drawn, proved, simulated, read and written. */
#include "core/file.h"
#include "parallel/schedule/table.h"
#include "support/check.h"
#include "support/pipes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const sliced[] = {"gpipe", "1f1b", "zb-h1"};
enum { SCHEDULES = sizeof sliced / sizeof *sliced };

static sl_schedule *write_table(const char *name, int ranks, int micros, int slices)
{
    sl_schedule *schedule;
    sl_schedule_options options = {.ranks = ranks, .micros = micros, .slices = slices};
    check_ok(sl_schedule_write(name, &options, &schedule));
    assert_int_equal(sl_schedule_micros(schedule), micros);
    assert_int_equal(sl_schedule_slices(schedule), slices);
    return schedule;
}

static sl_schedule *parse(const char *text)
{
    sl_schedule *schedule;
    check_ok(sli_schedule_parse("table", text, strlen(text), &schedule));
    return schedule;
}

static void check_drawing(const sl_schedule *schedule, const char *expected)
{
    FREED char *text = NULL;
    check_ok(sl_schedule_draw(schedule, &text));
    assert_string_equal(text, expected);
}

/* ---- Drawn by hand ---------------------------------------------------------------------- */

static void slices_go_forward_in_order_and_backward_in_reverse(void **state)
{
    SCOPED(sl_schedule) *gpipe = write_table("gpipe", 2, 2, 2), *row = write_table("1f1b", 1, 2, 3),
                        *seq = write_table("1f1b", 3, 2, 2);
    check_drawing(gpipe, "0F1.0 0F1.1 0F0.0 0F0.1 ..... ..... 0B0.1 0B0.0 0B1.1 0B1.0\n"
                         "..... 1F1.0 1F1.1 1F0.0 1F0.1 1B0.1 1B0.0 1B1.1 1B1.0 .....\n");
    check_drawing(row, "0F0.0 0F0.1 0F0.2 0B0.2 0F1.0 0B0.1 0F1.1 0B0.0 0F1.2 0B1.2 0B1.1 0B1.0\n");
    check_drawing(seq, "0F0.0 0F0.1 0F1.0 0F1.1 ..... ..... 0B0.1 ..... 0B0.0 ..... 0B1.1 0B1.0\n"
                       "..... 1F0.0 1F0.1 1F1.0 ..... 1B0.1 1F1.1 1B0.0 ..... 1B1.1 1B1.0 .....\n"
                       "..... ..... 2F0.0 2F0.1 2B0.1 2F1.0 2B0.0 2F1.1 2B1.1 2B1.0 ..... .....\n");
}

static void the_file_of_1f1b_draws_its_slices(void **state)
{
    const char *root = getenv("SLUICE_SOURCE_DIR");
    if (!root) {
        print_message("skipped: SLUICE_SOURCE_DIR names no sources\n");
        skip();
    }
    char path[512], *rest;
    FREED char *source = NULL;
    FREED char *table = NULL;
    size_t bytes;
    snprintf(path, sizeof path, "%s/src/parallel/schedule/1f1b.c", root);
    check_ok(sli_file_read(path, 1 << 20, &source, &bytes));
    SCOPED(sl_schedule) *schedule = write_table("1f1b", 2, 2, 2);
    check_ok(sl_schedule_draw(schedule, &table));
    int rank = 0;
    for (char *row = strtok_r(table, "\n", &rest); row; row = strtok_r(NULL, "\n", &rest)) {
        char line[256];
        snprintf(line, sizeof line, " *     rank %d   %s\n", rank++, row);
        if (!strstr(source, line))
            fail_msg("1f1b.c does not draw\n%s", line);
    }
    assert_int_equal(rank, 2);
}

/* ---- Proof ------------------------------------------------------------------------------ */

static void every_sliced_table_is_valid_in_every_mode(void **state)
{
    for (int i = 0; i < SCHEDULES; i++)
        for (int ranks = 1; ranks <= 5; ranks++)
            for (int micros = 1; micros <= 7; micros++)
                for (int slices = 1; slices <= 5; slices++)
                    for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++) {
                        SCOPED(sl_schedule) *schedule =
                                                write_table(sliced[i], ranks, micros, slices),
                                            *first = NULL;
                        check_ok(sl_schedule_recompute(schedule, (sl_recompute)mode));
                        check_ok(sl_schedule_validate(schedule));
                        check_ok(sl_schedule_first_micros(schedule, (micros + 1) / 2, &first));
                        assert_int_equal(sl_schedule_slices(first), slices);
                        check_ok(sl_schedule_validate(first));
                    }
}

static void orders_of_slices_that_cannot_run_are_named(void **state)
{
    static const struct {
        const char *table, *error;
    } cases[] = {
        {"0F0.1,0F0.0,0B0.1,0B0.0\n",
         "rank 0, action 0: 0F0.1 comes before the forward of the slice before it"},
        {"0F0.0,0F0.1,0B0.0,0B0.1\n",
         "rank 0, action 3: 0B0.1 comes after an earlier slice: at each stage, a micro-batch's "
         "slices must go backward from the last to the first"},
        {"0F0.0,0F0.1,0I0.1,0I0.0,0W0.0,0W0.1\n", "0W0.1 comes after an earlier slice"},
        {"0F0.0,0F0.1,0B0.1,0F1.0,0F1.1,0B1.1,0B0.0,0B1.0\n", "0B0.0 comes after a higher"},
        {"0F0.0,0F0.1,0B0.1\n", "stage 0 never runs micro-batch 0.0 backward"},
        {"0F0.0,0F1.0,0F1.1,0B0.0,0B1.1,0B1.0\n", "stage 0 never runs micro-batch 0.1 forward"},
        {"0F0.0,0B0.1,0B0.0,0F0.1\n", "0B0.1 comes before the micro-batch's forward"},
        {"0F0.0,0F0.1,0B0.1,0B0.0\n1F0.0,1B0.1,1B0.0,1F0.1\n", "1B0.1 comes before the micro"},
        {"0F0.0,0B0.1,0F0.1,0B0.0\n1F0.0,1F0.1,1B0.1,1B0.0\n", "0B0.1 comes before the micro"},
        {"0F0.0,0F0.1,0S0.0,0S0.1,0B0.1,0B0.0,0T0.1,0T0.0\n",
         "0S0.0 is of a split head, but the table has slices"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(sl_schedule) *schedule = parse(cases[i].table);
        check_error(sl_schedule_validate(schedule), SL_ERR_INVALID, cases[i].error);
    }
    SCOPED(sl_schedule) *crossed = parse("0F0.0,0F0.1,0B0.1,0B0.0,0F1.0,0F1.1,0B1.1,0B1.0\n"
                                         "1F0.0,1F0.1,1F1.0,1F1.1,1B0.1,1B0.0,1B1.1,1B1.0\n");
    check_error(sl_schedule_validate(crossed), SL_ERR_INVALID,
                "deadlock: rank 0 waits at 0B0.1 for the backward of micro-batch 0.1 at stage 1");
}

static void what_slices_do_not_go_with_is_refused(void **state)
{
    static const char *const whole[] = {"interleaved", "looped-bfs", "zb-v"};
    SCOPED(sl_schedule) *schedule = NULL;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        check_error(sl_schedule_write(whole[i],
                                      &(sl_schedule_options){.ranks = 2, .micros = 2, .slices = 2},
                                      &schedule),
                    SL_ERR_INVALID,
                    "does not cut micro-batches into slices: gpipe, 1f1b and zb-h1 do");
    check_error(sl_schedule_write("1f1b",
                                  &(sl_schedule_options){.ranks = 2, .micros = 2, .slices = -1},
                                  &schedule),
                SL_ERR_INVALID, "slices must be at least 1, got -1");
    check_error(
        sl_schedule_write("1f1b",
                          &(sl_schedule_options){.ranks = 2, .micros = 1 << 20, .slices = 1 << 20},
                          &schedule),
        SL_ERR_INVALID, "too large");
    schedule = write_table("1f1b", 2, 2, 2);
    check_error(sl_schedule_split_head(schedule, 1), SL_ERR_INVALID,
                "the head of a table with slices cannot be split");
    check_ok(sl_schedule_validate(schedule));
}

/* ---- Text ------------------------------------------------------------------------------- */

static void sliced_tables_are_written_as_they_were_read(void **state)
{
    static const char text[] = "0F0.0,0F0.1,0R0.1,0I0.1,0B0.0,0W0.1\n";
    SCOPED(sl_schedule) *schedule = parse(text);
    const sl_action *row;
    FREED char *csv = NULL;
    check_ok(sl_schedule_csv(schedule, &csv));
    assert_string_equal(csv, text);
    assert_int_equal(sl_schedule_slices(schedule), 2);
    assert_int_equal(sl_schedule_micros(schedule), 1);
    sl_schedule_actions(schedule, 0, &row);
    assert_int_equal(row[0].micro, 1);
    assert_int_equal(row[1].micro, 0);
    assert_int_equal(row[0].slices, 2);
}

/* Micro-batches are numbered anew, their slices not. */
static void descending_micro_batches_of_slices_are_numbered_anew(void **state)
{
    SCOPED(sl_schedule) *schedule = parse("0F1.0,0F1.1,0B1.1,0B1.0,0F0.0,0F0.1,0B0.1,0B0.0\n");
    check_ok(sl_schedule_validate(schedule));
    check_drawing(schedule, "0F0.0 0F0.1 0B0.1 0B0.0 0F1.0 0F1.1 0B1.1 0B1.0\n");
}

static void files_with_slices_are_compared_with_the_options(void **state)
{
    static const char path[] = "sliced.csv", text[] = "0F0.0,0F0.1,0B0.1,0B0.0\n";
    SCOPED(sl_schedule) *schedule = NULL;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    check_ok(sl_schedule_open(path, &(sl_schedule_options){.slices = 2}, &schedule));
    sl_schedule_destroy(&schedule);
    check_error(sl_schedule_open(path, &(sl_schedule_options){.slices = 3}, &schedule),
                SL_ERR_INVALID, "sliced.csv has 2 slices of a micro-batch, not 3");
    remove(path);
}

static void text_with_slices_that_is_no_table_is_refused(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"0F0.,0B0\n", "expected an action such as 2F0"},
        {"0F0.0,0F0.x\n", "expected an action such as 2F0"},
        {"0F0.16000000,0B0.0\n", "2 actions are too few for 1 stages and 1 micro-batches in"},
        {"0F0.0,0B9.9,0B0.0\n", "3 actions are too few for 1 stages and 10 micro-batches"},
    };
    SCOPED(sl_schedule) *schedule = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(sli_schedule_parse("table", cases[i].text, strlen(cases[i].text), &schedule),
                    SL_ERR_FORMAT, cases[i].error);
}

/* ---- Time and memory -------------------------------------------------------------------- */

static sl_simulation simulate(const sl_schedule *schedule)
{
    enum { MOST_STAGES = 16 };
    double costs[MOST_STAGES];
    sl_simulation simulation;
    for (int s = 0; s < MOST_STAGES; s++)
        costs[s] = 1.0 / sl_schedule_slices(schedule);
    check_ok(sl_schedule_simulate(
        schedule,
        &(sl_cost_model){.forward = costs, .backward_input = costs, .backward_weight = costs},
        &simulation));
    return simulation;
}

/* Seq1F1B's bubble, and GPipe's, are those of K M micro-batches; a rank holds the P - r micro-units
 * of 1F1B and the K - 1 slices that go forward before the first backward. */
static void bubbles_and_what_is_held_are_the_closed_forms(void **state)
{
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int micros = 2 * ranks; micros <= 2 * ranks + 5; micros++)
            for (int slices = 1; slices <= 6; slices++)
                for (int i = 0; i < SCHEDULES; i++) {
                    SCOPED(sl_schedule) *schedule = write_table(sliced[i], ranks, micros, slices);
                    sl_simulation simulation = simulate(schedule);
                    int n = i == 2 ? 3 : 1; /* of ZB-H1 a third */
                    double expected = (ranks - 1.0) / (n * micros * slices + ranks - 1.0);
                    if (fabs(simulation.bubble - expected) > 1e-9)
                        fail_msg("%s, %d ranks, %d micro-batches of %d slices: bubble %g, not %g",
                                 sliced[i], ranks, micros, slices, simulation.bubble, expected);
                    for (int rank = 0; rank < ranks; rank++) {
                        int held = simulation.peak_held[rank];
                        if (i == 0)
                            assert_int_equal(held, micros * slices);
                        else if (i == 1)
                            assert_int_equal(held, ranks - rank + slices - 1);
                        else
                            assert_true(held <= ranks + slices - 1);
                    }
                    sl_simulation_clear(&simulation);
                }
}

/* Every slice takes its own time, which the trace says, and a mean over both would hide. */
static void utilization_predicts_with_each_slices_time(void **state)
{
    SCOPED(sl_schedule) *schedule = write_table("1f1b", 2, 3, 2);
    const sl_action *row;
    double seconds[24];
    static const double zeros[2];
    int count = sl_schedule_actions(schedule, 0, &row) + sl_schedule_actions(schedule, 1, &row);
    assert_int_equal(count, 24);
    sl_schedule_actions(schedule, 0, &row);
    for (int i = 0; i < count; i++)
        seconds[i] = (row[i].kind == SL_ACTION_FORWARD ? 1 : 2) * (row[i].micro % 2 ? 1 : 3);
    sl_simulation simulation;
    check_ok(sl_schedule_simulate(schedule,
                                  &(sl_cost_model){.forward = zeros,
                                                   .backward_input = zeros,
                                                   .backward_weight = zeros,
                                                   .seconds = seconds},
                                  &simulation));
    sl_utilization utilization;
    check_ok(sl_timeline_utilization(simulation.entries, simulation.entry_count,
                                     &(sl_schedule_options){.ranks = 2, .slices = 2},
                                     &utilization));
    assert_float_equal(utilization.predicted_seconds, simulation.makespan, 1e-9);
    assert_float_equal(utilization.forward[0], 4, 1e-9);
    assert_float_equal(utilization.backward[1], 8, 1e-9);
    sl_utilization_clear(&utilization);
    sl_simulation_clear(&simulation);
}

int schedule_slices_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_go_forward_in_order_and_backward_in_reverse),
        cmocka_unit_test(the_file_of_1f1b_draws_its_slices),
        cmocka_unit_test(every_sliced_table_is_valid_in_every_mode),
        cmocka_unit_test(orders_of_slices_that_cannot_run_are_named),
        cmocka_unit_test(what_slices_do_not_go_with_is_refused),
        cmocka_unit_test(sliced_tables_are_written_as_they_were_read),
        cmocka_unit_test(descending_micro_batches_of_slices_are_numbered_anew),
        cmocka_unit_test(files_with_slices_are_compared_with_the_options),
        cmocka_unit_test(text_with_slices_that_is_no_table_is_refused),
        cmocka_unit_test(bubbles_and_what_is_held_are_the_closed_forms),
        cmocka_unit_test(utilization_predicts_with_each_slices_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
