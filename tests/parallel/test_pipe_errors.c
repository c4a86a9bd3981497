/* Errors in stages: each ends the step everywhere, is reported as it was, and leaves the pipe
 * usable. A hang shows as CTest's time limit. */
#include "parallel/pipe/pipe.h"
#include "parallel/schedule/table.h"
#include "sluice/layers.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 4, CHUNKS = 3, FEATURES = 6 };

/* Four stages of a linear layer and a probe each, on devices of their own. */
typedef struct rig {
    probe probes[STAGES];
    test_pipe pipe;
    sl_tensor *input, *targets;
} rig;

static void build(rig *r, sl_pipe_options options, unsigned seed)
{
    sl_module *modules[2 * STAGES], *model;
    for (int i = 0; i < STAGES; i++) {
        r->probes[i] = (probe){0};
        check_ok(sl_linear_create(FEATURES, FEATURES, false, &modules[2 * i]));
        modules[2 * i + 1] = probe_module(&r->probes[i]);
    }
    check_ok(create_sequential(modules, 2 * STAGES, &model));
    options.stages = STAGES;
    options.chunks = CHUNKS;
    options.balance = (int[]){2, 2, 2, 2};
    options.seed = seed;
    r->pipe = open_pipe(model, new_mse_loss(), options, STAGES, 1);
    sl_shape shape = sl_shape_2d(2 * CHUNKS, FEATURES);
    r->input = random_tensor(r->pipe.devices[0], &shape, 21);
    r->targets = random_tensor(r->pipe.devices[STAGES - 1], &shape, 22);
}

static void rig_destroy(rig *r)
{
    sl_tensor_destroy(&r->input);
    sl_tensor_destroy(&r->targets);
    test_pipe_destroy(&r->pipe);
}

static sl_status train(rig *r, double *loss)
{
    sl_pipe_batch batch = {.input = r->input, .targets = r->targets};
    return sl_pipe_train(r->pipe.pipe, &batch, loss);
}

/* Bytes in use on all devices. */
static uint64_t bytes_in_use(const rig *r)
{
    uint64_t sum = 0;
    for (int i = 0; i < STAGES; i++)
        sum += device_bytes(r->pipe.devices[i]);
    return sum;
}

/* Where a probe is to fail, and in which of its calls. */
typedef struct fault {
    int stage, call;
    bool backward;
} fault;

static void set_fault(rig *r, fault f)
{
    for (int i = 0; i < STAGES; i++) {
        atomic_store(&r->probes[i].forwards, 0);
        atomic_store(&r->probes[i].backwards, 0);
        r->probes[i].fail_forward = i == f.stage && !f.backward ? f.call : 0;
        r->probes[i].fail_backward = i == f.stage && f.backward ? f.call : 0;
    }
}

/* Fails once; then the pipe must train as a pipe that never failed. */
static void check_fault(rig *r, fault f, double expected)
{
    uint64_t before = bytes_in_use(r);
    char text[128], place[32];
    double loss = -1;
    set_fault(r, f);
    snprintf(text, sizeof text, "%d (Probe): the probe fails in %s %d", 2 * f.stage + 1,
             f.backward ? "backward" : "forward", f.call);
    snprintf(place, sizeof place, "[stage %d micro ", f.stage);
    check_error(train(r, &loss), SL_ERR_NUMERIC, text);
    assert_memory_equal(sl_error_text(), place, strlen(place));
    assert_true(loss == -1);
    assert_int_equal(bytes_in_use(r), before);

    set_fault(r, (fault){.stage = -1});
    sl_pipe_zero_grad(r->pipe.pipe);
    check_ok(train(r, &loss));
    assert_true(loss == expected);
}

static void any_failing_call_is_reported_and_leaves_a_usable_pipe(void **state)
{
    for (int kind = 0; kind < TEST_SCHEDULES; kind++)
        for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++) {
            SCOPED(rig) r = {0};
            build(&r,
                  (sl_pipe_options){.schedule = test_schedules[kind],
                                    .recompute = (sl_recompute)mode},
                  3);
            double expected;
            check_ok(train(&r, &expected));
            for (int stage = 0; stage < STAGES; stage++)
                for (int call = 1; call <= CHUNKS; call++)
                    for (int backward = 0; backward < 2; backward++)
                        check_fault(&r, (fault){stage, call, backward}, expected);
        }
}

/* In gpipe's order, call by call: forwards 2, 1, 0, then recomputations and backwards 0, 1, 2. */
static void error_names_the_stage_and_the_micro_batch(void **state)
{
    SCOPED(rig) r = {0};
    double loss;
    build(&r, (sl_pipe_options){.recompute = SL_RECOMPUTE_ALWAYS}, 3);
    const struct {
        fault f;
        const char *text;
    } cases[] = {
        {{1, 2, false}, "[stage 1 micro 1] 3 (Probe): the probe fails in forward 2"},
        {{0, 4, false}, "[stage 0 micro 0] 1 (Probe): the probe fails in forward 4"},
        {{2, 5, false}, "[stage 2 micro 1] 5 (Probe): the probe fails in forward 5"},
        {{3, 1, true}, "[stage 3 micro 0] 7 (Probe): the probe fails in backward 1"},
        {{0, 3, true}, "[stage 0 micro 2] 1 (Probe): the probe fails in backward 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_fault(&r, cases[i].f);
        assert_int_equal(train(&r, &loss), SL_ERR_NUMERIC);
        assert_string_equal(sl_error_text(), cases[i].text);
    }
}

static void evaluation_and_forward_report_errors_as_well(void **state)
{
    SCOPED(rig) r = {0};
    build(&r, (sl_pipe_options){0}, 3);
    uint64_t before = bytes_in_use(&r);
    double sum, again;
    int64_t terms;
    sl_tensor *output;
    check_ok(sl_pipe_evaluate(r.pipe.pipe, &(sl_pipe_batch){.input = r.input, .targets = r.targets},
                              &sum, &terms));
    set_fault(&r, (fault){2, 3, false});
    check_error(sl_pipe_evaluate(r.pipe.pipe,
                                 &(sl_pipe_batch){.input = r.input, .targets = r.targets}, &again,
                                 &terms),
                SL_ERR_NUMERIC, "[stage 2 micro 2] 5 (Probe): the probe fails");
    set_fault(&r, (fault){3, 2, false}); /* a part of the output is there already */
    check_error(sl_pipe_forward(r.pipe.pipe, &(sl_pipe_batch){.input = r.input}, &output),
                SL_ERR_NUMERIC, "[stage 3 micro 1] 7 (Probe): the probe fails");
    assert_null(output);
    assert_int_equal(bytes_in_use(&r), before);
    set_fault(&r, (fault){.stage = -1});
    check_ok(sl_pipe_evaluate(r.pipe.pipe, &(sl_pipe_batch){.input = r.input, .targets = r.targets},
                              &again, &terms));
    assert_true(again == sum);
}

/* ---- Which of two errors ---------------------------------------------------------------- */

typedef struct duel {
    const sl_pipe *pipe;
    probe *other;
} duel;

static bool has_failed(const sl_pipe *pipe)
{
    return sli_failure_precedes(&pipe->failure, INT_MAX - 1);
}

/* Fails when the other one is in the call in which it will fail. */
static void fail_before_the_other(probe *p, int call)
{
    const duel *d = p->arg;
    while (call == p->fail_forward && atomic_load(&d->other->forwards) < d->other->fail_forward)
        sched_yield();
}

static void fail_after_the_other(probe *p, int call)
{
    const duel *d = p->arg;
    while (call == p->fail_forward && !has_failed(d->pipe))
        sched_yield();
}

/* In gpipe's table at unit costs, stage s begins its forward number `call` at s + call - 1. The
 * first of the two is the one to be reported, whichever fails first. */
static void check_duel(int winner, int winner_call, int loser, int loser_call, bool winner_is_late)
{
    SCOPED(rig) r = {0};
    double loss;
    build(&r, (sl_pipe_options){.recompute = SL_RECOMPUTE_NEVER}, 3);
    duel of_winner = {r.pipe.pipe, &r.probes[loser]}, of_loser = {r.pipe.pipe, &r.probes[winner]};
    r.probes[winner].fail_forward = winner_call;
    r.probes[winner].on_forward = winner_is_late ? fail_after_the_other : fail_before_the_other;
    r.probes[winner].arg = &of_winner;
    r.probes[loser].fail_forward = loser_call;
    r.probes[loser].on_forward = winner_is_late ? NULL : fail_after_the_other;
    r.probes[loser].arg = &of_loser;
    char text[64];
    snprintf(text, sizeof text, "[stage %d micro %d]", winner, CHUNKS - winner_call);
    check_error(train(&r, &loss), SL_ERR_NUMERIC, text);
    assert_int_equal(r.probes[loser].forwards, loser_call);
}

static void of_two_errors_the_first_in_the_table_is_reported(void **state)
{
    for (int late = 0; late < 2; late++) {
        check_duel(0, 2, 1, 1, late); /* at the same time: the lower stage's */
        check_duel(0, 3, 3, 1, late);
        check_duel(1, 2, 2, 1, late);
        check_duel(1, 2, 3, 1, late);
    }
}

/* Both fail as soon as they can. */
static void two_errors_that_race_give_the_same_one_every_time(void **state)
{
    SCOPED(rig) r = {0};
    double loss;
    build(&r, (sl_pipe_options){.recompute = SL_RECOMPUTE_NEVER}, 3);
    for (int i = 0; i < test_rounds(300); i++) {
        set_fault(&r, (fault){0, 3, false});
        r.probes[2].fail_forward = 1;
        check_error(train(&r, &loss), SL_ERR_NUMERIC, "[stage 0 micro 0]");
    }
}

/* The index of the action in which the probe of a stage has its call number `call`. */
static size_t action_of_call(const sl_schedule *table, fault f)
{
    const sl_action *row, *first;
    int rank = sl_schedule_placement(table)[f.stage], calls = 0;
    sl_schedule_actions(table, 0, &first);
    int count = sl_schedule_actions(table, rank, &row);
    for (int i = 0; i < count; i++) {
        bool is_skipped = row[i].discards && f.stage == STAGES - 1;
        bool forward = row[i].kind == SL_ACTION_FORWARD || row[i].kind == SL_ACTION_RECOMPUTE;
        bool backward =
            row[i].kind == SL_ACTION_BACKWARD || row[i].kind == SL_ACTION_BACKWARD_INPUT;
        if (row[i].stage == f.stage && !is_skipped && (f.backward ? backward : forward) &&
            ++calls == f.call)
            return (size_t)(row + i - first);
    }
    fail_msg("stage %d has no call %d", f.stage, f.call);
    return 0;
}

static fault draw_fault(unsigned *seed, int stage)
{
    return (fault){stage, test_draw(seed, 1, CHUNKS), test_draw(seed, 0, 1)};
}

/* Two faults at different stages; three steps, in which they race. */
static void check_two_faults(rig *r, unsigned *seed, const sl_schedule *table, const int *order)
{
    int stage = test_draw(seed, 0, STAGES - 1);
    fault one = draw_fault(seed, stage);
    fault other = draw_fault(seed, (stage + test_draw(seed, 1, STAGES - 1)) % STAGES);
    bool first = order[action_of_call(table, one)] < order[action_of_call(table, other)];
    fault expected = first ? one : other;
    for (int i = 0; i < 3; i++) {
        char text[64];
        double loss;
        set_fault(r, one);
        *(other.backward ? &r->probes[other.stage].fail_backward
                         : &r->probes[other.stage].fail_forward) = other.call;
        snprintf(text, sizeof text, "%d (Probe): the probe fails in %s %d", 2 * expected.stage + 1,
                 expected.backward ? "backward" : "forward", expected.call);
        check_error(train(r, &loss), SL_ERR_NUMERIC, text);
    }
}

/* Any table: several stages a rank, joined cells, halves, recomputations. */
static void of_two_errors_in_a_random_table_the_first_is_reported(void **state)
{
    unsigned seed = test_seed(20261125);
    for (int round = 0; round < test_rounds(100); round++) {
        rig r;
        int each = 1 << test_draw(&seed, 0, 2), *order;
        SCOPED(sl_schedule) *table = random_table(&seed, STAGES / each, each, CHUNKS);
        check_ok(sl_schedule_recompute(table, (sl_recompute)test_draw(&seed, 0, 2)));
        check_ok(sli_schedule_order(table, &order));
        build(&r,
              (sl_pipe_options){.virtual_stages = each,
                                .table = table,
                                .recompute = SL_RECOMPUTE_NEVER}, /* none but the table's own */
              3);
        check_two_faults(&r, &seed, table, order);
        rig_destroy(&r);
        free(order);
    }
}

/* torchgpipe's early stop: of four stages the last raises in its first micro-batch; the one before
 * has its second under way then, and does not begin its third. */
typedef struct early_stop {
    const sl_pipe *pipe;
    probe *counter;
} early_stop;

static void wait_for_second_call_of_counter(probe *p, int call)
{
    const early_stop *stop = p->arg;
    while (atomic_load(&stop->counter->forwards) < 2)
        sched_yield();
}

static void wait_for_failure_in_second_call(probe *p, int call)
{
    const early_stop *stop = p->arg;
    while (call == 2 && !has_failed(stop->pipe))
        sched_yield();
}

static void stage_before_the_failing_one_begins_nothing_more(void **state)
{
    SCOPED(rig) r = {0};
    double loss;
    build(&r, (sl_pipe_options){.recompute = SL_RECOMPUTE_NEVER}, 3);
    early_stop stop = {r.pipe.pipe, &r.probes[2]};
    r.probes[2].arg = r.probes[3].arg = &stop;
    r.probes[2].on_forward = wait_for_failure_in_second_call;
    r.probes[3].on_forward = wait_for_second_call_of_counter;
    r.probes[3].fail_forward = 1;
    check_error(train(&r, &loss), SL_ERR_NUMERIC,
                "[stage 3 micro 2] 7 (Probe): the probe fails in forward 1");
    assert_int_equal(r.probes[2].forwards, 2);
    assert_int_equal(r.probes[3].forwards, 1);
    for (int stage = 0; stage < STAGES; stage++)
        assert_int_equal(r.probes[stage].backwards, 0);
}

/* ---- Modules that break their contract -------------------------------------------------- */

static void results_that_are_missing_are_errors(void **state)
{
    SCOPED(rig) r = {0};
    double loss;
    build(&r, (sl_pipe_options){.recompute = SL_RECOMPUTE_NEVER}, 3);
    r.probes[1].gives_nothing = true;
    check_error(train(&r, &loss), SL_ERR_INVALID,
                "[stage 1 micro 2] 3 (Probe): gave no output, and reported no error");
    r.probes[1].gives_nothing = false;
    r.probes[2].leaves_on_pass = true;
    check_error(train(&r, &loss), SL_ERR_INVALID, "[stage 2 micro 0]");
    r.probes[2].leaves_on_pass = false;
    check_ok(train(&r, &loss));
}

static void input_that_a_module_cannot_take_is_an_error_of_its_stage(void **state)
{
    SCOPED(rig) r = {0};
    double loss;
    build(&r, (sl_pipe_options){0}, 3);
    sl_shape wrong = sl_shape_2d(2 * CHUNKS, FEATURES + 1);
    sl_tensor *input = random_tensor(r.pipe.devices[0], &wrong, 1);
    sl_pipe_batch batch = {.input = input, .targets = r.targets};
    check_error(sl_pipe_train(r.pipe.pipe, &batch, &loss), SL_ERR_INVALID,
                "[stage 0 micro 2] 0 (Linear): ");
    sl_tensor_destroy(&input);
    sl_tensor *targets = random_tensor(r.pipe.devices[0], &wrong, 1);
    batch = (sl_pipe_batch){.input = r.input, .targets = targets};
    assert_int_equal(sl_pipe_train(r.pipe.pipe, &batch, &loss), SL_ERR_INVALID);
    assert_memory_equal(sl_error_text(), "[stage 3 micro ", 15);
    sl_tensor_destroy(&targets);
    check_ok(train(&r, &loss));
}

int pipe_errors_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_failing_call_is_reported_and_leaves_a_usable_pipe),
        cmocka_unit_test(error_names_the_stage_and_the_micro_batch),
        cmocka_unit_test(evaluation_and_forward_report_errors_as_well),
        cmocka_unit_test(of_two_errors_the_first_in_the_table_is_reported),
        cmocka_unit_test(two_errors_that_race_give_the_same_one_every_time),
        cmocka_unit_test(of_two_errors_in_a_random_table_the_first_is_reported),
        cmocka_unit_test(stage_before_the_failing_one_begins_nothing_more),
        cmocka_unit_test(results_that_are_missing_are_errors),
        cmocka_unit_test(input_that_a_module_cannot_take_is_an_error_of_its_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
