/* Tables with a head that is split over all ranks. */
#include "parallel/schedule/table.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 6, MOST_STAGES = 32 };

static void split_head_fills_the_wait_of_1f1b(void **state)
{
    FREED char *text = NULL, *csv = NULL;
    SCOPED(sl_schedule) *table = library_table("1f1b", 2, 4);
    check_ok(sl_schedule_split_head(table, 0.5));
    check_ok(sl_schedule_validate(table));
    check_ok(sl_schedule_draw(table, &text));
    assert_string_equal(
        text, "0F0 0F1 0S0 0F2 0S1 ... 0B0 0S2 0T0 0F3 0B1 0S3 0T1 ... 0B2 0B3 0T2 0T3\n"
              "... 1F0 1S0 1F1 1S1 1B0 1F2 1S2 1T0 1B1 1F3 1S3 1T1 1B2 1B3 1T2 1T3 ...\n");
    check_ok(sl_schedule_csv(table, &csv));
    SCOPED(sl_schedule) *read = NULL;
    check_ok(sli_schedule_parse("text", csv, strlen(csv), &read));
    check_ok(sl_schedule_validate(read));
    FREED char *again = NULL;
    check_ok(sl_schedule_csv(read, &again));
    assert_string_equal(csv, again);
}

/* A rank's actions of one kind, in their order. */
static int list_kind(const sl_schedule *table, int rank, sl_action_kind kind, sl_action *out)
{
    const sl_action *row;
    int count = sl_schedule_actions(table, rank, &row), found = 0;
    for (int i = 0; i < count; i++)
        if (row[i].kind == kind)
            out[found++] = row[i];
    return found;
}

/* Of each kind but S and T the rank has the same actions in the same order, and it holds few
 * micro-batches between S and T. */
static void check_row(const sl_schedule *before, const sl_schedule *after, int rank)
{
    enum { MOST_HELD = 4, MOST = 1024 };
    sl_action old[MOST], new[MOST];
    const sl_action *row;
    int count = sl_schedule_actions(after, rank, &row), held = 0;
    for (int kind = 0; kind < SL_ACTION_HEAD_FORWARD; kind++) {
        int found = list_kind(before, rank, (sl_action_kind)kind, old);
        assert_int_equal(list_kind(after, rank, (sl_action_kind)kind, new), found);
        for (int i = 0; i < found; i++)
            assert_true(old[i].stage == new[i].stage &&old[i].micro == new[i].micro);
    }
    for (int i = 0; i < count; i++) {
        held += (row[i].kind == SL_ACTION_HEAD_FORWARD) - (row[i].kind == SL_ACTION_HEAD_BACKWARD);
        assert_in_range(held, 0, MOST_HELD);
    }
    assert_int_equal(held, 0);
    assert_int_equal(list_kind(after, rank, SL_ACTION_HEAD_FORWARD, new),
                     sl_schedule_micros(after));
}

static void any_table_is_whole_with_a_split_head(void **state)
{
    unsigned seed = test_seed(20261130);
    for (int round = 0; round < test_rounds(300); round++) {
        int ranks = test_draw(&seed, 1, 4), each = test_draw(&seed, 1, 2);
        int micros = test_draw(&seed, 1, 6);
        SCOPED(sl_schedule) *table = random_table(&seed, ranks, each, micros);
        SCOPED(sl_schedule) *before = NULL, *part = NULL;
        sl_stage_backward backward[TEST_MAX_STAGES] = {SL_STAGE_BACKWARD_WHOLE};
        if (ranks * each > 1 && test_draw(&seed, 0, 1))
            backward[0] = SL_STAGE_BACKWARD_NONE;
        check_ok(sl_schedule_freeze(table, backward));
        check_ok(sl_schedule_first_micros(table, micros, &before));
        check_ok(sl_schedule_split_head(table, test_draw(&seed, 1, 40) / 10.0));
        check_ok(sl_schedule_validate(table));
        for (int rank = 0; rank < ranks; rank++)
            check_row(before, table, rank);
        check_ok(sl_schedule_split_head(table, 1)); /* stays as it is */
        check_ok(sl_schedule_validate(table));
        check_ok(sl_schedule_first_micros(table, test_draw(&seed, 1, micros), &part));
        check_ok(sl_schedule_validate(part));
    }
}

/* The step with every stage's F, I and W of 1 and a head whose forward takes `head`: split, or in
 * the last stage. */
static double simulate(const sl_schedule *table, double head, bool is_split)
{
    double forward[MOST_STAGES], input[MOST_STAGES], weight[MOST_STAGES], first[MOST_STAGES],
        second[MOST_STAGES];
    int stages = sl_schedule_stages(table);
    double part = head / sl_schedule_ranks(table);
    sl_simulation simulation;
    for (int s = 0; s < stages; s++) {
        bool has_head = !is_split && s + 1 == stages;
        forward[s] = 1;
        input[s] = 1 + (has_head ? 2 * head : 0);
        weight[s] = 1 + (has_head ? head : 0);
        first[s] = 2 * part;
        second[s] = part;
    }
    check_ok(sl_schedule_simulate(table,
                                  &(sl_cost_model){.forward = forward,
                                                   .backward_input = input,
                                                   .backward_weight = weight,
                                                   .head_forward = first,
                                                   .head_backward = second},
                                  &simulation));
    double seconds = simulation.makespan;
    sl_simulation_clear(&simulation);
    return seconds;
}

/* The output takes 3 to rank 0, and its sums 5 back; the last stage's own take no time. */
static void split_head_waits_for_its_links(void **state)
{
    SCOPED(sl_schedule) *table = library_table("gpipe", 2, 1);
    static const double ones[] = {1, 1}, link[] = {0.5}, head_links[] = {3, 9, 5, 9};
    sl_cost_model costs = {.forward = ones,
                           .backward_input = ones,
                           .backward_weight = ones,
                           .head_forward = ones,
                           .head_backward = ones,
                           .links = link};
    sl_simulation simulation;
    check_ok(sl_schedule_split_head(table, 1));
    check_ok(sl_schedule_simulate(table, &costs, &simulation));
    assert_float_equal(simulation.makespan, 2.5 + 0.5 + 1 + 0.5 + 2 + 0.5 + 2 + 1, 1e-12);
    sl_simulation_clear(&simulation);
    costs.head_links = head_links;
    check_ok(sl_schedule_simulate(table, &costs, &simulation));
    assert_float_equal(simulation.makespan, 2.5 + 3 + 1 + 5 + 2 + 3 + 1, 1e-12);
    sl_simulation_clear(&simulation);
}

/* What is frozen has no say in who computes the head. */
static void frozen_stages_keep_their_part_of_a_split_head(void **state)
{
    SCOPED(sl_schedule) *table = library_table("1f1b", 2, 4);
    const sl_stage_backward backward[] = {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_WHOLE};
    sl_action found[16];
    check_ok(sl_schedule_split_head(table, 1));
    check_ok(sl_schedule_freeze(table, backward));
    check_ok(sl_schedule_validate(table));
    assert_int_equal(list_kind(table, 0, SL_ACTION_HEAD_FORWARD, found), 4);
    assert_int_equal(list_kind(table, 0, SL_ACTION_BACKWARD, found), 0);
}

/* Each rank's part of the head is work of 3 head / ranks a micro-batch; the step is little longer
 * than without a head and with that. */
static void split_step_is_little_longer_than_its_work(void **state)
{
    skip_if_sanitized();
    for (int kind = 0; sl_schedule_names[kind]; kind++)
        for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
            for (int rounds = 2; rounds <= 4; rounds++)
                for (double head = 0.25; head < 20; head *= 2) {
                    int micros = rounds * ranks;
                    SCOPED(sl_schedule) *whole =
                        library_table(sl_schedule_names[kind], ranks, micros);
                    SCOPED(sl_schedule) *split =
                        library_table(sl_schedule_names[kind], ranks, micros);
                    check_ok(sl_schedule_split_head(split, head / sl_schedule_stages(split)));
                    double none = simulate(whole, 0, false);
                    double seconds = simulate(split, head, true);
                    double bound = none + 3 * head / ranks * micros;
                    double last = simulate(whole, head, false);
                    assert_true(seconds <= 1.02 * bound);
                    assert_true(seconds < last);
                }
}

/* "Vocabulary Parallelism in Pipeline Parallelism" (arXiv 2411.05288): MFU in % under 1F1B for
 * 32,768 words and twice, four and eight times as many, with the head in the last stage and split
 * over all ranks (its Vocab-1). By the paper a layer takes 72 width + 12 length of time where the
 * head takes 6 words. Here the split exchanges nothing, so it gains more. */
enum { SIZES = 4, FEWEST_WORDS = 32768, PUBLISHED_MICROS = 128 };
static const struct {
    int ranks, layers, width, length;
    double last[SIZES], split[SIZES];
} published[] = {
    {8, 32, 3072, 2048, {46.16, 40.48, 33.11, 25.23}, {50.42, 50.28, 49.93, 50.12}},
    {8, 32, 3072, 4096, {47.05, 41.87, 35.00, 26.75}, {50.98, 50.98, 50.83, 50.66}},
    {16, 48, 4096, 2048, {45.66, 40.09, 32.44, 24.21}, {49.02, 50.62, 50.54, 50.66}},
    {16, 48, 4096, 4096, {47.56, 41.21, 33.88, 25.33}, {50.93, 50.97, 50.71, 51.22}},
    {32, 64, 5120, 2048, {42.81, 37.28, 28.97, 20.86}, {45.85, 45.92, 45.90, 46.11}},
    {32, 64, 5120, 4096, {43.68, 38.11, 30.05, 21.63}, {46.41, 46.44, 46.68, 46.83}},
};

/* What a step computes in its time. */
static double rate(size_t line, int size, bool is_split)
{
    int ranks = published[line].ranks;
    double layer = 24.0 * published[line].width + 4.0 * published[line].length;
    double head = 2.0 * (FEWEST_WORDS << size) / (layer * published[line].layers / ranks);
    SCOPED(sl_schedule) *table = library_table("1f1b", ranks, PUBLISHED_MICROS);
    if (is_split)
        check_ok(sl_schedule_split_head(table, head / ranks));
    return (1 + head / ranks) / simulate(table, head, is_split);
}

static void more_words_cost_what_was_published(void **state)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const double *last = published[i].last, *split = published[i].split;
        double first_last = rate(i, 0, false), first_split = rate(i, 0, true);
        for (int size = 0; size < SIZES; size++) {
            double last_rate = rate(i, size, false), split_rate = rate(i, size, true);
            double gain = split_rate / last_rate / (split[size] / last[size]);
            assert_float_equal(last_rate / first_last, last[size] / last[0], 0.02);
            assert_float_equal(split_rate / first_split, split[size] / split[0], 0.035);
            assert_true(gain >= 1 && gain <= 1.13);
        }
    }
}

static void wrong_tables_of_a_split_head_are_refused(void **state)
{
    static const struct {
        const char *csv, *text;
    } cases[] = {
        {"0F0,0S0,0B0,0T0\n1F0,1B0\n", "rank 1 has 0 S and 0 T"},
        {"0F0,0S0,0B0,0T0\n1F0,1S0,1B0\n", "rank 1 has 1 S and 0 T"},
        {"0F0,0S0,0S0,0B0,0T0\n1F0,1S0,1B0,1T0\n", "0S0 is out of order"},
        {"0F0,0S0,0B0,0T0\n1F0,1T0,1S0,1B0\n", "1T0 comes before the micro-batch's S"},
        {"0F0,0F1,0S1,0S0,0B0,0B1,0T0,0T1\n1F0,1F1,1S0,1S1,1B0,1B1,1T0,1T1\n",
         "0S1 is out of order"},
        {"0F0,0B0,0S0,0T0\n1F0,1S0,1B0,1T0\n",
         "deadlock: rank 0 waits at 0B0 for the backward of micro-batch 0 at stage 1"},
        {"0F0,0B0,0S0,0T0\n",
         "rank 0 waits at 0B0 for the head's forward of micro-batch 0 at stage 0"},
        {"0F0,0S0,0B0,0T0\n1S0,1F0,1B0,1T0\n",
         "rank 0 waits at 0S0 for the forward of micro-batch 0 at stage 1"},
        {"0F0,2F0,2S0,2B0,2T0,0B0\n1F0,3F0,1S0,3B0,1B0,1T0\n",
         "2S0 must be of the rank's first stage, 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(sl_schedule) *table = NULL;
        check_ok(sli_schedule_parse("text", cases[i].csv, strlen(cases[i].csv), &table));
        check_error(sl_schedule_validate(table), SL_ERR_INVALID, cases[i].text);
    }
    SCOPED(sl_schedule) *table = library_table("1f1b", 2, 2), *forward = NULL;
    check_error(sl_schedule_split_head(table, 0), SL_ERR_INVALID, "must be above 0, got 0");
    check_ok(sl_schedule_validate(table));
    check_ok(sli_schedule_forward_only(&(sl_schedule_options){.ranks = 2, .micros = 2}, &forward));
    check_ok(sl_schedule_split_head(forward, 1));
    assert_false(forward->splits_head);
}

int schedule_head_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_head_fills_the_wait_of_1f1b),
        cmocka_unit_test(any_table_is_whole_with_a_split_head),
        cmocka_unit_test(split_head_waits_for_its_links),
        cmocka_unit_test(frozen_stages_keep_their_part_of_a_split_head),
        cmocka_unit_test(split_step_is_little_longer_than_its_work),
        cmocka_unit_test(more_words_cost_what_was_published),
        cmocka_unit_test(wrong_tables_of_a_split_head_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
