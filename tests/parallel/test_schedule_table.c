/* Tables from text: read, written, renumbered, cut, refused. */
#include "parallel/schedule/table.h"
#include "support/check.h"
#include "support/pipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sl_schedule *parse(const char *text)
{
    sl_schedule *schedule;
    check_ok(sli_schedule_parse("table", text, strlen(text), &schedule));
    return schedule;
}

static void check_csv(const sl_schedule *schedule, const char *expected)
{
    FREED char *text = NULL;
    check_ok(sl_schedule_csv(schedule, &text));
    assert_string_equal(text, expected);
}

/* ---- PyTorch's CSV ---------------------------------------------------------------------- */

static void table_is_written_as_it_was_read(void **state)
{
    static const char text[] = "0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1R1,1B1\n";
    SCOPED(sl_schedule) *schedule = parse(text);
    assert_int_equal(sl_schedule_ranks(schedule), 2);
    assert_int_equal(sl_schedule_stages(schedule), 2);
    assert_int_equal(sl_schedule_micros(schedule), 2);
    check_ok(sl_schedule_validate(schedule));
    check_csv(schedule, text);
}

static void pauses_blanks_and_line_ends_do_not_count(void **state)
{
    SCOPED(sl_schedule) *schedule = parse("0F0,, 0B0 ,\r\n,1F0,1B0\r\n\n\n");
    check_ok(sl_schedule_validate(schedule));
    check_csv(schedule, "0F0,0B0\n1F0,1B0\n");
}

static void two_actions_of_a_cell_are_joined(void **state)
{
    static const char text[] = "0F0,(0F1;1I0)OVERLAP_F_B,1W0\n";
    const sl_action *row;
    SCOPED(sl_schedule) *schedule = parse(text);
    assert_int_equal(sl_schedule_actions(schedule, 0, &row), 4);
    assert_false(row[0].joined || row[1].joined || row[3].joined);
    assert_true(row[2].joined);
    check_csv(schedule, text);
}

static void backward_with_a_weights_half_is_the_inputs_half(void **state)
{
    SCOPED(sl_schedule) *schedule = parse("0F0,0F1,0B0,0W0,0B1\n");
    check_csv(schedule, "0F0,0F1,0I0,0W0,0B1\n");
}

static void descending_micro_batches_are_numbered_anew(void **state)
{
    SCOPED(sl_schedule) *schedule = parse("0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n");
    check_ok(sl_schedule_validate(schedule));
    check_csv(schedule, "0F2,0F1,0F0,0B0,0B1,0B2\n1F2,1F1,1F0,1B0,1B1,1B2\n");
    sl_schedule_destroy(&schedule);
    schedule = parse("0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0\n"); /* not in the same order */
    check_error(sl_schedule_validate(schedule), SL_ERR_INVALID,
                "rank 1, action 3: 1B0 comes after a higher micro-batch");
}

static void first_micro_batches_of_a_table_are_a_table(void **state)
{
    sl_schedule *whole = parse("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n"), *part;
    check_ok(sl_schedule_first_micros(whole, 2, &part));
    check_csv(part, "0F0,0F1,0B0,0B1\n");
    sl_schedule_destroy(&part);
    sl_schedule_destroy(&whole);
    for (int i = 0; sl_schedule_names[i]; i++) {
        sl_schedule_options options = {.ranks = 3, .micros = 9};
        check_ok(sl_schedule_write(sl_schedule_names[i], &options, &whole));
        check_ok(sl_schedule_recompute(whole, SL_RECOMPUTE_EXCEPT_LAST));
        for (int micros = 1; micros <= 9; micros++) {
            check_ok(sl_schedule_first_micros(whole, micros, &part));
            check_ok(sl_schedule_validate(part));
            sl_schedule_destroy(&part);
        }
        sl_schedule_destroy(&whole);
    }
}

static void text_that_is_no_table_is_refused(void **state)
{
    const struct {
        const char *text, *error;
    } cases[] = {
        {"", "table: there is no action"},
        {",,\n", "table: there is no action"},
        {"0F0,0X0\n", "table: line 1, cell 2: expected an action such as 2F0"},
        {"0F0\n1F\n", "table: line 2, cell 1: expected"},
        {"0F0 0B0\n", "got '0F0 0B0'"},
        {"0SEND_F0\n", "got '0SEND_F0'"},
        {"(0F0;0B0)\n", "got '(0F0;0B0)'"},
        {"(0F0;0B0)OVERLAP_F_B1\n", "expected"},
        {"99999999999F0\n", "expected"},
        {"0F0,0B0,5F0,5B0\n", "too few"},
        {"0F0,0B0,2F0,2B0\n", "no action of stage 1"},
        {"0F0,1F0,1B0\n0B0\n", "table: stage 0 is in line 1 and in line 2"},
        {"0F0,1F0,1B0,0B0\n2F0,2B0\n", "multiple of the 2 ranks"},
        {"0F0,1F0,2F0,2B0,1B0,0B0\n3F0,3B0\n", "each of 2 ranks must have 2 of the 4 stages"},
        {"0F0,0B0\n\n1F0,1B0\n", "stages must be a multiple of the 3 ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_schedule *schedule;
        sl_status status =
            sli_schedule_parse("table", cases[i].text, strlen(cases[i].text), &schedule);
        assert_null(schedule);
        assert_true(status == SL_ERR_FORMAT || status == SL_ERR_INVALID);
        check_error(status, status, cases[i].error);
    }
}

/* ---- Names and files -------------------------------------------------------------------- */

static void options_that_disagree_with_a_file_are_refused(void **state)
{
    static const char text[] = "0F0,0F1,3F0,3B0,0B0,3F1,3B1,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n";
    char path[] = "/tmp/sluice-table-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0 && write(file, text, sizeof text - 1) == sizeof text - 1);
    assert_int_equal(close(file), 0);
    const struct {
        sl_schedule_options options;
        const char *error; /* NULL: none */
    } cases[] = {
        {{0}, NULL},
        {{.ranks = 2, .virtual_stages = 2, .micros = 2, .placement = (int[]){0, 1, 1, 0}}, NULL},
        {{.ranks = 1}, "has 2 ranks, not 1"},
        {{.virtual_stages = 1}, "has 2 stages a rank, not 1"},
        {{.micros = 3}, "has 2 micro-batches, not 3"},
        {{.ranks = 2, .virtual_stages = 2, .placement = (int[]){0, 1, 0, 1}},
         "has stage 2 on rank 1, not 0"},
        {{.placement = (int[]){0, 1}}, "needs ranks and virtual_stages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(sl_schedule) *schedule = NULL;
        sl_status status = sl_schedule_open(path, &cases[i].options, &schedule);
        if (cases[i].error)
            check_error(status, SL_ERR_INVALID, cases[i].error);
        else
            check_ok(status);
        assert_int_equal(schedule != NULL, !cases[i].error);
    }
    assert_int_equal(remove(path), 0);
}

/* ---- The validator ---------------------------------------------------------------------- */

static void faults_are_named_with_rank_action_and_reason(void **state)
{
    const struct {
        const char *text, *error;
    } cases[] = {
        {"0B0,0F0,1F0,1B0\n", "rank 0, action 0: 0B0 comes before the micro-batch's forward"},
        {"0F0,1F0,1F0,1B0,0B0\n", "action 2: 1F0 runs the micro-batch forward a second time"},
        {"0F0,1F0,1B0,0B0,0B0\n", "action 4: 0B0 runs the micro-batch backward a second time"},
        {"0F0,0I0,1F0,1B0\n", "stage 0 never runs micro-batch 0 backward for the weights"},
        {"0F0,1F0,1W0,1I0,0B0\n", "action 2: 1W0 comes before the micro-batch's I"},
        {"0F0,1F0,1I0,1W0,1W0,0B0\n", "action 4: 1W0 adds to the weights a second time"},
        {"0F0,1F0,1R0,1R0,1B0,0B0\n", "action 3: 1R0 comes a second time"},
        {"0F0,1F0,1B0,1R0,0B0\n", "action 2: 1B0 comes before the R that it needs"},
        {"0R0,0F0,1F0,1B0,0B0\n", "action 0: 0R0 comes before the micro-batch's forward"},
        {"0F0,1F0,1B0\n", "stage 0 never runs micro-batch 0 backward"},
        {"0F0,0F1,1F0,1F1,1I0,1I1,1W1,1W0,0B0,0B1\n",
         "action 7: 1W0 comes after a higher micro-batch"},
        {"0F0,0F1,1F0,1F1,1I1,1B0,1W1,0B0,0B1\n", "action 5: 1B0 comes after a higher"},
        {"(0B0;0F0)OVERLAP_F_B\n",
         "0F0 cannot be in one cell with the action before it: a cell with two has a forward"},
        {"(0F0;0B0)OVERLAP_F_B\n", "action 1: 0B0 cannot be in one cell with the action before "
                                   "it: it needs that forward"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(sl_schedule) *schedule = parse(cases[i].text);
        check_error(sl_schedule_validate(schedule), SL_ERR_INVALID, cases[i].error);
    }
}

static void faults_are_drawn_up_to_there(void **state)
{
    SCOPED(sl_schedule) *schedule = parse("0F0,0F1,0B0,0B1\n1F0,1B0,1B0,1F1,1B1");
    check_error(sl_schedule_validate(schedule), SL_ERR_INVALID, "");
    assert_string_equal(sl_error_text(), "schedule: rank 1, action 2: 1B0 runs the micro-batch "
                                         "backward a second time:\n"
                                         "0F0 0F1 ... ...\n... 1F0 1B0 1B0");
    sl_schedule_destroy(&schedule);
    schedule = parse("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1");
    check_error(sl_schedule_validate(schedule), SL_ERR_INVALID, "deadlock");
    assert_string_equal(sl_error_text(),
                        "schedule: deadlock: rank 0 waits at 0B0 for the backward of micro-batch 0 "
                        "at stage 1, which never comes:\n0F0 ...\n... 1F0");
    sl_schedule_destroy(&schedule);
    /* Each alone could run, but not as one cell. */
    schedule = parse("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1");
    check_error(sl_schedule_validate(schedule), SL_ERR_INVALID, "rank 0 waits at 0F1");
}

static void actions_outside_the_table_are_refused(void **state)
{
    const struct {
        sl_action action;
        const char *error;
    } cases[] = {
        {{.stage = 2}, "rank 0, action 0: 2F0 is of a stage outside 0 to 1"},
        {{.stage = -1}, "stage outside"},
        {{.micro = 1}, "0F1 is of a micro-batch outside 0 to 0"},
        {{.stage = 1}, "1F0 is of a stage that rank 1 has"},
        {{.kind = (sl_action_kind)9}, "rank 0, action 0 has no kind (9)"},
    };
    const int counts[] = {1, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(sl_schedule) *schedule = NULL;
        sl_schedule_options options = {.ranks = 2, .micros = 1};
        char *drawing;
        check_ok(sl_schedule_from_table(&options, counts, &cases[i].action, &schedule));
        check_error(sl_schedule_validate(schedule), SL_ERR_INVALID, cases[i].error);
        check_error(sl_schedule_draw(schedule, &drawing), SL_ERR_INVALID, cases[i].error);
    }
}

/* ---- Random tables ---------------------------------------------------------------------- */

static sl_schedule *draw_table(unsigned *seed)
{
    int ranks = test_draw(seed, 1, 4), micros = test_draw(seed, 2, 8);
    if (test_draw(seed, 0, 1))
        return random_table(seed, ranks, test_draw(seed, 1, 3), micros);
    sl_schedule *schedule;
    sl_schedule_options options = {.ranks = ranks, .micros = micros};
    check_ok(sl_schedule_write(sl_schedule_names[test_draw(seed, 0, 5)], &options, &schedule));
    check_ok(sl_schedule_recompute(schedule, (sl_recompute)test_draw(seed, 0, 2)));
    return schedule;
}

static void check_read_again(const sl_schedule *schedule)
{
    FREED char *text = NULL;
    check_ok(sl_schedule_csv(schedule, &text));
    sl_schedule *again = parse(text);
    check_csv(again, text);
    assert_memory_equal(sl_schedule_placement(again), sl_schedule_placement(schedule),
                        (size_t)sl_schedule_stages(schedule) * sizeof(int));
    sl_schedule_destroy(&again);
}

static void random_tables_are_valid_and_so_are_their_first_micro_batches(void **state)
{
    unsigned seed = test_seed(20261123);
    for (int round = 0; round < 1000; round++) {
        SCOPED(sl_schedule) *schedule = draw_table(&seed), *first = NULL;
        check_ok(sl_schedule_validate(schedule));
        check_read_again(schedule);
        check_ok(sl_schedule_first_micros(schedule,
                                          test_draw(&seed, 1, sl_schedule_micros(schedule)),
                                          &first));
        check_ok(sl_schedule_recompute(first, (sl_recompute)test_draw(&seed, 0, 2)));
        check_ok(sl_schedule_validate(first));
    }
}

typedef enum fault { ONE_LESS, ONE_TWICE, OTHER_MICRO, TWO_EXCHANGED, FAULTS } fault;

/* The table with one fault; *moved is the action that it befalls. */
static sl_schedule *break_table(const sl_schedule *schedule, unsigned *seed, fault kind,
                                sl_action *moved)
{
    int counts[4], ranks = sl_schedule_ranks(schedule), micros = sl_schedule_micros(schedule);
    const sl_action *row, *first;
    size_t total = 0;
    sl_schedule_actions(schedule, 0, &first);
    for (int rank = 0; rank < ranks; rank++)
        total += (size_t)(counts[rank] = sl_schedule_actions(schedule, rank, &row));
    FREED sl_action *actions = malloc((total + 1) * sizeof *actions);
    assert_non_null(actions);
    memcpy(actions, first, total * sizeof *actions);
    int rank = test_draw(seed, 0, ranks - 1);
    sl_schedule_actions(schedule, rank, &row);
    size_t victim = (size_t)(row - first) + (size_t)test_draw(seed, 0, counts[rank] - 1);
    size_t other = (size_t)(row - first) + (size_t)test_draw(seed, 0, counts[rank] - 1);
    *moved = actions[victim];
    if (kind == ONE_LESS) {
        memmove(actions + victim, actions + victim + 1, (total - victim - 1) * sizeof *moved);
        counts[rank]--;
    } else if (kind == ONE_TWICE) {
        memmove(actions + victim + 1, actions + victim, (total - victim) * sizeof *moved);
        counts[rank]++;
    } else if (kind == OTHER_MICRO) {
        actions[victim].micro = (moved->micro + 1) % micros;
    } else {
        actions[victim] = actions[other];
        actions[other] = *moved;
    }
    sl_schedule_options options = {.ranks = ranks,
                                   .virtual_stages = sl_schedule_stages(schedule) / ranks,
                                   .placement = sl_schedule_placement(schedule),
                                   .micros = micros};
    sl_schedule *broken;
    check_ok(sl_schedule_from_table(&options, counts, actions, &broken));
    return broken;
}

/* "schedule: rank 1, action 4: 3B0 ...", "schedule: stage 3 ...", or a deadlock. */
static void check_reason(void)
{
    const char *text = sl_error_text();
    int rank, number, stage, micro;
    char kind;
    bool names_action =
        sscanf(text, "schedule: rank %d, action %d: %d%c%d ", &rank, &number, &stage, &kind,
               &micro) == 5 ||
        sscanf(text, "schedule: deadlock: rank %d waits at %d%c%d for ", &rank, &stage, &kind,
               &micro) == 4 ||
        sscanf(text, "schedule: stage %d never runs micro-batch %d ", &stage, &micro) == 2;
    if (!names_action)
        fail_msg("no stage and action in: %s", text);
}

/* A table with one action less, twice, or of another micro-batch, can never be whole; with two
 * exchanged it may be, and then it must also play to its end. */
static void random_faults_are_refused_and_none_hangs(void **state)
{
    unsigned seed = test_seed(20261122);
    for (int round = 0; round < 3000; round++) {
        sl_action moved;
        fault kind = (fault)test_draw(&seed, 0, FAULTS - 1);
        SCOPED(sl_schedule) *schedule = draw_table(&seed);
        SCOPED(sl_schedule) *broken = break_table(schedule, &seed, kind, &moved);
        sl_status status = sl_schedule_validate(broken);
        bool may_be_whole =
            kind == TWO_EXCHANGED || (kind != ONE_TWICE && moved.kind == SL_ACTION_RECOMPUTE);
        assert_true(status == SL_ERR_INVALID || (may_be_whole && status == SL_OK));
        if (status != SL_OK)
            check_reason();
    }
}

/* ---- Other people's tables -------------------------------------------------------------- */

/* At costs of 2 for all of a rank's layers, 1 for each of its two stages. */
static void pytorchs_dual_pipe_v_takes_66_units(void **state)
{
    const double one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    SCOPED(sl_schedule) *schedule = parse(pytorch_dual_pipe_v);
    sl_simulation simulation;
    check_ok(sl_schedule_simulate(
        schedule, &(sl_cost_model){.forward = one, .backward_input = one, .backward_weight = one},
        &simulation));
    assert_float_equal(simulation.makespan, 66, 0);
    for (int rank = 0; rank < 4; rank++)
        assert_float_equal(simulation.idle[rank], 6, 0);
    sl_simulation_clear(&simulation);
    check_csv(schedule, pytorch_dual_pipe_v);
}

static void pytorchs_zb1p_is_read_in_its_older_dialect(void **state)
{
    SCOPED(sl_schedule) *schedule = parse(pytorch_zb1p);
    check_ok(sl_schedule_validate(schedule));
    assert_int_equal(sl_schedule_stages(schedule), 4);
    assert_int_equal(sl_schedule_micros(schedule), 8);
    const sl_action *row;
    for (int rank = 0; rank < 2; rank++) {
        int count = sl_schedule_actions(schedule, rank, &row);
        for (int i = 0; i < count; i++)
            assert_true(row[i].kind != SL_ACTION_BACKWARD);
    }
}

int schedule_table_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_written_as_it_was_read),
        cmocka_unit_test(pauses_blanks_and_line_ends_do_not_count),
        cmocka_unit_test(two_actions_of_a_cell_are_joined),
        cmocka_unit_test(backward_with_a_weights_half_is_the_inputs_half),
        cmocka_unit_test(descending_micro_batches_are_numbered_anew),
        cmocka_unit_test(first_micro_batches_of_a_table_are_a_table),
        cmocka_unit_test(text_that_is_no_table_is_refused),
        cmocka_unit_test(options_that_disagree_with_a_file_are_refused),
        cmocka_unit_test(faults_are_named_with_rank_action_and_reason),
        cmocka_unit_test(faults_are_drawn_up_to_there),
        cmocka_unit_test(actions_outside_the_table_are_refused),
        cmocka_unit_test(random_tables_are_valid_and_so_are_their_first_micro_batches),
        cmocka_unit_test(random_faults_are_refused_and_none_hangs),
        cmocka_unit_test(pytorchs_dual_pipe_v_takes_66_units),
        cmocka_unit_test(pytorchs_zb1p_is_read_in_its_older_dialect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
