#include "sluice/layers.h"
#include "support/modules.h"

#include <math.h>

static void gradients_match_differences(void **state)
{
    (void)state;
    sl_module *module;
    check_ok(sl_decoder_create(4, 7, &module));
    module_case one = {.module = module, .in = sl_shape_3d(2, 3, 4)};
    check_module(&one);
    sl_module_destroy(&module);
}

static void parameters_are_the_tutorials(void **state)
{
    (void)state;
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
    check_ok(sl_device_create_cpu(1, &device));
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
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
}

static void sizes_below_1_are_refused(void **state)
{
    (void)state;
    sl_module *module;
    check_error(sl_decoder_create(4, 0, &module), SL_ERR_INVALID, "at least 1, got 4 and 0");
    assert_null(module);
}

int decoder_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(parameters_are_the_tutorials),
        cmocka_unit_test(sizes_below_1_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
