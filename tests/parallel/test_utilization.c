/* Where a step's time went, by a trace that is worked out by hand, by simulations, and by a pipe.
 */
#include "device/device_base.h"
#include "nn/module.h"
#include "sluice/model.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <limits.h>
#include <stdlib.h>

enum { RANKS = 2, MICROS = 2 };

static sl_schedule *open_table(const char *name, int ranks, int micros, sl_recompute mode)
{
    sl_schedule *table;
    check_ok(
        sl_schedule_write(name, &(sl_schedule_options){.ranks = ranks, .micros = micros}, &table));
    check_ok(sl_schedule_recompute(table, mode));
    return table;
}

static sl_simulation simulate(const sl_schedule *table, const double *forward,
                              const double *backward)
{
    sl_simulation simulation;
    check_ok(sl_schedule_simulate(table,
                                  &(sl_cost_model){.forward = forward,
                                                   .backward_input = backward,
                                                   .backward_weight = backward},
                                  &simulation));
    return simulation;
}

/*     0F1 0F0 ... ... ... 0B0 0B0 0B1 0B1
 *     ... 1F1 1F0 1B0 1B0 1B1 1B1 ... ... */
static void idle_and_waiting_time_are_what_is_worked_out_by_hand(void **state)
{
    static const double one[] = {1, 1};
    sl_utilization utilization;
    SCOPED(sl_schedule) *table = open_table("gpipe", RANKS, MICROS, SL_RECOMPUTE_NEVER);
    sl_simulation simulation = simulate(table, one, one);
    check_ok(sl_timeline_utilization(simulation.entries, simulation.entry_count,
                                     &(sl_schedule_options){.ranks = RANKS}, &utilization));
    assert_int_equal(utilization.ranks, RANKS);
    assert_int_equal(utilization.stages, RANKS);
    assert_float_equal(utilization.seconds, 9, 1e-12);
    assert_float_equal(utilization.idle[0], 3.0 / 9, 1e-12);
    assert_float_equal(utilization.idle[1], 3.0 / 9, 1e-12);
    assert_float_equal(utilization.waiting[0], 3.0 / 9, 1e-12);
    assert_float_equal(utilization.waiting[1], 1.0 / 9, 1e-12); /* nothing comes after its end */
    assert_float_equal(utilization.bubble_measured, 3.0 / 9, 1e-12);
    assert_float_equal(utilization.bubble_predicted, 3.0 / 9, 1e-12);
    assert_float_equal(utilization.stage_seconds[0], 6, 1e-12);
    assert_float_equal(utilization.forward[0], 1, 1e-12);
    assert_float_equal(utilization.backward[0], 2, 1e-12);
    sl_utilization_clear(&utilization);
    assert_null(utilization.idle);
    sl_simulation_clear(&simulation);
}

/* A simulation has no noise: what is measured is what is predicted. */
static void utilization_of_a_simulation_has_its_bubble(void **state)
{
    static const double forward[] = {1, 3, 2, 1, 1, 2}, backward[] = {2, 1, 1, 4, 1, 1};
    for (int i = 0; sl_schedule_names[i]; i++)
        for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++) {
            SCOPED(sl_schedule) *table = open_table(sl_schedule_names[i], 3, 5, (sl_recompute)mode);
            sl_simulation simulation = simulate(table, forward, backward);
            sl_utilization utilization;
            check_ok(sl_timeline_utilization(
                simulation.entries, simulation.entry_count,
                &(sl_schedule_options){.ranks = 3,
                                       .virtual_stages = sl_schedule_stages(table) / 3,
                                       .placement = sl_schedule_placement(table)},
                &utilization));
            assert_float_equal(utilization.seconds, simulation.makespan, 1e-9);
            assert_float_equal(utilization.bubble_measured, simulation.bubble, 1e-9);
            assert_float_equal(utilization.bubble_predicted, simulation.bubble, 1e-9);
            for (int rank = 0; rank < 3; rank++) {
                assert_float_equal(utilization.idle[rank] * utilization.seconds,
                                   simulation.idle[rank], 1e-9);
                assert_true(utilization.waiting[rank] <= utilization.idle[rank] + 1e-9);
            }
            for (int stage = 0; stage < utilization.stages; stage++)
                assert_true(utilization.stage_seconds[stage] <=
                            utilization.stage_seconds[utilization.slowest_stage]);
            sl_utilization_clear(&utilization);
            sl_simulation_clear(&simulation);
        }
}

/*     0F0 ... (0F1;0B0) ... 0B1       0F0 0-1; 0F1 4-5; 0B0 5-7; 0B1 10-12
 *     ... 1F0 1B0 ... 1F1 1B1 ...     1F0 1-2; 1B0 2-4; 1F1 7-8; 1B1 8-10 */
static void joined_actions_run_one_after_the_other(void **state)
{
    static const double one[] = {1, 1};
    static const sl_action rows[] = {
        {.stage = 0, .micro = 0},
        {.stage = 0, .micro = 1},
        {.stage = 0, .micro = 0, .kind = SL_ACTION_BACKWARD, .joined = true},
        {.stage = 0, .micro = 1, .kind = SL_ACTION_BACKWARD},
        {.stage = 1, .micro = 0},
        {.stage = 1, .micro = 0, .kind = SL_ACTION_BACKWARD},
        {.stage = 1, .micro = 1},
        {.stage = 1, .micro = 1, .kind = SL_ACTION_BACKWARD},
    };
    const sl_schedule_options of = {.ranks = RANKS, .micros = MICROS};
    SCOPED(sl_schedule) *table = NULL;
    sl_utilization utilization;
    check_ok(sl_schedule_from_table(&of, (int[RANKS]){4, 4}, rows, &table));
    sl_simulation simulation = simulate(table, one, one);
    check_ok(
        sl_timeline_utilization(simulation.entries, simulation.entry_count, &of, &utilization));
    assert_float_equal(utilization.seconds, 12, 1e-12);
    for (int i = 0; i < RANKS; i++) {
        assert_float_equal(utilization.idle[i], 6.0 / 12, 1e-12);
        assert_float_equal(utilization.stage_seconds[i], 6, 1e-12);
    }
    assert_float_equal(utilization.waiting[0], 6.0 / 12, 1e-12); /* for 0B0's and 0B1's tensors */
    assert_float_equal(utilization.waiting[1], 4.0 / 12, 1e-12); /* 0F1's leaves at 7 */
    assert_float_equal(utilization.bubble_measured, simulation.bubble, 1e-12);
    assert_float_equal(utilization.bubble_predicted, simulation.bubble, 1e-12);
    sl_utilization_clear(&utilization);
    sl_simulation_clear(&simulation);
}

/* A simulation with costs of links or shared cores is predicted from its own trace; returns its
 * seconds. */
static double check_prediction(const char *schedule, const double *links, const int *cores)
{
    static const double two[] = {2, 2, 2, 2};
    SCOPED(sl_schedule) *table = open_table(schedule, 4, 6, SL_RECOMPUTE_NEVER);
    sl_simulation simulation;
    sl_utilization utilization;
    check_ok(sl_schedule_simulate(table,
                                  &(sl_cost_model){.forward = two,
                                                   .backward_input = two,
                                                   .backward_weight = two,
                                                   .links = links,
                                                   .cores = cores},
                                  &simulation));
    check_ok(
        sl_timeline_utilization(simulation.entries, simulation.entry_count,
                                &(sl_schedule_options){.ranks = 4, .links = links, .cores = cores},
                                &utilization));
    double seconds = simulation.makespan;
    assert_float_equal(utilization.predicted_seconds, seconds, 1e-9);
    assert_float_equal(utilization.bubble_predicted, simulation.bubble, 1e-9);
    sl_utilization_clear(&utilization);
    sl_simulation_clear(&simulation);
    return seconds;
}

/* Where all ranks share their cores, these always have work: 4 ranks x 6 micro-batches x 6. */
static void prediction_knows_links_and_shared_cores(void **state)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    static const double links[] = {0, 3, 0};
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        double alone = check_prediction(schedules[i], NULL, NULL);
        assert_true(check_prediction(schedules[i], links, NULL) >= alone + 2 * 3);
        double pairs = check_prediction(schedules[i], NULL, (int[]){0, 1, 0, 1});
        assert_true(pairs > alone && pairs < 4 * 6 * 6);
        assert_float_equal(check_prediction(schedules[i], NULL, (int[]){5, 5, 5, 5}), 4 * 6 * 6,
                           1e-9);
    }
}

/* A trace that lacks the first stage's backwards is whole only where that stage is frozen. */
static void stages_without_backward_are_those_that_are_said_to_be_frozen(void **state)
{
    static const double one[] = {1, 1};
    static const sl_stage_backward backward[] = {SL_STAGE_BACKWARD_NONE, SL_STAGE_BACKWARD_WHOLE};
    sl_utilization utilization;
    sl_schedule_options of = {.ranks = RANKS};
    SCOPED(sl_schedule) *table = open_table("1f1b", RANKS, MICROS, SL_RECOMPUTE_NEVER);
    check_ok(sl_schedule_freeze(table, backward));
    sl_simulation simulation = simulate(table, one, one);
    check_error(sl_timeline_utilization(simulation.entries, simulation.entry_count, &of,
                                        &utilization),
                SL_ERR_INVALID, "the trace is not of a whole step: ");
    of.forward_only = 1;
    check_ok(
        sl_timeline_utilization(simulation.entries, simulation.entry_count, &of, &utilization));
    assert_int_equal(utilization.forward_only, 1);
    sl_utilization_clear(&utilization);
    sl_simulation_clear(&simulation);
}

static void what_is_no_whole_step_is_refused(void **state)
{
    static const double one[] = {1, 1};
    sl_utilization utilization;
    sl_schedule_options of = {.ranks = RANKS};
    SCOPED(sl_schedule) *table = open_table("1f1b", RANKS, MICROS, SL_RECOMPUTE_NEVER);
    sl_simulation simulation = simulate(table, one, one);
    sl_timeline_entry *entries = simulation.entries;
    int count = simulation.entry_count;
    check_error(sl_timeline_utilization(entries, count, &of, NULL), SL_ERR_INVALID, "out is NULL");
    check_error(sl_timeline_utilization(entries, count, NULL, &utilization), SL_ERR_INVALID,
                "layout is NULL");
    check_error(sl_timeline_utilization(entries, 0, &of, &utilization), SL_ERR_INVALID,
                "the trace needs at least 1 entry and 1 rank, got 0 and 2");
    check_error(sl_timeline_utilization(entries, count - 1, &of, &utilization), SL_ERR_INVALID,
                "the trace is not of a whole step: ");
    of.link = -1;
    check_error(sl_timeline_utilization(entries, count, &of, &utilization), SL_ERR_INVALID,
                "sl_schedule_simulate: every cost must be a number of 0 or more");
    of.link = 0;
    check_error(sl_timeline_utilization(entries, count,
                                        &(sl_schedule_options){.ranks = 1 << 30,
                                                               .virtual_stages = 4},
                                        &utilization),
                SL_ERR_INVALID, "too many stages");
    entries[0].action.micro = INT_MAX;
    check_error(sl_timeline_utilization(entries, count, &of, &utilization), SL_ERR_INVALID,
                "entry 0 is of micro-batch 2147483647");
    entries[0].action.micro = 0;
    entries[0].action.stage = RANKS;
    check_error(sl_timeline_utilization(entries, count, &of, &utilization), SL_ERR_INVALID,
                "entry 0, of stage 2, must be of a rank from 0 to 1");
    entries[0].action.stage = 1;
    check_error(sl_timeline_utilization(entries, count, &of, &utilization), SL_ERR_INVALID,
                "entry 1, of stage 0, must be of a rank from 1 to 1");
    assert_null(utilization.idle);
    sl_simulation_clear(&simulation);
}

static void pipe_gives_the_utilization_of_its_last_step(void **state)
{
    enum { WIDTH = 8, LAYERS = 4, ROWS = 12 };
    probe failing = {.fail_backward = 5}; /* in the second step */
    sl_module *layers[LAYERS + 1], *model;
    sl_utilization utilization;
    double mean;
    for (int i = 0; i < LAYERS; i++)
        check_ok(sl_linear_create(WIDTH, WIDTH, true, &layers[i]));
    layers[LAYERS] = probe_module(&failing);
    check_ok(create_sequential(layers, LAYERS + 1, &model));
    SCOPED(test_pipe) on = open_pipe(model, new_mse_loss(),
                                     (sl_pipe_options){.stages = 4,
                                                       .virtual_stages = 2,
                                                       .chunks = 4,
                                                       .schedule = "interleaved",
                                                       .seed = 1},
                                     2, 1);
    check_error(sl_pipe_get_utilization(on.pipe, &utilization), SL_ERR_INVALID,
                "no training step has run");
    sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    SCOPED(sl_tensor) *input = random_tensor(on.devices[0], &shape, 1);
    SCOPED(sl_tensor) *targets = random_tensor(on.devices[0], &shape, 2);
    check_ok(sl_pipe_train(on.pipe, &(sl_pipe_batch){.input = input, .targets = targets}, &mean));
    check_ok(sl_pipe_get_utilization(on.pipe, &utilization));
    assert_int_equal(utilization.ranks, 2);
    assert_int_equal(utilization.stages, 4);
    assert_true(utilization.seconds > 0 && utilization.bubble_predicted >= 0 &&
                utilization.bubble_predicted < 1);
    const sl_timeline_entry *trace;
    assert_int_equal(sl_pipe_timeline(on.pipe, &trace), utilization.action_count);
    for (int i = 0; i < utilization.action_count; i++) {
        assert_memory_equal(&utilization.measured[i], &trace[i], sizeof *trace);
        assert_int_equal(utilization.predicted[i].action.micro, trace[i].action.micro);
        assert_int_equal(utilization.predicted[i].action.kind, trace[i].action.kind);
        assert_true(utilization.predicted[i].end >= utilization.predicted[i].start);
    }
    for (int stage = 0; stage < 4; stage++)
        assert_int_equal(utilization.placement[stage], stage % 2);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(utilization.idle[rank] >= 0 && utilization.idle[rank] <= 1);
        assert_true(utilization.waiting[rank] >= 0 &&
                    utilization.waiting[rank] <= utilization.idle[rank] + 1e-9);
    }
    assert_null(utilization.cores);
    sl_utilization_clear(&utilization);
    on.devices[0]->core_set = on.devices[1]->core_set = 3;
    check_ok(sl_pipe_get_utilization(on.pipe, &utilization));
    assert_non_null(utilization.cores);
    assert_int_equal(utilization.cores[0], utilization.cores[1]);
    sl_utilization_clear(&utilization);
    sl_pipe_zero_grad(on.pipe);
    check_error(sl_pipe_train(on.pipe, &(sl_pipe_batch){.input = input, .targets = targets}, &mean),
                SL_ERR_NUMERIC, "");
    check_error(sl_pipe_get_utilization(on.pipe, &utilization), SL_ERR_INVALID,
                "sl_timeline_utilization: the trace is not of a whole step: ");
}

int utilization_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_and_waiting_time_are_what_is_worked_out_by_hand),
        cmocka_unit_test(utilization_of_a_simulation_has_its_bubble),
        cmocka_unit_test(joined_actions_run_one_after_the_other),
        cmocka_unit_test(prediction_knows_links_and_shared_cores),
        cmocka_unit_test(stages_without_backward_are_those_that_are_said_to_be_frozen),
        cmocka_unit_test(what_is_no_whole_step_is_refused),
        cmocka_unit_test(pipe_gives_the_utilization_of_its_last_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
