/* In bf16, a step of training converts each weight once, however many micro-batches and
 * accumulation steps it has. */
#include "nn/module.h"
#include "sluice/layers.h"
#include "support/check.h"
#include "support/conversions.h"
#include "support/modules.h"
#include "support/pipes.h"

enum { ROWS = 12, FEATURES = 6, WIDTH = 7, CLASSES = 5, LINEARS = 3, CHUNKS = 4 };

/* Linear, GELU, Linear, GELU, Linear. */
static test_pipe open_linears(sl_pipe_options options)
{
    sl_module *modules[5], *model;
    check_ok(sl_linear_create(FEATURES, WIDTH, false, &modules[0]));
    check_ok(sl_activation_create(SL_ACTIVATION_GELU, &modules[1]));
    check_ok(sl_linear_create(WIDTH, WIDTH, false, &modules[2]));
    check_ok(sl_activation_create(SL_ACTIVATION_GELU, &modules[3]));
    check_ok(sl_linear_create(WIDTH, CLASSES, false, &modules[4]));
    check_ok(create_sequential(modules, 5, &model));
    options.chunks = CHUNKS;
    return open_pipe(model, new_mse_loss(), options, options.stages, 1);
}

static double train(test_pipe *piped, bool same_weights)
{
    double loss;
    sl_shape in = sl_shape_2d(ROWS, FEATURES), out = sl_shape_2d(ROWS, CLASSES);
    SCOPED(sl_tensor) *input = random_tensor(piped->devices[0], &in, 11);
    SCOPED(sl_tensor) *targets = random_tensor(piped->devices[0], &out, 12);
    check_ok(sl_pipe_train(
        piped->pipe,
        &(sl_pipe_batch){.input = input, .targets = targets, .same_weights = same_weights}, &loss));
    return loss;
}

static void check_steps(sl_pipe_options options)
{
    SCOPED(test_pipe) piped = open_linears(options);
    conversions converted;
    int weights = options.precision == SL_PRECISION_BF16 ? LINEARS : 0;
    count_conversions(&converted, piped.pipe);
    assert_int_equal(converted.weights, weights);
    double first = train(&piped, false);
    assert_int_equal(take_conversions(&converted), weights);
    assert_true(train(&piped, true) == first);
    assert_int_equal(take_conversions(&converted), 0);
    pipe_sgd_step(&piped, 0.1f);
    assert_int_equal(take_conversions(&converted), 0);
    assert_true(train(&piped, false) != first);
    assert_int_equal(take_conversions(&converted), weights);
}

static void training_converts_each_weight_once_a_step(void **state)
{
    for (sl_precision in = SL_PRECISION_F32; in <= SL_PRECISION_BF16; in++)
        for (int stages = 1; stages <= 3; stages++)
            for (int kind = 0; kind < TEST_SCHEDULES; kind++)
                for (int accumulate = 1; accumulate <= 2; accumulate++)
                    check_steps((sl_pipe_options){.stages = stages,
                                                  .accumulate = accumulate,
                                                  .recompute = SL_RECOMPUTE_ALWAYS,
                                                  .precision = in,
                                                  .schedule = test_schedules[kind]});
}

static void copy_values(const test_pipe *from, const test_pipe *to)
{
    for (int stage = 0; stage < sl_pipe_stages(from->pipe); stage++) {
        const sl_parameter_set *source = sl_pipe_parameters(from->pipe, stage),
                               *target = sl_pipe_parameters(to->pipe, stage);
        for (int i = 0; i < sl_parameter_set_count(source); i++)
            check_ok(sl_tensor_copy(sl_parameter_value(sl_parameter_set_get(target, i)),
                                    sl_parameter_value(sl_parameter_set_get(source, i))));
    }
}

/* And not copies of older ones: a pipe that began with others gives the same bits. */
static void step_multiplies_with_the_newest_weights(void **state)
{
    for (int stages = 1; stages <= 3; stages++) {
        sl_pipe_options options = {.stages = stages, .precision = SL_PRECISION_BF16, .seed = 1};
        SCOPED(test_pipe) trained = open_linears(options);
        options.seed = 2;
        SCOPED(test_pipe) fresh = open_linears(options);
        (void)train(&trained, false);
        pipe_sgd_step(&trained, 0.5f);
        copy_values(&trained, &fresh);
        assert_true(train(&fresh, false) == train(&trained, false));
    }
}

int weight_conversion_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_converts_each_weight_once_a_step),
        cmocka_unit_test(step_multiplies_with_the_newest_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
