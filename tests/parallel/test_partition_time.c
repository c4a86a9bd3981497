/* The cut with the shortest simulated step, against all cuts. */
#include "sluice/model.h"
#include "sluice/pipe.h"
#include "support/check.h"

#include <math.h>
#include <string.h>

enum { MOST_MODULES = 40, MOST_STAGES = 8 };

typedef struct times {
    sl_module_profile modules[MOST_MODULES];
    const sl_module_profile *ranks[MOST_STAGES]; /* all ranks' */
} times;

/* Modules of a few milliseconds, as a function of the seed; 0: all equal. */
static void make_times(int modules, int ranks, uint32_t seed, times *out)
{
    for (int i = 0; i < modules; i++) {
        seed = seed ? seed * 1664525u + 1013904223u : 0;
        double forward = 1 + (double)(seed >> 28), both = 2 + (double)(seed >> 24 & 15);
        out->modules[i] = (sl_module_profile){forward, both, both / 2, both / 2, 0};
    }
    for (int rank = 0; rank < ranks; rank++)
        out->ranks[rank] = out->modules;
}

static sl_schedule *open_table(const char *name, int ranks, int micros)
{
    sl_schedule *table;
    check_ok(
        sl_schedule_write(name, &(sl_schedule_options){.ranks = ranks, .micros = micros}, &table));
    check_ok(sl_schedule_recompute(table, SL_RECOMPUTE_EXCEPT_LAST));
    return table;
}

/* `cores` as in sl_partition_costs. */
static double step_seconds(const sl_schedule *table, const times *t, const int *balance,
                           const int *cores)
{
    double costs[4][MOST_STAGES] = {{0}};
    sl_simulation simulation;
    for (int stage = 0, i = 0; stage < sl_schedule_stages(table); stage++)
        for (int end = i + balance[stage]; i < end; i++) {
            costs[0][stage] += t->modules[i].forward;
            costs[1][stage] += t->modules[i].backward_input;
            costs[2][stage] += t->modules[i].backward_weight;
            costs[3][stage] += t->modules[i].backward;
        }
    check_ok(sl_schedule_simulate(table,
                                  &(sl_cost_model){.forward = costs[0],
                                                   .backward_input = costs[1],
                                                   .backward_weight = costs[2],
                                                   .backward = costs[3],
                                                   .cores = cores},
                                  &simulation));
    double seconds = simulation.makespan;
    sl_simulation_clear(&simulation);
    return seconds;
}

/* The shortest step of all cuts that give stages 0 ... stage - 1 what `balance` says. */
static double shortest(const sl_schedule *table, const times *t, const int *cores, int *balance,
                       int stage, int left)
{
    int stages = sl_schedule_stages(table);
    double best = 1e9;
    if (stage + 1 == stages) {
        balance[stage] = left;
        return step_seconds(table, t, balance, cores);
    }
    for (int count = 1; count <= left - (stages - 1 - stage); count++) {
        balance[stage] = count;
        double seconds = shortest(table, t, cores, balance, stage + 1, left - count);
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void cut_is_the_best_of_all(void **state)
{
    enum { MODULES = 9 };
    for (int i = 0; sl_schedule_names[i]; i++)
        for (int ranks = 1; ranks <= 3; ranks++)
            for (uint32_t seed = 1; seed <= 3; seed++) {
                times t;
                int balance[MOST_STAGES], any[MOST_STAGES], sum = 0;
                double seconds;
                SCOPED(sl_schedule) *table = open_table(sl_schedule_names[i], ranks, 6);
                make_times(MODULES, ranks, seed, &t);
                check_ok(sl_partition_by_time(
                    &(sl_partition_costs){.modules = MODULES, .profiles = t.ranks, .table = table},
                    balance, &seconds));
                for (int stage = 0; stage < sl_schedule_stages(table); stage++)
                    sum += balance[stage];
                assert_int_equal(sum, MODULES);
                assert_true(seconds == step_seconds(table, &t, balance, NULL));
                assert_float_equal(seconds, shortest(table, &t, NULL, any, 0, MODULES), 1e-9);
            }
}

/* Where there are too many cuts to try all. */
static void many_equal_modules_are_spread_evenly(void **state)
{
    times t;
    int balance[MOST_STAGES];
    SCOPED(sl_schedule) *table = open_table("1f1b", MOST_STAGES, 16);
    make_times(MOST_MODULES, MOST_STAGES, 0, &t);
    t.modules[MOST_MODULES - 1].forward *= 4; /* a last module like four others */
    t.modules[MOST_MODULES - 1].backward *= 4;
    check_ok(sl_partition_by_time(
        &(sl_partition_costs){.modules = MOST_MODULES, .profiles = t.ranks, .table = table},
        balance, NULL));
    for (int stage = 0; stage + 1 < MOST_STAGES; stage++)
        assert_in_range(balance[stage], 4, 6);
    assert_in_range(balance[MOST_STAGES - 1], 2, 5);
}

/* The rank of a slower device gets fewer modules. */
static void each_rank_has_its_own_times(void **state)
{
    times t;
    sl_module_profile slow[12];
    int balance[2];
    SCOPED(sl_schedule) *table = open_table("gpipe", 2, 8);
    make_times(12, 2, 0, &t);
    for (int i = 0; i < 12; i++)
        slow[i] = (sl_module_profile){2 * t.modules[i].forward, 2 * t.modules[i].backward, 0, 0, 0};
    t.ranks[1] = slow;
    check_ok(sl_partition_by_time(
        &(sl_partition_costs){.modules = 12, .profiles = t.ranks, .table = table}, balance, NULL));
    assert_in_range(balance[0], 7, 8); /* of equal ones it would have 6 at most */
}

/* The fifth of equal modules has a narrow output. A wide one takes longer over the slow link than a
 * module computes. Ranks 1 and 2 have a fast one. */
static void slow_link_is_crossed_by_the_narrowest_tensor(void **state)
{
    enum { MODULES = 12, RANKS = 3, NARROW = 5 };
    times t;
    int balance[RANKS], without[RANKS];
    sl_link_cost links[RANKS][RANKS] = {{{0}}};
    SCOPED(sl_schedule) *table = open_table("1f1b", RANKS, 6);
    sl_partition_costs costs = {.modules = MODULES, .profiles = t.ranks, .table = table};
    make_times(MODULES, RANKS, 0, &t);
    for (int i = 0; i < MODULES; i++)
        t.modules[i].output_bytes = i + 1 == NARROW ? 1000 : 64000;
    check_ok(sl_partition_by_time(&costs, without, NULL));
    assert_in_range(without[0], 3, 4);
    costs.links = &links[0][0];
    for (int slow = 0; slow < 2; slow++) {
        int other = slow ? 2 : 0;
        memset(links, 0, sizeof links);
        links[1][other].seconds_per_byte = links[other][1].seconds_per_byte = 1e-2;
        links[1][2 - other].seconds = links[2 - other][1].seconds = 1e-3;
        check_ok(sl_partition_by_time(&costs, balance, NULL));
        assert_int_equal(slow ? balance[0] + balance[1] : balance[0], NARROW);
    }
}

static double start_of(const sl_simulation *simulation, sl_action_kind kind, int stage)
{
    for (int i = 0; i < simulation->entry_count; i++)
        if (simulation->entries[i].action.kind == kind &&
            simulation->entries[i].action.stage == stage)
            return simulation->entries[i].start;
    fail_msg("no action %d of stage %d", (int)kind, stage);
    return 0;
}

/* Nothing but sending takes time: from the last of three ranks to each part of the head, and back.
 * A link that is not known takes as long as the one between the last two stages. */
static void split_head_has_the_times_of_its_own_links(void **state)
{
    enum { MODULES = 4, RANKS = 3, LAST = RANKS - 1, WIDE = 40, SUMS = 100 };
    static const int balance[RANKS] = {1, 1, 2};
    const sl_model_options options = {
        .ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = MODULES - 2, .context = 8};
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_schedule) *table = open_table("gpipe", RANKS, 1);
    times t = {0};
    sl_link_cost links[RANKS][RANKS];
    sl_simulation simulation;
    check_ok(sl_transformer_lm_create(&options, &model));
    make_times(0, RANKS, 0, &t);
    for (int i = 0; i < MODULES; i++)
        t.modules[i].output_bytes = i == 2 ? WIDE : 10;
    for (int from = 0; from < RANKS; from++)
        for (int to = 0; to < RANKS; to++)
            links[from][to] = (sl_link_cost){from == to ? -1 : from, 1 + 3 * from + to};
    links[LAST][0] = (sl_link_cost){0, 0};
    const sl_partition_costs costs = {.modules = MODULES,
                                      .profiles = t.ranks,
                                      .table = table,
                                      .model = model,
                                      .head_blocks = 8,
                                      .head_sums_bytes = SUMS,
                                      .links = &links[0][0]};
    check_ok(sl_partition_simulate(&costs, balance, &simulation));
    double output = 10 * 2 + 1 + 10 * 6; /* at the end of the last stage's forward */
    double first = output + 1 + 2 * WIDE * 6, second = output + 2 + 2 * WIDE * 8;
    double sums = fmax(first + 0 + SUMS * 3, second + 1 + SUMS * 6);
    assert_float_equal(start_of(&simulation, SL_ACTION_HEAD_FORWARD, LAST), output, 1e-9);
    assert_float_equal(start_of(&simulation, SL_ACTION_HEAD_FORWARD, 0), first, 1e-9);
    assert_float_equal(start_of(&simulation, SL_ACTION_HEAD_FORWARD, 1), second, 1e-9);
    assert_float_equal(start_of(&simulation, SL_ACTION_BACKWARD, LAST), sums, 1e-9);
    sl_simulation_clear(&simulation);
}

static bool first_stage_has_at_most(void *context, const int *balance)
{
    return balance[0] <= *(const int *)context;
}

static void cuts_that_do_not_fit_are_left_out(void **state)
{
    times t;
    int balance[2] = {0}, most = 2;
    double seconds = 7;
    SCOPED(sl_schedule) *table = open_table("gpipe", 2, 8);
    make_times(12, 2, 0, &t);
    sl_partition_costs costs = {.modules = 12,
                                .profiles = t.ranks,
                                .table = table,
                                .fits = first_stage_has_at_most,
                                .context = &most};
    check_ok(sl_partition_by_time(&costs, balance, NULL));
    assert_int_equal(balance[0], 2);
    most = 0;
    check_error(sl_partition_by_time(&costs, balance, &seconds), SL_ERR_NOT_FOUND,
                "no cut of 12 modules into 2 stages fits");
    assert_true(seconds == 7 && balance[0] == 2);
    costs.modules = 1;
    check_error(sl_partition_by_time(&costs, balance, NULL), SL_ERR_INVALID,
                "2 stages need as many modules, there are 1");
    costs.profiles = NULL;
    check_error(sl_partition_by_time(&costs, balance, NULL), SL_ERR_INVALID, "profiles is NULL");
}

/* Too many cuts to try all, and the search begins with one that does not fit. */
static void cut_that_fits_is_found_beyond_the_even_one(void **state)
{
    times t;
    SCOPED(sl_schedule) *table = open_table("1f1b", MOST_STAGES, 16);
    make_times(MOST_MODULES, MOST_STAGES, 0, &t);
    for (int most = 1; most <= 4; most++) {
        int balance[MOST_STAGES], sum = 0;
        double seconds;
        check_ok(sl_partition_by_time(&(sl_partition_costs){.modules = MOST_MODULES,
                                                            .profiles = t.ranks,
                                                            .table = table,
                                                            .fits = first_stage_has_at_most,
                                                            .context = &most},
                                      balance, &seconds));
        for (int stage = 0; stage < MOST_STAGES; stage++) {
            assert_true(balance[stage] >= 1);
            sum += balance[stage];
        }
        assert_int_equal(sum, MOST_MODULES);
        assert_in_range(balance[0], 1, most);
        assert_true(seconds == step_seconds(table, &t, balance, NULL));
    }
}

/* Ranks 0 and 1 are on the same cores: each gets about half of what rank 2 gets. */
static void ranks_on_the_same_cores_get_fewer_modules(void **state)
{
    enum { MODULES = 12, RANKS = 3 };
    static const int cores[RANKS] = {0, 0, 2};
    for (uint32_t seed = 0; seed <= 3; seed++) {
        times t;
        int balance[RANKS], any[RANKS];
        double seconds;
        SCOPED(sl_schedule) *table = open_table("1f1b", RANKS, 12);
        sl_partition_costs costs = {.modules = MODULES,
                                    .profiles = t.ranks,
                                    .table = table,
                                    .cores = cores};
        make_times(MODULES, RANKS, seed, &t);
        check_ok(sl_partition_by_time(&costs, balance, &seconds));
        assert_true(seconds == step_seconds(table, &t, balance, cores));
        assert_true(seconds <= 1.001 * shortest(table, &t, cores, any, 0, MODULES));
        if (seed == 0) /* modules are equal */
            assert_in_range(balance[2], 5, 7);
    }
}

static double partition_seconds(const sl_partition_costs *costs, const int *balance)
{
    sl_simulation simulation;
    check_ok(sl_partition_simulate(costs, balance, &simulation));
    double seconds = simulation.makespan;
    sl_simulation_clear(&simulation);
    return seconds;
}

/* Every cut takes as long then, and that for ranks with cores of their own is taken. */
static void ranks_on_the_same_cores_take_the_sum_of_all_actions(void **state)
{
    enum { MODULES = 8, RANKS = 3, MICROS = 8 };
    static const int cores[RANKS] = {0, 0, 0}, given[] = {3, 1, 4};
    times t;
    int balance[RANKS], expected[RANKS];
    double sum = 0, seconds, own_cores;
    SCOPED(sl_schedule) *table = NULL;
    check_ok(sl_schedule_write("gpipe", &(sl_schedule_options){.ranks = RANKS, .micros = MICROS},
                               &table));
    make_times(MODULES, RANKS, 5, &t);
    for (int i = 0; i < MODULES; i++)
        sum += MICROS * (t.modules[i].forward + t.modules[i].backward);
    sl_partition_costs costs = {.modules = MODULES, .profiles = t.ranks, .table = table};
    own_cores = partition_seconds(&costs, given);
    assert_true(own_cores == step_seconds(table, &t, given, NULL));
    check_ok(sl_partition_by_time(&costs, expected, NULL));
    costs.cores = cores;
    seconds = partition_seconds(&costs, given);
    assert_float_equal(seconds, sum, 1e-9 * sum);
    assert_true(own_cores < seconds);
    check_ok(sl_partition_by_time(&costs, balance, &seconds));
    assert_float_equal(seconds, sum, 1e-9 * sum);
    assert_memory_equal(balance, expected, sizeof balance);
}

int partition_time_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_is_the_best_of_all),
        cmocka_unit_test(many_equal_modules_are_spread_evenly),
        cmocka_unit_test(each_rank_has_its_own_times),
        cmocka_unit_test(slow_link_is_crossed_by_the_narrowest_tensor),
        cmocka_unit_test(split_head_has_the_times_of_its_own_links),
        cmocka_unit_test(cuts_that_do_not_fit_are_left_out),
        cmocka_unit_test(ranks_on_the_same_cores_get_fewer_modules),
        cmocka_unit_test(ranks_on_the_same_cores_take_the_sum_of_all_actions),
        cmocka_unit_test(cut_that_fits_is_found_beyond_the_even_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
