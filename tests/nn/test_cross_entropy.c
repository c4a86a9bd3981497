#include "nn/loss.h"
#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/loss.h"
#include "support/modules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    sl_device *device;
    sl_loss *loss;
} bench;

static int bench_open(void **state)
{
    bench *one = malloc(sizeof *one);
    check_ok(sl_device_create_cpu(2, &one->device));
    check_ok(sl_cross_entropy_create(&one->loss));
    *state = one;
    return 0;
}

/* No test leaves memory behind. */
static int bench_close(void **state)
{
    FREED bench *one = *state;
    assert_int_equal(device_bytes(one->device), 0);
    sl_loss_destroy(&one->loss);
    sl_device_destroy(&one->device);
    return 0;
}

static sl_tensor *new_targets(const bench *one, int64_t rows, const int32_t *values)
{
    sl_shape shape = sl_shape_1d(rows);
    return integer_tensor(one->device, &shape, values);
}

static double mean(const double *row_losses, int64_t rows, int64_t terms)
{
    double sum = 0.0;
    for (int64_t i = 0; i < rows; i++)
        sum += row_losses[i];
    return sum / (double)terms;
}

static void mean_over_two_rows_is_pytorchs(void **state)
{
    const bench *one = *state;
    sl_shape shape = sl_shape_2d(2, 3);
    const float logits[] = {1, 2, 3, 0, 0, 0};
    const int32_t classes[] = {2, 0};
    SCOPED(sl_tensor) *in = float_tensor(one->device, &shape, logits), *grad_in = NULL;
    SCOPED(sl_tensor) *targets = new_targets(one, 2, classes);
    double row_losses[2];
    sl_loss_call call = {.device = one->device,
                         .in = in,
                         .targets = targets,
                         .scale = 1.0 / (double)loss_terms(one->loss, targets),
                         .row_losses = row_losses,
                         .grad_in = &grad_in};
    assert_int_equal(sli_loss_rows(one->loss, targets), 2);
    check_ok(sl_loss_apply(one->loss, &call));
    assert_float_equal(mean(row_losses, 2, loss_terms(one->loss, targets)), .7531091, 1e-6);
    const double expected[] = {.0450153, .1223642, -.1673795, -1.0 / 3, 1.0 / 6, 1.0 / 6};
    for (int i = 0; i < 6; i++) {
        assert_float_equal(sl_tensor_f32(grad_in)[i], expected[i], 1e-6);
        assert_float_equal(sl_tensor_f32(in)[i], logits[i], 0.0); /* borrowed, not changed */
    }
}

static void ignored_targets_count_and_change_nothing(void **state)
{
    const bench *one = *state;
    sl_shape shape = sl_shape_2d(3, 3);
    const float logits[] = {1, 2, 3, 9, 9, 9, 0, 0, 0};
    const int32_t some[] = {2, -100, 0}, none[] = {-100, -100, -100};
    SCOPED(sl_tensor) *in = float_tensor(one->device, &shape, logits), *grad_in = NULL;
    SCOPED(sl_tensor) *targets = new_targets(one, 3, some);
    double row_losses[3];
    sl_loss_call call = {.device = one->device,
                         .in = in,
                         .targets = targets,
                         .scale = 1.0,
                         .row_losses = row_losses,
                         .grad_in = &grad_in};
    assert_int_equal(loss_terms(one->loss, targets), 2);
    check_ok(sl_loss_apply(one->loss, &call));
    assert_float_equal(mean(row_losses, 3, 2), .7531091, 1e-6);
    for (int i = 3; i < 6; i++)
        assert_float_equal(sl_tensor_f32(grad_in)[i], 0.0, 0.0);
    sl_tensor_destroy(&grad_in);

    check_ok(sl_tensor_write(targets, none));
    call.scale = 1.0 / (double)loss_terms(one->loss, targets);
    check_ok(sl_loss_apply(one->loss, &call));
    assert_true(isnan(mean(row_losses, 3, loss_terms(one->loss, targets))));
    for (int i = 0; i < 9; i++)
        assert_float_equal(sl_tensor_f32(grad_in)[i], 0.0, 0.0);
}

static void bad_targets_are_named(void **state)
{
    const bench *one = *state;
    sl_shape shape = sl_shape_2d(2, 3);
    const int32_t above[] = {0, 3}, below[] = {-1, 0};
    SCOPED(sl_tensor) *in = random_tensor(one->device, &shape, 1);
    sl_tensor *grad_in;
    SCOPED(sl_tensor) *targets = new_targets(one, 2, above), *more = new_targets(one, 1, above);
    double row_losses[2];
    sl_loss_call call = {.device = one->device,
                         .in = in,
                         .targets = targets,
                         .row_losses = row_losses,
                         .grad_in = &grad_in};
    check_error(sl_loss_apply(one->loss, &call), SL_ERR_INVALID,
                "CrossEntropyLoss: target 3 at row 1 is not in 0 .. 2");
    assert_null(grad_in);
    check_ok(sl_tensor_write(targets, below));
    check_error(sl_loss_apply(one->loss, &call), SL_ERR_INVALID,
                "target -1 at row 0 is not in 0 .. 2");
    call.targets = more;
    check_error(sl_loss_apply(one->loss, &call), SL_ERR_INVALID,
                "one target for each row of the input is needed, got shapes [1] and [2, 3]");
    call.targets = in;
    check_error(sl_loss_apply(one->loss, &call), SL_ERR_INVALID, "the target must be i32, got f32");
}

/* A gradient of 0 times the loss is 0, not none at all. */
static void scale_of_0_gives_gradients_of_0(void **state)
{
    const bench *one = *state;
    sl_shape shape = sl_shape_2d(2, 3);
    const int32_t classes[] = {0, 2};
    SCOPED(sl_tensor) *in = random_tensor(one->device, &shape, 1), *grad_in = NULL;
    SCOPED(sl_tensor) *targets = new_targets(one, 2, classes);
    double row_losses[2];
    sl_loss_call call = {.device = one->device,
                         .in = in,
                         .targets = targets,
                         .row_losses = row_losses,
                         .grad_in = &grad_in};
    check_ok(sl_loss_apply(one->loss, &call));
    for (int i = 0; i < 6; i++)
        assert_float_equal(sl_tensor_f32(grad_in)[i], 0.0, 0.0);
}

/* ---- Taking over ------------------------------------------------------------------------ */

typedef struct result {
    double *row_losses;
    float *grad_in, *grad_weight, *grad_bias;
} result;

static void result_destroy(result *one)
{
    free(one->row_losses);
    free(one->grad_in);
    free(one->grad_weight);
    free(one->grad_bias);
}

static float *gradient(sl_parameter_set *set, int parameter)
{
    return tensor_values(gradient_of(sl_parameter_set_get(set, parameter)));
}

/* The decoder's forward, the loss, the decoder's backward. */
static result apart(const bench *one, sl_module *decoder, sl_parameter_set *set,
                    const sl_tensor *in, const sl_tensor *targets)
{
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *grad_in = NULL, *grad_logits = NULL, *logits = NULL;
    sl_pass_options options = {.device = one->device, .keep = true};
    result got = {.row_losses = malloc(8 * (size_t)sl_tensor_count(targets))};
    check_ok(sl_pass_create(&options, &pass));
    check_ok(sl_module_forward(decoder, pass, in, &logits));
    sl_loss_call call = {.device = one->device,
                         .in = logits,
                         .targets = targets,
                         .scale = 0.5,
                         .row_losses = got.row_losses,
                         .grad_in = &grad_logits};
    check_ok(sl_loss_apply(one->loss, &call));
    check_ok(sl_module_backward(decoder, pass, grad_logits, &grad_in));
    got.grad_in = tensor_values(grad_in);
    got.grad_weight = gradient(set, 0);
    got.grad_bias = gradient(set, 1);
    return got;
}

/* With the weights' gradients at once, or (`halved`) later. */
static result together(const bench *one, sl_module *decoder, sl_parameter_set *set,
                       const sl_tensor *in, const sl_tensor *targets, bool halved)
{
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *grad_in = NULL;
    sl_pass_options pass_options = {.device = one->device, .training = true, .keep = true};
    check_ok(sl_pass_create(&pass_options, &pass));
    result got = {.row_losses = malloc(8 * (size_t)sl_tensor_count(targets))};
    sl_loss_call call = {.device = one->device,
                         .last = decoder,
                         .in = in,
                         .targets = targets,
                         .scale = 0.5,
                         .row_losses = got.row_losses,
                         .grad_in = &grad_in,
                         .pass = halved ? pass : NULL};
    check_ok(sl_loss_apply(one->loss, &call));
    assert_true(sl_shape_equal(sl_tensor_shape(grad_in), sl_tensor_shape(in)));
    got.grad_in = tensor_values(grad_in);
    assert_int_equal(sli_pass_bytes(pass),
                     halved ? sl_module_deferred_bytes(decoder, sl_tensor_shape(in)) : 0);
    if (halved)
        check_ok(sli_loss_backward_weight(one->loss, decoder, pass));
    got.grad_weight = gradient(set, 0);
    got.grad_bias = gradient(set, 1);
    return got;
}

static sl_tensor *spread_targets(const bench *one, const sl_shape *shape, int64_t classes)
{
    int64_t rows = sl_shape_count(shape);
    FREED int32_t *values = malloc((size_t)rows * sizeof *values);
    for (int64_t i = 0; i < rows; i++)
        values[i] = i % 7 == 3 ? -100 : (int32_t)(i * i % classes);
    sl_tensor *targets = integer_tensor(one->device, shape, values);
    return targets;
}

static void check_taking_over(const bench *one, int64_t samples, int64_t time, int64_t width,
                              int64_t classes)
{
    SCOPED(sl_module) *decoder = NULL;
    check_ok(sl_decoder_create(width, classes, &decoder));
    assert_true(sli_loss_takes_over(one->loss, decoder));
    SCOPED(sl_parameter_set) *set = random_parameters(decoder, one->device);
    sl_shape in_shape = sl_shape_3d(samples, time, width), shape = sl_shape_2d(samples, time);
    int64_t rows = samples * time;
    SCOPED(sl_tensor) *in = random_tensor(one->device, &in_shape, 1);
    SCOPED(sl_tensor) *targets = spread_targets(one, &shape, classes);
    SCOPED(result) expected = apart(one, decoder, set, in, targets);
    sl_parameter_set_zero_grad(set);
    SCOPED(result) got = together(one, decoder, set, in, targets, false);
    for (int64_t i = 0; i < rows; i++)
        assert_true(fabs(got.row_losses[i] - expected.row_losses[i]) < 1e-5);
    assert_true(relative_distance(got.grad_in, expected.grad_in, rows * width) < 1e-5);
    assert_true(relative_distance(got.grad_weight, expected.grad_weight, classes * width) < 1e-5);
    assert_true(relative_distance(got.grad_bias, expected.grad_bias, classes) < 1e-5);
    sl_parameter_set_zero_grad(set);
    SCOPED(result) halves = together(one, decoder, set, in, targets, true);
    assert_memory_equal(halves.grad_in, got.grad_in, (size_t)(rows * width) * sizeof(float));
    assert_memory_equal(halves.grad_weight, got.grad_weight,
                        (size_t)(classes * width) * sizeof(float));
    assert_memory_equal(halves.grad_bias, got.grad_bias, (size_t)classes * sizeof(float));
}

static void taking_over_equals_decoder_and_loss_apart(void **state)
{
    check_taking_over(*state, 2, 3, 4, 5);
    check_taking_over(*state, 3, 100, 4, 70000); /* two panels of 150 rows */
}

static void logits_are_held_in_panels(void **state)
{
    const bench *one = *state;
    const int64_t rows = 600, classes = 100000;
    SCOPED(sl_module) *linear = new_linear(2, classes);
    SCOPED(sl_parameter_set) *set = random_parameters(linear, one->device);
    sl_shape in_shape = sl_shape_2d(rows, 2), shape = sl_shape_1d(rows);
    SCOPED(sl_tensor) *in = random_tensor(one->device, &in_shape, 1);
    SCOPED(sl_tensor) *targets = spread_targets(one, &shape, classes);
    FREED double *row_losses = malloc((size_t)rows * sizeof *row_losses);
    sl_loss_call call = {.device = one->device,
                         .last = linear,
                         .in = in,
                         .targets = targets,
                         .row_losses = row_losses};
    sl_memory_stats memory;
    sl_device_reset_peak(one->device);
    check_ok(sl_loss_apply(one->loss, &call)); /* values only */
    sl_device_memory(one->device, &memory);
    /* beside the panel of logits only what products need for their own panels */
    const uint64_t panel = 150 * classes * 4, products = 1 << 20;
    assert_in_range(memory.peak_bytes[SL_MEMORY_WORKSPACE], panel, panel + products);
}

static void values_alone_leave_gradients_alone(void **state)
{
    const bench *one = *state;
    SCOPED(sl_module) *linear = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    check_ok(sl_linear_create(3, 5, true, &linear));
    sl_parameter_set_options options = {.device = one->device, .no_gradients = true};
    check_ok(sl_parameter_set_create(linear, 0, 0, &options, &set));
    sl_shape in_shape = sl_shape_2d(4, 3);
    SCOPED(sl_tensor) *in = random_tensor(one->device, &in_shape, 1);
    sl_tensor *grad_in;
    const int32_t classes[] = {0, 1, 2, -100};
    SCOPED(sl_tensor) *targets = new_targets(one, 4, classes);
    double row_losses[4];
    sl_loss_call call = {.device = one->device,
                         .last = linear,
                         .in = in,
                         .targets = targets,
                         .scale = 1.0,
                         .row_losses = row_losses};
    check_ok(sl_loss_apply(one->loss, &call));
    assert_true(row_losses[0] > 0.0 && row_losses[3] == 0.0);
    call.grad_in = &grad_in;
    check_error(sl_loss_apply(one->loss, &call), SL_ERR_INVALID,
                "parameter weight has no gradient");
    assert_null(grad_in);
}

static void only_linear_layers_are_taken_over(void **state)
{
    const bench *one = *state;
    SCOPED(sl_module) *norm = NULL, *linear = NULL;
    check_ok(sl_linear_create(3, 5, true, &linear));
    check_ok(sl_layer_norm_create(3, 0.0f, &norm));
    assert_true(sli_loss_takes_over(one->loss, linear));
    assert_false(sli_loss_takes_over(one->loss, norm));
}

int cross_entropy_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        TEST(mean_over_two_rows_is_pytorchs),
        TEST(ignored_targets_count_and_change_nothing),
        TEST(bad_targets_are_named),
        TEST(scale_of_0_gives_gradients_of_0),
        TEST(taking_over_equals_decoder_and_loss_apart),
        TEST(logits_are_held_in_panels),
        TEST(values_alone_leave_gradients_alone),
        TEST(only_linear_layers_are_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
