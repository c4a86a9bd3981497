#include "sluice/layers.h"
#include "support/modules.h"

#include <math.h>
#include <stdlib.h>

static void gradients_match_differences(void **state)
{
    const sl_shape shapes[] = {sl_shape_1d(5), sl_shape_2d(3, 5), sl_shape_3d(2, 3, 5)};
    for (int no_bias = 0; no_bias < 2; no_bias++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            SCOPED(sl_module) *module = NULL;
            check_ok(sl_linear_create(5, 4, no_bias, &module));
            module_case one = {.module = module, .in = shapes[i]};
            check_module(&one);
        }
}

static void initial_values_are_pytorchs(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = new_linear(100, 300);
    SCOPED(sl_parameter_set) *set = NULL;
    sl_parameter_set_options options = {.device = device, .seed = 3};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    for (int i = 0; i < 2; i++) {
        sl_tensor *value = sl_parameter_value(sl_parameter_set_get(set, i));
        const float *values = sl_tensor_f32(value);
        float largest = 0.0f;
        double sum = 0.0;
        for (int64_t k = 0; k < sl_tensor_count(value); k++) {
            largest = fmaxf(largest, fabsf(values[k]));
            sum += values[k];
        }
        assert_true(largest <= 0.1f && largest > 0.095f);
        assert_true(fabs(sum / (double)sl_tensor_count(value)) < 0.01);
    }
}

static void sizes_below_1_are_refused(void **state)
{
    sl_module *module;
    check_error(sl_linear_create(0, 4, false, &module), SL_ERR_INVALID,
                "features must be at least 1, got 0 in and 4 out");
    assert_null(module);
}

static void shapes_and_operations_are_known_without_memory(void **state)
{
    SCOPED(sl_module) *module = new_linear(5, 4);
    sl_shape in = sl_shape_3d(2, 3, 5), out;
    check_ok(sl_module_output_shape(module, &in, &out));
    assert_int_equal(out.size[2], 4);
    assert_int_equal(sl_module_flops(module, &in), 2 * 6 * 5 * 4);
    in = sl_shape_2d(0, 5);
    check_error(sl_module_output_shape(module, &in, &out), SL_ERR_INVALID,
                "Linear: the input needs at least 1 dimension, none empty, the last of 5; got "
                "[0, 5]");
}

static void wrong_types_and_gradients_are_refused(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = new_linear(2, 3);
    SCOPED(sl_parameter_set) *set = random_parameters(module, device);
    SCOPED(sl_pass) *pass = NULL;
    sl_pass_options options = {.device = device, .keep = true};
    check_ok(sl_pass_create(&options, &pass));
    sl_shape shape = sl_shape_2d(1, 2);
    const int32_t ids[] = {0, 1};
    SCOPED(sl_tensor) *integers = integer_tensor(device, &shape, ids), *out = NULL;
    SCOPED(sl_tensor) *in = random_tensor(device, &shape, 1);
    check_error(sl_module_forward(module, pass, integers, &out), SL_ERR_INVALID,
                "the input must be f32, got i32");
    check_ok(sl_module_forward(module, pass, in, &out));
    check_error(sl_module_backward(module, pass, in, NULL), SL_ERR_INVALID,
                "the gradient must have the output's shape [1, 3], got [1, 2]");
}

static void gradients_of_the_decoder_match_differences(void **state)
{
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_decoder_create(4, 7, &module));
    module_case one = {.module = module, .in = sl_shape_3d(2, 3, 4)};
    check_module(&one);
}

static void parameters_of_the_decoder_are_the_tutorials(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    check_ok(sl_decoder_create(30, 50, &module));
    sl_parameter_set_options options = {.device = device};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    assert_int_equal(sl_parameter_set_count(set), 2);
    sl_parameter *weight = sl_parameter_set_get(set, 0), *bias = sl_parameter_set_get(set, 1);
    assert_string_equal(sl_parameter_name(weight), "decoder.weight");
    assert_string_equal(sl_parameter_name(bias), "decoder.bias");
    float largest = 0.0f;
    for (int i = 0; i < 30 * 50; i++)
        largest = fmaxf(largest, fabsf(sl_tensor_f32(sl_parameter_value(weight))[i]));
    assert_true(largest <= 0.1f && largest > 0.095f);
    for (int i = 0; i < 50; i++)
        assert_float_equal(sl_tensor_f32(sl_parameter_value(bias))[i], 0.0, 0.0);
}

static void sizes_of_the_decoder_below_1_are_refused(void **state)
{
    sl_module *module;
    check_error(sl_decoder_create(4, 0, &module), SL_ERR_INVALID, "at least 1, got 4 and 0");
    assert_null(module);
}

int linear_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(initial_values_are_pytorchs),
        cmocka_unit_test(sizes_below_1_are_refused),
        cmocka_unit_test(shapes_and_operations_are_known_without_memory),
        cmocka_unit_test(wrong_types_and_gradients_are_refused),
        cmocka_unit_test(gradients_of_the_decoder_match_differences),
        cmocka_unit_test(parameters_of_the_decoder_are_the_tutorials),
        cmocka_unit_test(sizes_of_the_decoder_below_1_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
