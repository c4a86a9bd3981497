#include "sluice/layers.h"
#include "sluice/pipe.h"
#include "support/check.h"

#include <string.h>

enum { MODULES = 4 };

/* What a test gives sl_pipe_create: four linear layers, of 6, 4, 4 and 2 parameters. */
typedef struct bench {
    sl_module *model;
    sl_device *devices[MODULES + 1];
} bench;

static bench set_up(void)
{
    bench b;
    sl_module *modules[MODULES];
    const int features[MODULES + 1] = {3, 2, 2, 2, 1};
    for (int i = 0; i < MODULES; i++)
        check_ok(sl_linear_create(features[i], features[i + 1], true, &modules[i]));
    check_ok(sl_sequential_create(modules, MODULES, &b.model));
    for (int i = 0; i <= MODULES; i++)
        check_ok(sl_device_create_cpu(1, &b.devices[i]));
    return b;
}

static void tear_down(bench *b)
{
    sl_module_destroy(&b->model);
    for (int i = 0; i <= MODULES; i++)
        sl_device_destroy(&b->devices[i]);
}

static void assert_refused(const bench *b, sl_pipe_options options, const char *text)
{
    if (!options.model)
        options.model = b->model;
    if (!options.devices)
        options.devices = b->devices;
    sl_pipe *pipe = (sl_pipe *)&options; /* must be nulled */
    check_error(sl_pipe_create(&options, &pipe), SL_ERR_INVALID, text);
    assert_null(pipe);
}

static void options_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    bench b = set_up();
    assert_refused(&b, (sl_pipe_options){.stages = 1, .model = sl_module_child(b.model, 0)},
                   "sl_pipe_create: module must be a Sequential to be partitioned, got Linear");
    assert_refused(&b, (sl_pipe_options){.stages = 1, .chunks = -1},
                   "sl_pipe_create: number of chunks must be positive integer, got -1");
    assert_refused(&b, (sl_pipe_options){.stages = 1, .checkpoint = (sl_checkpoint)3},
                   "checkpoint is not one of 'always', 'except_last', or 'never'");
    assert_refused(&b, (sl_pipe_options){.stages = 1, .schedule = (sl_schedule_kind)2},
                   "schedule is not one of 'gpipe' or '1f1b'");
    assert_refused(&b, (sl_pipe_options){.stages = 0},
                   "sl_pipe_create: stages must be at least 1, got 0");
    assert_refused(&b, (sl_pipe_options){.stages = 5},
                   "sl_pipe_create: 5 stages need as many modules, the model has 4");
    assert_refused(&b,
                   (sl_pipe_options){.stages = 2, .devices = (sl_device *[]){b.devices[0], NULL}},
                   "sl_pipe_create: stage 1 has no device");
    assert_refused(
        &b, (sl_pipe_options){.stages = 2, .balance = (int[]){3, 2}},
        "module and sum of balance have different length (module: 4, sum of balance: 5)");
    assert_refused(&b, (sl_pipe_options){.stages = 3, .balance = (int[]){3, 0, 1}},
                   "all balance numbers must be positive, stage 1 has 0");
    tear_down(&b);
}

static void check_cut(const bench *b, int stages, const int *balance, const int *expected)
{
    sl_pipe_options options = {.model = b->model,
                               .devices = b->devices,
                               .stages = stages,
                               .balance = balance};
    sl_pipe *pipe;
    check_ok(sl_pipe_create(&options, &pipe));
    assert_int_equal(sl_pipe_stages(pipe), stages);
    assert_ptr_equal(sl_pipe_model(pipe), b->model);
    int next = 0;
    for (int stage = 0; stage < stages; stage++) {
        int first, count;
        sl_pipe_stage_modules(pipe, stage, &first, &count);
        assert_int_equal(first, next);
        assert_int_equal(count, expected[stage]);
        assert_ptr_equal(sl_pipe_device(pipe, stage), b->devices[stage]);
        assert_int_equal(sl_parameter_set_count(sl_pipe_parameters(pipe, stage)), count);
        assert_ptr_equal(sl_parameter_set_device(sl_pipe_parameters(pipe, stage)),
                         b->devices[stage]);
        next += count;
    }
    sl_pipe_destroy(&pipe);
    assert_null(pipe);
    sl_pipe_destroy(&pipe);
}

static void model_is_cut_by_balance_by_layers_or_by_parameters(void **state)
{
    (void)state;
    bench b = set_up();
    check_cut(&b, 2, (int[]){1, 3}, (int[]){1, 3});
    check_cut(&b, 2, NULL, (int[]){2, 2});    /* two layers, one for each */
    check_cut(&b, 3, NULL, (int[]){1, 1, 2}); /* too few layers: 6, 4, 4 + 2 parameters */
    check_cut(&b, 4, NULL, (int[]){1, 1, 1, 1});
    tear_down(&b);
}

static void model_in_another_pipe_is_refused_and_stays_in_it(void **state)
{
    (void)state;
    bench b = set_up();
    sl_pipe_options options = {.model = b.model, .devices = b.devices, .stages = 2};
    sl_pipe *pipe, *second;
    check_ok(sl_pipe_create(&options, &pipe));
    check_error(sl_pipe_create(&options, &second), SL_ERR_INVALID, "[stage ");
    assert_null(second);
    assert_non_null(sl_parameter_value(sl_parameter_set_get(sl_pipe_parameters(pipe, 1), 0)));
    sl_pipe_destroy(&pipe);
    check_ok(sl_pipe_create(&options, &second));
    sl_pipe_destroy(&second);
    tear_down(&b);
}

static void model_in_a_pipe_takes_no_parameter_and_no_child(void **state)
{
    (void)state;
    bench b = set_up();
    sl_pipe_options options = {.model = b.model, .devices = b.devices, .stages = 3};
    const sl_parameter_spec spec = {.name = "late", .shape = sl_shape_1d(1)};
    sl_parameter *parameter;
    sl_module *late;
    sl_pipe *pipe;
    check_ok(sl_pipe_create(&options, &pipe));
    check_ok(sl_linear_create(1, 1, true, &late));
    check_error(sl_module_add_child(b.model, "late", late), SL_ERR_INVALID, "a model in use");
    check_error(sl_module_add_parameter(sl_module_child(b.model, 3), &spec, &parameter),
                SL_ERR_INVALID, "a model in use");
    sl_pipe_destroy(&pipe);
    check_ok(sl_module_add_parameter(sl_module_child(b.model, 3), &spec, &parameter));
    check_ok(sl_linear_create(1, 1, true, &late));
    check_ok(sl_module_add_child(b.model, "late", late));
    check_ok(sl_pipe_create(&options, &pipe));
    sl_pipe_destroy(&pipe);
    tear_down(&b);
}

static void initial_values_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    bench b = set_up();
    float values[MODULES][6];
    for (int stages = 1; stages <= MODULES; stages++) {
        sl_pipe_options options = {.model = b.model,
                                   .devices = b.devices,
                                   .stages = stages,
                                   .seed = 9};
        sl_pipe *pipe;
        check_ok(sl_pipe_create(&options, &pipe));
        int module = 0;
        for (int stage = 0; stage < stages; stage++)
            for (int i = 0; i < sl_parameter_set_count(sl_pipe_parameters(pipe, stage)); i++) {
                const sl_tensor *value =
                    sl_parameter_value(sl_parameter_set_get(sl_pipe_parameters(pipe, stage), i));
                if (stages == 1)
                    check_ok(sl_tensor_read(value, values[module]));
                assert_memory_equal(sl_tensor_data(value), values[module], sl_tensor_bytes(value));
                module++;
            }
        assert_int_equal(module, MODULES);
        sl_pipe_destroy(&pipe);
    }
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(model_is_cut_by_balance_by_layers_or_by_parameters),
        cmocka_unit_test(model_in_another_pipe_is_refused_and_stays_in_it),
        cmocka_unit_test(model_in_a_pipe_takes_no_parameter_and_no_child),
        cmocka_unit_test(initial_values_do_not_depend_on_the_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
