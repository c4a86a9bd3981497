/* What runs, when, and how often: seen by modules that count their calls. */
#include "nn/module.h"
#include "parallel/pipe/failure.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <pthread.h>
#include <string.h>

enum { FEATURES = 6 };

/* A batch on a device of its own. */
typedef struct data {
    sl_device *device;
    sl_tensor *input;
} data;

static data random_data(int64_t rows)
{
    data d;
    sl_shape shape = sl_shape_2d(rows, FEATURES);
    check_ok(sl_device_create_cpu(1, &d.device));
    d.input = random_tensor(d.device, &shape, 11);
    return d;
}

static void data_destroy(data *d)
{
    sl_tensor_destroy(&d->input);
    sl_device_destroy(&d->device);
}

typedef struct crew {
    probe probes[4];
    sl_module *model;
} crew;

/* A model of probes only. */
static void muster(crew *c, int count)
{
    sl_module *modules[4];
    for (int i = 0; i < count; i++)
        modules[i] = probe_module(&c->probes[i]);
    check_ok(create_sequential(modules, count, &c->model));
}

static void meet_in_first_call(probe *p, int call)
{
    if (call == 1)
        pthread_barrier_wait(p->arg);
}

static void meet_in_second_call(probe *p, int call)
{
    if (call == 2)
        pthread_barrier_wait(p->arg);
}

/* Stage 0 is in its second micro-batch while stage 1 is in its first: each waits for the other to
 * be there, so this would never end if they took turns. */
static void stages_run_at_the_same_time(void **state)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 2);
    crew c = {.probes = {{.on_forward = meet_in_second_call, .arg = &barrier},
                         {.on_forward = meet_in_first_call, .arg = &barrier}}};
    muster(&c, 2);
    test_pipe piped = open_pipe(c.model, NULL, (sl_pipe_options){.stages = 2, .chunks = 3}, 2, 1);
    data d = random_data(3);
    sl_tensor *output;
    check_ok(sl_pipe_forward(piped.pipe, &(sl_pipe_batch){.input = d.input}, &output));
    sl_tensor_destroy(&output);
    test_pipe_destroy(&piped);
    data_destroy(&d);
    pthread_barrier_destroy(&barrier);
}

static void be_alone(probe *p, int call)
{
    atomic_int *inside = p->arg;
    if (atomic_fetch_add(inside, 1) != 0)
        p->fail_forward = call;
    for (int i = 0; i < 10000; i++)
        atomic_load(inside);
    atomic_fetch_sub(inside, 1);
}

static void stages_on_one_device_take_turns(void **state)
{
    atomic_int inside = 0;
    crew c = {0};
    for (int i = 0; i < 4; i++)
        c.probes[i] = (probe){.on_forward = be_alone, .arg = &inside};
    muster(&c, 4);
    test_pipe piped = open_pipe(c.model, NULL, (sl_pipe_options){.stages = 4, .chunks = 20}, 1, 1);
    data d = random_data(20);
    sl_tensor *output;
    check_ok(sl_pipe_forward(piped.pipe, &(sl_pipe_batch){.input = d.input}, &output));
    sl_tensor_destroy(&output);
    test_pipe_destroy(&piped);
    data_destroy(&d);
}

/* Four rows, four chunks: always recomputes four of them at each stage, except_last three, never
 * none. At the last stage a discarded forward is not computed at all, since the loss is the only
 * reader of its output: there, four forwards are enough in every mode. */
static void recomputations_are_four_three_and_none(void **state)
{
    const struct {
        sl_recompute mode;
        int recomputations;
    } cases[] = {{SL_RECOMPUTE_ALWAYS, 4}, {SL_RECOMPUTE_EXCEPT_LAST, 3}, {SL_RECOMPUTE_NEVER, 0}};
    for (int kind = 0; kind < TEST_SCHEDULES; kind++)
        for (int i = 0; i < 3; i++) {
            crew c = {0};
            muster(&c, 3);
            test_pipe piped = open_pipe(c.model, new_mse_loss(),
                                        (sl_pipe_options){.stages = 3,
                                                          .chunks = 4,
                                                          .recompute = cases[i].mode,
                                                          .schedule = test_schedules[kind]},
                                        3, 1);
            data d = random_data(4);
            pipe_train(&piped, d.input, d.input, 0);
            int traced[3] = {0};
            const sl_timeline_entry *entries;
            int count = sl_pipe_timeline(piped.pipe, &entries);
            for (int e = 0; e < count; e++)
                traced[entries[e].action.stage] += entries[e].action.kind == SL_ACTION_RECOMPUTE;
            for (int stage = 0; stage < 3; stage++) {
                assert_int_equal(traced[stage], cases[i].recomputations);
                assert_int_equal(c.probes[stage].forwards,
                                 stage < 2 ? 4 + cases[i].recomputations : 4);
                assert_int_equal(c.probes[stage].backwards, 4);
            }
            test_pipe_destroy(&piped);
            data_destroy(&d);
        }
}

static void evaluation_runs_every_stage_once_whatever_the_checkpoint_mode(void **state)
{
    crew c = {0};
    muster(&c, 3);
    test_pipe piped =
        open_pipe(c.model, new_mse_loss(),
                  (sl_pipe_options){.stages = 3, .chunks = 4, .recompute = SL_RECOMPUTE_ALWAYS}, 3,
                  1);
    data d = random_data(4);
    double sum;
    int64_t terms;
    check_ok(sl_pipe_evaluate(piped.pipe, &(sl_pipe_batch){.input = d.input, .targets = d.input},
                              &sum, &terms));
    assert_true(sum == 0.0);
    for (int stage = 0; stage < 3; stage++) {
        assert_int_equal(c.probes[stage].forwards, 4);
        assert_int_equal(c.probes[stage].backwards, 0);
    }
    test_pipe_destroy(&piped);
    data_destroy(&d);
}

/* ---- Trace ------------------------------------------------------------------------------ */

static void trace_has_every_action_of_the_table_in_an_order_that_can_be(void **state)
{
    SCOPED(data) d = random_data(10);
    for (int kind = 0; kind < TEST_SCHEDULES; kind++) {
        crew c = {0};
        muster(&c, 3);
        sl_pipe_options options = {.stages = 3, .chunks = 5, .schedule = test_schedules[kind]};
        SCOPED(test_pipe) piped = open_pipe(c.model, new_mse_loss(), options, 3, 1);
        SCOPED(sl_schedule) *schedule = NULL;
        check_ok(sl_schedule_write(test_schedules[kind],
                                   &(sl_schedule_options){.ranks = 3, .micros = 5}, &schedule));
        check_ok(sl_schedule_recompute(schedule, SL_RECOMPUTE_EXCEPT_LAST));
        for (uint64_t step = 0; step < 3; step++) {
            pipe_train(&piped, d.input, d.input, step);
            const sl_timeline_entry *entries;
            int count = sl_pipe_timeline(piped.pipe, &entries);
            check_timeline(entries, count, schedule, 3, 0);
        }
    }
}

/* ---- The first error --------------------------------------------------------------------- */

static void failure_keeps_the_error_of_the_lowest_number_and_its_text(void **state)
{
    sli_failure failure;
    sli_failure_init(&failure);
    assert_false(sli_failure_precedes(&failure, 1000));
    sli_failure_raise(&failure, 0, SL_OK);
    assert_false(sli_failure_precedes(&failure, 1000));
    assert_int_equal(sli_failure_take(&failure), SL_OK);

    sli_failure_raise(&failure, 3, sl_error(SL_ERR_MEMORY, "number 3"));
    sli_failure_raise(&failure, 3, sl_error(SL_ERR_IO, "as low, but later"));
    sli_failure_raise(&failure, 4, sl_error(SL_ERR_INVALID, "number 4"));
    assert_true(sli_failure_precedes(&failure, 3));
    assert_false(sli_failure_precedes(&failure, 2));
    sli_failure_raise(&failure, 1, sl_error(SL_ERR_NUMERIC, "number 1"));
    assert_true(sli_failure_precedes(&failure, 1));
    check_error(sli_failure_take(&failure), SL_ERR_NUMERIC, "number 1");

    assert_false(sli_failure_precedes(&failure, 1000));
    assert_int_equal(sli_failure_take(&failure), SL_OK);
    sli_failure_raise(&failure, 7, sl_error(SL_ERR_IO, "another time"));
    check_error(sli_failure_take(&failure), SL_ERR_IO, "another time");
    sli_failure_destroy(&failure);
}

static void *raise_on_another_thread(void *failure)
{
    sli_failure_raise(failure, 0, sl_error(SL_ERR_NUMERIC, "of the other thread"));
    return NULL;
}

static void failure_brings_the_text_to_the_thread_that_takes_it(void **state)
{
    sli_failure failure;
    sli_failure_init(&failure);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, raise_on_another_thread, &failure), 0);
    pthread_join(thread, NULL);
    check_error(sli_failure_take(&failure), SL_ERR_NUMERIC, "of the other thread");
    sli_failure_destroy(&failure);
}

int interpreter_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_run_at_the_same_time),
        cmocka_unit_test(stages_on_one_device_take_turns),
        cmocka_unit_test(recomputations_are_four_three_and_none),
        cmocka_unit_test(evaluation_runs_every_stage_once_whatever_the_checkpoint_mode),
        cmocka_unit_test(trace_has_every_action_of_the_table_in_an_order_that_can_be),
        cmocka_unit_test(failure_keeps_the_error_of_the_lowest_number_and_its_text),
        cmocka_unit_test(failure_brings_the_text_to_the_thread_that_takes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
