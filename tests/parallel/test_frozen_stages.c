/* Stages in which nothing is trained: their tables, what runs of them, and what a step costs. */
#define _POSIX_C_SOURCE 200809L

#include "nn/module.h"
#include "parallel/schedule/table.h"
#include "sluice/layers.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STAGES = 4, MICROS = 5, WIDTH = 6, ROWS = 10 };

static void frozen_stages_of_zero_bubble_lose_their_weight_halves(void **state)
{
    static const sl_stage_backward backward[] = {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_WHOLE,
                                                 SL_STAGE_BACKWARD_INPUT};
    FREED char *text = NULL;
    SCOPED(sl_schedule) *table = library_table("zb-h1", 3, 3);
    check_ok(sl_schedule_freeze(table, backward));
    check_ok(sl_schedule_validate(table));
    check_ok(sl_schedule_draw(table, &text));
    assert_string_equal(text, "0F0 0F1 0F2 ... ... ... ... ... ... ... ...\n"
                              "... 1F0 1F1 ... 1I0 1F2 1I1 1W0 1I2 1W1 1W2\n"
                              "... ... 2F0 2B0 2F1 2B1 2F2 2B2 ... ... ...\n");
}

/* How many actions of each kind a stage has. */
static void count_actions(const sl_schedule *table, int stage, int counts[5])
{
    const sl_action *row;
    int rank = sl_schedule_placement(table)[stage];
    int count = sl_schedule_actions(table, rank, &row);
    memset(counts, 0, 5 * sizeof *counts);
    for (int i = 0; i < count; i++)
        if (row[i].stage == stage)
            counts[row[i].kind]++;
}

static void check_counts(const sl_schedule *table, const sl_stage_backward *backward, int micros)
{
    for (int stage = 0; stage < sl_schedule_stages(table); stage++) {
        int counts[5];
        count_actions(table, stage, counts);
        assert_int_equal(counts[SL_ACTION_FORWARD], micros);
        if (backward[stage] == SL_STAGE_BACKWARD_NONE)
            assert_int_equal(counts[SL_ACTION_RECOMPUTE], 0);
        int input = counts[SL_ACTION_BACKWARD_INPUT], weight = counts[SL_ACTION_BACKWARD_WEIGHT];
        assert_int_equal(input, weight);
        assert_int_equal(counts[SL_ACTION_BACKWARD] + input,
                         backward[stage] == SL_STAGE_BACKWARD_NONE ? 0 : micros);
        if (backward[stage] == SL_STAGE_BACKWARD_INPUT)
            assert_int_equal(weight, 0);
    }
}

/* Of any table, and whether recomputations come before or after it. */
static void any_table_is_whole_without_what_frozen_stages_have(void **state)
{
    unsigned seed = test_seed(20261128);
    for (int round = 0; round < test_rounds(400); round++) {
        int ranks = test_draw(&seed, 1, 4), each = test_draw(&seed, 1, 2);
        int micros = test_draw(&seed, 1, 6), stages = ranks * each;
        int first = test_draw(&seed, 0, stages - 1);
        sl_recompute mode = (sl_recompute)test_draw(&seed, 0, 2);
        sl_stage_backward backward[TEST_MAX_STAGES];
        SCOPED(sl_schedule) *table = random_table(&seed, ranks, each, micros);
        for (int stage = 0; stage < stages; stage++)
            backward[stage] = stage < first            ? SL_STAGE_BACKWARD_NONE
                              : test_draw(&seed, 0, 1) ? SL_STAGE_BACKWARD_WHOLE
                                                       : SL_STAGE_BACKWARD_INPUT;
        bool is_first = test_draw(&seed, 0, 1);
        if (!is_first)
            check_ok(sl_schedule_recompute(table, mode));
        check_ok(sl_schedule_freeze(table, backward));
        if (is_first)
            check_ok(sl_schedule_recompute(table, mode));
        check_ok(sl_schedule_validate(table));
        check_counts(table, backward, micros);
        SCOPED(sl_schedule) *part = NULL;
        int fewer = test_draw(&seed, 1, micros);
        check_ok(sl_schedule_first_micros(table, fewer, &part));
        check_ok(sl_schedule_validate(part));
        check_counts(part, backward, fewer);
    }
}

static void impossible_ends_of_backward_are_refused(void **state)
{
    static const sl_stage_backward gap[] = {SL_STAGE_BACKWARD_INPUT, SL_STAGE_BACKWARD_NONE},
                                   none[] = {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_NONE};
    SCOPED(sl_schedule) *table = library_table("1f1b", 2, 2);
    check_error(sl_schedule_freeze(table, gap), SL_ERR_INVALID,
                "stage 1 has no backward, but stage 0 before it has");
    check_error(sl_schedule_freeze(table, none), SL_ERR_INVALID, "no stage has a backward");
    check_ok(sl_schedule_validate(table));
}

/* In a process of its own, without the memory for a table of so many micro-batches. */
static bool stays_without_memory(sl_schedule *table, const sl_stage_backward *backward)
{
    int ended;
    size_t bytes = table->count * sizeof *table->actions;
    FREED sl_action *actions = malloc(bytes);
    memcpy(actions, table->actions, bytes);
    pid_t child = fork();
    if (child == 0) {
        limit_address_space(1 << 20);
        bool is_refused =
            (backward ? sl_schedule_freeze(table, backward)
                      : sl_schedule_recompute(table, SL_RECOMPUTE_ALWAYS)) == SL_ERR_MEMORY;
        _exit(!is_refused || table->count * sizeof *table->actions != bytes ||
              table->forward_only != 0 || memcmp(actions, table->actions, bytes) != 0);
    }
    return waitpid(child, &ended, 0) == child && WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
}

static void table_stays_as_it_was_without_memory(void **state)
{
    enum { MANY = 1 << 26 };
    static const sl_action actions[] = {{.stage = 0, .kind = SL_ACTION_FORWARD},
                                        {.stage = 0, .kind = SL_ACTION_BACKWARD},
                                        {.stage = 1, .kind = SL_ACTION_FORWARD},
                                        {.stage = 1, .kind = SL_ACTION_BACKWARD}};
    static const int counts[] = {2, 2};
    static const sl_stage_backward backward[] = {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_WHOLE};
    if (IS_SANITIZED) { /* its shadow memory takes more than any limit */
        print_message("skipped: a limit of memory, with a sanitizer\n");
        skip();
    }
    SCOPED(sl_schedule) *table = NULL;
    check_ok(sl_schedule_from_table(&(sl_schedule_options){.ranks = 2, .micros = MANY}, counts,
                                    actions, &table));
    assert_true(stays_without_memory(table, backward));
    assert_true(stays_without_memory(table, NULL));
}

/* Only what was frozen may lack its backward. */
static void table_without_the_first_stages_backward_is_refused(void **state)
{
    static const sl_action actions[] = {{.stage = 0, .kind = SL_ACTION_FORWARD},
                                        {.stage = 1, .kind = SL_ACTION_FORWARD},
                                        {.stage = 1, .kind = SL_ACTION_BACKWARD}};
    static const int counts[] = {1, 2};
    SCOPED(sl_schedule) *table = NULL;
    check_ok(sl_schedule_from_table(&(sl_schedule_options){.ranks = 2, .micros = 1}, counts,
                                    actions, &table));
    check_error(sl_schedule_validate(table), SL_ERR_INVALID,
                "stage 0 never runs micro-batch 0 backward");
}

/* ---- Pipes -------------------------------------------------------------------------------- */

/* Eight linear modules, of which bit i of `frozen` freezes module i. */
static sl_module *build_model(unsigned frozen)
{
    enum { MODULES = 2 * STAGES };
    sl_module *modules[MODULES], *model;
    for (int i = 0; i < MODULES; i++)
        check_ok(sl_linear_create(WIDTH, WIDTH, true, &modules[i]));
    check_ok(create_sequential(modules, MODULES, &model));
    for (int i = 0; i < MODULES; i++)
        if (frozen >> i & 1)
            check_ok(sl_module_freeze(sl_module_child(model, i)));
    return model;
}

static test_pipe open_frozen(unsigned frozen, const char *schedule, int stages,
                             sl_recompute recompute)
{
    static const int balance[STAGES] = {2, 2, 2, 2}, whole[] = {2 * STAGES};
    return open_pipe(build_model(frozen), new_mse_loss(),
                     (sl_pipe_options){.stages = stages,
                                       .balance = stages == 1 ? whole : balance,
                                       .chunks = MICROS,
                                       .schedule = schedule,
                                       .recompute = recompute,
                                       .seed = 7},
                     stages, 1);
}

/* Two steps; the values that come out, malloc'ed, and the losses. */
static float *train(test_pipe *pipe, const sl_tensor *input, const sl_tensor *targets,
                    double losses[2], int64_t *count)
{
    for (uint64_t step = 0; step < 2; step++) {
        losses[step] = pipe_train(pipe, input, targets, step);
        check_pipe_is_empty(pipe);
        pipe_sgd_step(pipe, 0.1f);
    }
    return pipe_values(pipe->pipe, count);
}

/* The trace has what is left of the table, and the bits are those of one stage. */
static void check_pipe(unsigned frozen, const sl_stage_backward *backward, const char *schedule,
                       sl_recompute recompute)
{
    sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    sl_device *device = new_device(1);
    sl_tensor *input = random_tensor(device, &shape, 1),
              *targets = random_tensor(device, &shape, 2);
    double losses[2][2];
    int64_t counts[2];
    const sl_timeline_entry *entries;
    sl_utilization utilization;
    {
        SCOPED(test_pipe) one = open_frozen(frozen, "gpipe", 1, SL_RECOMPUTE_NEVER);
        SCOPED(test_pipe) cut = open_frozen(frozen, schedule, STAGES, recompute);
        FREED float *expected = train(&one, input, targets, losses[0], &counts[0]);
        FREED float *found = train(&cut, input, targets, losses[1], &counts[1]);
        assert_int_equal(counts[0], counts[1]);
        assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
        assert_memory_equal(expected, found, (size_t)counts[0] * sizeof(float));
        SCOPED(sl_schedule) *table = library_table(schedule, STAGES, MICROS);
        check_ok(sl_schedule_freeze(table, backward));
        check_ok(sl_schedule_recompute(table, recompute));
        check_counts(table, backward, MICROS);
        int count = sl_pipe_timeline(cut.pipe, &entries);
        check_timeline(entries, count, table, STAGES, 0);
        check_ok(sl_pipe_get_utilization(cut.pipe, &utilization));
        assert_int_equal(utilization.action_count, count);
        sl_utilization_clear(&utilization);
    }
    sl_tensor_destroy(&input);
    sl_tensor_destroy(&targets);
    sl_device_destroy(&device);
}

static void frozen_stages_run_less_and_give_the_same_bits(void **state)
{
    static const struct {
        unsigned frozen;
        sl_stage_backward backward[STAGES];
    } cases[] = {
        {0x00,
         {SL_STAGE_BACKWARD_WHOLE, SL_STAGE_BACKWARD_WHOLE, SL_STAGE_BACKWARD_WHOLE,
          SL_STAGE_BACKWARD_WHOLE}},
        {0x03,
         {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_WHOLE, SL_STAGE_BACKWARD_WHOLE,
          SL_STAGE_BACKWARD_WHOLE}},
        {0x1f,
         {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_WHOLE,
          SL_STAGE_BACKWARD_WHOLE}},
        {0x7f,
         {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_NONE,
          SL_STAGE_BACKWARD_WHOLE}},
        {0x3c,
         {SL_STAGE_BACKWARD_WHOLE, SL_STAGE_BACKWARD_INPUT, SL_STAGE_BACKWARD_INPUT,
          SL_STAGE_BACKWARD_WHOLE}},
        {0xcf,
         {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_WHOLE,
          SL_STAGE_BACKWARD_INPUT}},
    };
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t kind = 0; kind < sizeof schedules / sizeof *schedules; kind++)
            for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++)
                check_pipe(cases[i].frozen, cases[i].backward, schedules[kind], (sl_recompute)mode);
}

/* ---- Costs -------------------------------------------------------------------------------- */

static double seconds_of(const sl_module *model, int first, int second)
{
    sl_module_profile modules[2 * STAGES];
    const sl_module_profile *ranks[] = {modules, modules};
    const int balance[] = {first, second};
    sl_simulation simulation;
    SCOPED(sl_schedule) *table = library_table("zb-h1", 2, 1);
    for (int i = 0; i < 2 * STAGES; i++)
        modules[i] = (sl_module_profile){1, 2, 1, 1, 0};
    check_ok(sl_partition_simulate(&(sl_partition_costs){.modules = 2 * STAGES,
                                                         .profiles = ranks,
                                                         .table = table,
                                                         .model = model},
                                   balance, &simulation));
    double seconds = simulation.makespan;
    sl_simulation_clear(&simulation);
    return seconds;
}

/* One micro-batch, by hand: eight forwards, and the backward of what is not frozen. The weights'
 * half of stage 1 runs beside stage 0's backward. */
static void simulated_step_is_as_short_as_what_is_frozen_makes_it(void **state)
{
    SCOPED(sl_module) *all = build_model(0), *half = build_model(0x0f), *middle = build_model(0x30);
    assert_float_equal(seconds_of(NULL, 4, 4), 8 + 4 + 8, 1e-12);
    assert_float_equal(seconds_of(all, 4, 4), 8 + 4 + 8, 1e-12);
    assert_float_equal(seconds_of(half, 4, 4), 8 + 8, 1e-12);     /* stage 0 has F alone */
    assert_float_equal(seconds_of(half, 6, 2), 8 + 2 + 4, 1e-12); /* two modules of it go back */
    assert_float_equal(seconds_of(middle, 4, 4), 8 + 4 + 8, 1e-12);
}

int frozen_stages_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_stages_of_zero_bubble_lose_their_weight_halves),
        cmocka_unit_test(any_table_is_whole_without_what_frozen_stages_have),
        cmocka_unit_test(impossible_ends_of_backward_are_refused),
        cmocka_unit_test(table_stays_as_it_was_without_memory),
        cmocka_unit_test(table_without_the_first_stages_backward_is_refused),
        cmocka_unit_test(frozen_stages_run_less_and_give_the_same_bits),
        cmocka_unit_test(simulated_step_is_as_short_as_what_is_frozen_makes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
