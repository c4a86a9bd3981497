/* Every schedule's table: valid, drawn as its file draws it, with the bubble and the memory that
 * its paper gives. */
#include "core/file.h"
#include "parallel/schedule/table.h"
#include "support/check.h"
#include "support/pipes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sl_schedule *write_table(const char *name, int ranks, int virtual_stages, int micros)
{
    sl_schedule *schedule;
    sl_schedule_options options = {.ranks = ranks,
                                   .virtual_stages = virtual_stages,
                                   .micros = micros};
    check_ok(sl_schedule_write(name, &options, &schedule));
    return schedule;
}

/* With costs of all of a rank's stages. */
static sl_simulation simulate(const sl_schedule *schedule, const double costs[3], double link)
{
    int stages = sl_schedule_stages(schedule), each = stages / sl_schedule_ranks(schedule);
    double *of[3];
    for (int i = 0; i < 3; i++) {
        of[i] = malloc((size_t)stages * sizeof(double));
        for (int s = 0; s < stages; s++)
            of[i][s] = costs[i] / each;
    }
    sl_simulation simulation;
    check_ok(sl_schedule_simulate(schedule,
                                  &(sl_cost_model){.forward = of[0],
                                                   .backward_input = of[1],
                                                   .backward_weight = of[2],
                                                   .link = link},
                                  &simulation));
    for (int i = 0; i < 3; i++)
        free(of[i]);
    return simulation;
}

static int most_held(const sl_schedule *schedule, const sl_simulation *simulation)
{
    int most = 0;
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++)
        most = simulation->peak_held[rank] > most ? simulation->peak_held[rank] : most;
    return most;
}

static const double unit[] = {1, 1, 1};

/* ---- Filling ------------------------------------------------------------------------------ */

/* Before a rank's first backward its row has as many forwards of each stage. */
static void check_filling(const char *name, const sl_schedule *table, int rank)
{
    const sl_action *actions;
    int count = sl_schedule_actions(table, rank, &actions), stages = sl_schedule_stages(table);
    const sl_schedule_options options = {.ranks = sl_schedule_ranks(table),
                                         .virtual_stages = stages / sl_schedule_ranks(table),
                                         .micros = sl_schedule_micros(table)};
    int *forwards = calloc((size_t)stages, sizeof *forwards);
    for (int i = 0; i < count && actions[i].kind == SL_ACTION_FORWARD; i++)
        forwards[actions[i].stage]++;
    for (int s = 0, k = 0; s < stages; s++)
        if (sl_schedule_placement(table)[s] == rank)
            assert_int_equal(sl_schedule_filling(name, &options, rank, k++), forwards[s]);
    free(forwards);
}

static void check_fillings(const char *name, int ranks, int each, int micros)
{
    sl_schedule *table = write_table(name, ranks, each, micros);
    for (int rank = 0; rank < ranks; rank++)
        check_filling(name, table, rank);
    sl_schedule_destroy(&table);
}

static void filling_is_what_comes_before_the_first_backward(void **state)
{
    for (int i = 0; sl_schedule_names[i]; i++)
        for (int each = 1; each <= 4; each++) {
            sl_schedule *table;
            const sl_schedule_options options = {.ranks = 2, .virtual_stages = each, .micros = 1};
            bool takes = sl_schedule_write(sl_schedule_names[i], &options, &table) == SL_OK;
            sl_schedule_destroy(&table);
            for (int ranks = 1; takes && ranks <= 7; ranks++)
                for (int micros = 1; micros <= 4 * ranks + 1; micros++)
                    check_fillings(sl_schedule_names[i], ranks, each, micros);
        }
}

/* ---- Tables ----------------------------------------------------------------------------- */

static void every_table_is_valid_in_every_mode(void **state)
{
    for (int i = 0; sl_schedule_names[i]; i++)
        for (int ranks = 1; ranks <= 6; ranks++)
            for (int micros = 1; micros <= 15; micros++)
                for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++) {
                    SCOPED(sl_schedule) *schedule =
                        write_table(sl_schedule_names[i], ranks, 0, micros);
                    check_ok(sl_schedule_recompute(schedule, (sl_recompute)mode));
                    check_ok(sl_schedule_validate(schedule));
                }
}

static void interleaved_takes_any_number_of_stages_and_micro_batches(void **state)
{
    for (int ranks = 1; ranks <= 5; ranks++)
        for (int each = 1; each <= 4; each++)
            for (int micros = 1; micros <= 3 * ranks + 1; micros++) {
                SCOPED(sl_schedule) *schedule = write_table("interleaved", ranks, each, micros);
                check_ok(sl_schedule_validate(schedule));
            }
}

/* A stage's gradients are complete with its last W or B, and then alone. */
static void check_completions(const sl_schedule *schedule)
{
    int stages = sl_schedule_stages(schedule), found[64] = {0};
    assert_true(stages <= 64);
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
        const sl_action *row;
        for (int i = sl_schedule_actions(schedule, rank, &row) - 1; i >= 0; i--) {
            bool adds =
                row[i].kind == SL_ACTION_BACKWARD || row[i].kind == SL_ACTION_BACKWARD_WEIGHT;
            assert_int_equal(row[i].completes, adds && found[row[i].stage] == 0);
            found[row[i].stage] += adds;
        }
    }
    for (int stage = 0; stage < stages; stage++)
        assert_int_equal(found[stage], sl_schedule_micros(schedule));
}

/* Errors are compared by these numbers while ranks go along their rows. */
static void check_order(const sl_schedule *schedule)
{
    FREED int *order = NULL;
    size_t at = 0;
    check_ok(sli_schedule_order(schedule, &order));
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
        const sl_action *row;
        int count = sl_schedule_actions(schedule, rank, &row), highest = -1, before = -1;
        for (int i = 0; i < count; i++, at++) {
            if (!row[i].joined)
                before = highest;
            if (order[at] <= before)
                fail_msg("rank %d, action %d comes before one of an earlier cell", rank, i);
            highest = order[at] > highest ? order[at] : highest;
        }
    }
}

static void completions_and_order_are_those_of_the_rows(void **state)
{
    unsigned seed = test_seed(20261124);
    for (int round = 0; round < 600; round++) {
        int ranks = test_draw(&seed, 1, 4), micros = test_draw(&seed, 1, 7);
        const char *name = sl_schedule_names[test_draw(&seed, 0, 5)];
        SCOPED(sl_schedule) *schedule =
            round % 2 ? random_table(&seed, ranks, test_draw(&seed, 1, 3), micros)
                      : write_table(name, ranks, 0, micros);
        check_ok(sl_schedule_recompute(schedule, (sl_recompute)test_draw(&seed, 0, 2)));
        check_completions(schedule);
        check_order(schedule);
    }
}

static void forward_only_tables_are_valid_for_any_placement(void **state)
{
    const int placements[][6] = {{0, 1, 2, 0, 1, 2}, {0, 1, 2, 2, 1, 0}, {2, 2, 0, 1, 0, 1}};
    for (size_t i = 0; i < sizeof placements / sizeof *placements; i++) {
        SCOPED(sl_schedule) *schedule = NULL;
        sl_schedule_options options = {.ranks = 3,
                                       .virtual_stages = 2,
                                       .micros = 5,
                                       .placement = placements[i]};
        check_ok(sli_schedule_forward_only(&options, &schedule));
        check_ok(sl_schedule_validate(schedule));
    }
}

static char *draw(const char *name, int ranks, int micros, sl_recompute mode)
{
    char *text;
    SCOPED(sl_schedule) *schedule = write_table(name, ranks, 0, micros);
    check_ok(sl_schedule_recompute(schedule, mode));
    check_ok(sl_schedule_draw(schedule, &text));
    return text;
}

/* The source of a schedule's writer: "zb-v" is in zb_v.c. */
static char *read_writer(const char *name)
{
    char file[32], path[512], *text;
    size_t bytes;
    snprintf(file, sizeof file, "%s.c", name);
    for (char *at = file; *at; at++)
        *at = *at == '-' ? '_' : *at;
    snprintf(path, sizeof path, "%s/src/parallel/schedule/%s", getenv("SLUICE_SOURCE_DIR"), file);
    check_ok(sli_file_read(path, 1 << 20, &text, &bytes));
    return text;
}

static void each_schedule_is_as_its_file_draws_it(void **state)
{
    if (!getenv("SLUICE_SOURCE_DIR")) {
        print_message("skipped: SLUICE_SOURCE_DIR names no sources\n");
        skip();
    }
    const struct {
        const char *name;
        int ranks, micros;
    } drawn[] = {{"gpipe", 2, 3},      {"1f1b", 3, 4},  {"interleaved", 2, 4},
                 {"looped-bfs", 2, 2}, {"zb-h1", 3, 4}, {"zb-v", 2, 2}};
    for (int i = 0; sl_schedule_names[i]; i++) {
        char *source = read_writer(sl_schedule_names[i]), *rest;
        assert_string_equal(drawn[i].name, sl_schedule_names[i]);
        char *table = draw(drawn[i].name, drawn[i].ranks, drawn[i].micros, SL_RECOMPUTE_NEVER);
        int rank = 0;
        for (char *row = strtok_r(table, "\n", &rest); row; row = strtok_r(NULL, "\n", &rest)) {
            char line[256];
            snprintf(line, sizeof line, " *     rank %d   %s\n", rank++, row);
            if (!strstr(source, line))
                fail_msg("the file of %s does not draw\n%s", drawn[i].name, line);
        }
        free(table);
        free(source);
    }
}

static void recomputations_come_before_their_backwards(void **state)
{
    FREED char *text = draw("gpipe", 2, 3, SL_RECOMPUTE_EXCEPT_LAST);
    assert_string_equal(text, "0F2 0F1 0F0 ... ... 0B0 0R1 0B1 0R2 0B2\n"
                              "... 1F2 1F1 1F0 1B0 1R1 1B1 1R2 1B2 ...\n");
}

static void options_that_do_not_go_together_are_refused(void **state)
{
    const int uneven[] = {0, 0, 0, 1}, outside[] = {0, 1, 2, 1}, turned[] = {1, 0, 0, 1},
              loop[] = {0, 1, 0, 1};
    const struct {
        const char *name, *text;
        sl_schedule_options options;
    } cases[] = {
        {"zigzag", "schedule must be gpipe, 1f1b, interleaved", {.ranks = 2, .micros = 2}},
        {"1f1b", "ranks must be at least 1, got 0", {.micros = 2}},
        {"1f1b", "micro-batches must be at least 1, got 0", {.ranks = 2}},
        {"1f1b", "1f1b has 1 stage a rank, not 2", {.ranks = 2, .micros = 2, .virtual_stages = 2}},
        {"zb-v", "zb-v has 2 stages a rank, not 3", {.ranks = 2, .micros = 2, .virtual_stages = 3}},
        {"zb-v",
         "zb-v accepts its own placement and permutations of its ranks",
         {.ranks = 2, .micros = 2, .placement = loop}},
        {"zb-v", "must have 2 of the 4 stages", {.ranks = 2, .micros = 2, .placement = uneven}},
        {"zb-v", "outside 0 to 1", {.ranks = 2, .micros = 2, .placement = outside}},
        {"1f1b", "too large", {.ranks = 1 << 20, .micros = 1 << 20}},
        {"zb-h1", "every cost must be", {.ranks = 2, .micros = 2, .forward = -1}},
    };
    SCOPED(sl_schedule) *schedule = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_status status = sl_schedule_write(cases[i].name, &cases[i].options, &schedule);
        assert_null(schedule);
        check_error(status, i == 0 ? SL_ERR_NOT_FOUND : SL_ERR_INVALID, cases[i].text);
    }
    /* Other names of the same ranks. */
    check_ok(sl_schedule_write("zb-v",
                               &(sl_schedule_options){.ranks = 2, .micros = 3, .placement = turned},
                               &schedule));
    assert_memory_equal(sl_schedule_placement(schedule), turned, sizeof turned);
    check_ok(sl_schedule_validate(schedule));
}

static void placements_are_read(void **state)
{
    int placement[4];
    const struct {
        const char *text;
        int expected[4];
    } cases[] = {{"loop", {0, 1, 0, 1}}, {"v", {0, 1, 1, 0}}, {"1,0,1,0", {1, 0, 1, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_ok(sl_placement_parse(cases[i].text, 2, 2, placement));
        assert_memory_equal(placement, cases[i].expected, sizeof placement);
    }
    const char *const wrong[] = {"", "w", "0,1", "0,1,1,0,1", "0,1,2,0", "0,1,-1,0", "0,1,1,0,"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        check_error(sl_placement_parse(wrong[i], 2, 2, placement), SL_ERR_INVALID,
                    "placement must be loop, v or the rank (0 to 1) of each of the 4 stages");
}

/* ---- Closed forms ----------------------------------------------------------------------- */

/* The idle fraction of the makespan at unit costs is (P - 1) / (n M + P - 1). */
static void check_bubble(const char *name, int virtual_stages, int n, int ranks, int micros)
{
    SCOPED(sl_schedule) *schedule = write_table(name, ranks, virtual_stages, micros);
    sl_simulation simulation = simulate(schedule, unit, 0);
    double expected = (ranks - 1.0) / (n * micros + ranks - 1.0);
    if (fabs(simulation.bubble - expected) > 1e-9)
        fail_msg("%s, %d ranks, %d micro-batches: bubble %g, should be %g", name, ranks, micros,
                 simulation.bubble, expected);
    sl_simulation_clear(&simulation);
}

static void bubbles_are_the_closed_forms(void **state)
{
    for (int ranks = 1; ranks <= 9; ranks++)
        for (int micros = 2 * ranks; micros <= 2 * ranks + 25; micros++) {
            check_bubble("gpipe", 1, 1, ranks, micros);
            check_bubble("1f1b", 1, 1, ranks, micros);
            check_bubble("zb-h1", 1, 3, ranks, micros);
            check_bubble("zb-v", 2, 6, ranks, micros);
            for (int v = 2; v <= 4 && micros % ranks == 0; v++)
                check_bubble("interleaved", v, v, ranks, micros);
        }
}

static void bubbles_of_large_tables_are_the_closed_forms(void **state)
{
    static const int sizes[][2] = {{16, 32}, {16, 64}, {24, 49}, {32, 64}, {48, 128}, {64, 192}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int ranks = sizes[i][0], micros = sizes[i][1];
        check_bubble("1f1b", 1, 1, ranks, micros);
        check_bubble("zb-h1", 1, 3, ranks, micros);
        check_bubble("zb-v", 2, 6, ranks, micros);
        if (micros % ranks == 0)
            check_bubble("interleaved", 3, 3, ranks, micros);
    }
}

static void no_rank_holds_more_than_its_schedule_promises(void **state)
{
    const struct {
        const char *name;
        int most; /* times the ranks */
    } cases[] = {{"1f1b", 1}, {"zb-h1", 1}, {"zb-v", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int micros = 1; micros <= 30; micros++) {
                SCOPED(sl_schedule) *schedule = write_table(cases[i].name, ranks, 0, micros);
                sl_simulation simulation = simulate(schedule, unit, 0);
                assert_true(most_held(schedule, &simulation) <= cases[i].most * ranks);
                sl_simulation_clear(&simulation);
            }
}

/* ---- The simulator by hand -------------------------------------------------------------- */

/* Two ranks of a stage each, costs of their own for each stage, a link, and a cell with two
 * actions. */
static void simulation_is_what_is_worked_out_by_hand(void **state)
{
    enum { RANKS = 2, MICROS = 2 };
    static const sl_action rows[] = {
        {.stage = 0, .micro = 0},
        {.stage = 0, .micro = 1},
        {.stage = 0, .micro = 0, .kind = SL_ACTION_BACKWARD, .joined = true},
        {.stage = 0, .micro = 1, .kind = SL_ACTION_BACKWARD},
        {.stage = 1, .micro = 0},
        {.stage = 1, .micro = 0, .kind = SL_ACTION_BACKWARD_INPUT},
        {.stage = 1, .micro = 1},
        {.stage = 1, .micro = 0, .kind = SL_ACTION_BACKWARD_WEIGHT},
        {.stage = 1, .micro = 1, .kind = SL_ACTION_BACKWARD_INPUT},
        {.stage = 1, .micro = 1, .kind = SL_ACTION_BACKWARD_WEIGHT},
    };
    static const int counts[RANKS] = {4, 6};
    SCOPED(sl_schedule) *schedule = NULL;
    sl_simulation simulation;
    sl_schedule_options options = {.ranks = RANKS, .micros = MICROS};
    check_ok(sl_schedule_from_table(&options, counts, rows, &schedule));
    check_ok(sl_schedule_simulate(schedule,
                                  &(sl_cost_model){.forward = (double[]){1, 2},
                                                   .backward_input = (double[]){2, 3},
                                                   .backward_weight = (double[]){1, 1},
                                                   .backward = (double[]){4, 5},
                                                   .link = 1,
                                                   .held_bytes = (double[]){10, 20},
                                                   .weight_held_bytes = (double[]){0, 30}},
                                  &simulation));
    /* 0F0 0-1; 1F0 2-4; 1I0 4-7; 0F1 and 0B0 8-9 and 9-13; 1F1 14-16; 1W0
     * 16-17; 1I1 17-20; 1W1 20-21; 0B1 21-25. */
    static const double starts[] = {0, 8, 9, 21, 2, 4, 14, 16, 17, 20};
    static const double ends[] = {1, 9, 13, 25, 4, 7, 16, 17, 20, 21};
    for (int i = 0; i < simulation.entry_count; i++) {
        assert_float_equal(simulation.entries[i].start, starts[i], 0);
        assert_float_equal(simulation.entries[i].end, ends[i], 0);
    }
    assert_float_equal(simulation.makespan, 25, 0);
    assert_float_equal(simulation.idle[0], 25 - 10, 0);
    assert_float_equal(simulation.idle[1], 25 - 12, 0);
    assert_float_equal(simulation.bubble, 28 / 50.0, 1e-12);
    assert_float_equal(simulation.bubble_span, 1 - 10 / 25.0, 1e-12); /* rank 0's span is 25 */
    assert_int_equal(simulation.peak_held[0], 2);
    assert_int_equal(simulation.peak_held[1], 2);
    assert_float_equal(simulation.peak_bytes[0], 20, 0);
    assert_float_equal(simulation.peak_bytes[1], 50, 0); /* of 1F1 while 1W0 is to come */
    sl_simulation_clear(&simulation);
}

/* ---- Published figures ------------------------------------------------------------------ */

/* "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241): profiles (Table 6, ms) and idle fractions
 * of the longest span (Table 5); for ZB-V, what its authors' scheduler prints for halves of them.
 */
static const struct {
    int layers, ranks, micros;
    double costs[3], link, one_f_one_b, interleaved, zb_h1, zb_v;
} published[] = {
    {22, 8, 24, {18.522, 18.086, 9.337}, 0.601, 0.2431, 0.1055, 0.1585, 0.0703},
    {22, 8, 32, {18.513, 18.086, 9.331}, 0.626, 0.1985, 0.0818, 0.1242, 0.0543},
    {22, 8, 64, {18.546, 18.097, 9.321}, 0.762, 0.1240, 0.0443, 0.0674, 0.0298},
    {30, 8, 24, {29.718, 29.444, 19.927}, 0.527, 0.2347, 0.0808, 0.1323, 0.0403},
    {30, 8, 32, {29.802, 29.428, 19.530}, 0.577, 0.1898, 0.0628, 0.1045, 0.0326},
    {30, 8, 64, {29.935, 29.621, 19.388}, 0.535, 0.1091, 0.0320, 0.0554, 0.0166},
    {46, 16, 48, {11.347, 11.248, 8.132}, 0.377, 0.2552, 0.1104, 0.1397, 0.0498},
    {46, 16, 64, {11.307, 11.254, 8.101}, 0.379, 0.2082, 0.0852, 0.1088, 0.0381},
    {46, 16, 128, {11.325, 11.308, 8.109}, 0.378, 0.1251, 0.0445, 0.0576, 0.0195},
    {62, 32, 96, {10.419, 10.207, 7.715}, 0.408, 0.2646, 0.1493, 0.1421, 0.0531},
    {62, 32, 128, {10.408, 10.204, 7.703}, 0.408, 0.2168, 0.1164, 0.1106, 0.0404},
    {62, 32, 256, {10.402, 10.248, 7.698}, 0.460, 0.1352, 0.0624, 0.0594, 0.0220},
};

static double span_bubble(const char *name, size_t line, int virtual_stages, int *held)
{
    SCOPED(sl_schedule) *schedule = NULL;
    sl_schedule_options options = {.ranks = published[line].ranks,
                                   .virtual_stages = virtual_stages,
                                   .micros = published[line].micros,
                                   .forward = published[line].costs[0],
                                   .backward_input = published[line].costs[1],
                                   .backward_weight = published[line].costs[2],
                                   .link = published[line].link};
    check_ok(sl_schedule_write(name, &options, &schedule));
    sl_simulation simulation = simulate(schedule, published[line].costs, published[line].link);
    double bubble = simulation.bubble_span;
    *held = most_held(schedule, &simulation);
    sl_simulation_clear(&simulation);
    return bubble;
}

static void bubbles_are_those_of_the_zero_bubble_paper(void **state)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        int held, ranks = published[i].ranks, each = (published[i].layers + 2) / ranks;
        assert_float_equal(span_bubble("1f1b", i, 0, &held), published[i].one_f_one_b, 5e-5);
        assert_float_equal(span_bubble("zb-h1", i, 0, &held), published[i].zb_h1, 5e-5);
        assert_true(held <= ranks);
        assert_float_equal(span_bubble("interleaved", i, each, &held), published[i].interleaved,
                           4e-3);
        assert_true(span_bubble("zb-v", i, 0, &held) <= published[i].zb_v + 2e-3);
        assert_true(held <= 2 * ranks);
    }
}

int schedule_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filling_is_what_comes_before_the_first_backward),
        cmocka_unit_test(every_table_is_valid_in_every_mode),
        cmocka_unit_test(interleaved_takes_any_number_of_stages_and_micro_batches),
        cmocka_unit_test(completions_and_order_are_those_of_the_rows),
        cmocka_unit_test(forward_only_tables_are_valid_for_any_placement),
        cmocka_unit_test(each_schedule_is_as_its_file_draws_it),
        cmocka_unit_test(recomputations_come_before_their_backwards),
        cmocka_unit_test(options_that_do_not_go_together_are_refused),
        cmocka_unit_test(placements_are_read),
        cmocka_unit_test(bubbles_are_the_closed_forms),
        cmocka_unit_test(bubbles_of_large_tables_are_the_closed_forms),
        cmocka_unit_test(simulation_is_what_is_worked_out_by_hand),
        cmocka_unit_test(no_rank_holds_more_than_its_schedule_promises),
        cmocka_unit_test(bubbles_are_those_of_the_zero_bubble_paper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
