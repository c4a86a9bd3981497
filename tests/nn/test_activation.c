#include "sluice/layers.h"
#include "support/modules.h"

static void gradients_match_differences(void **state)
{
    (void)state;
    const sl_activation kinds[] = {SL_ACTIVATION_RELU, SL_ACTIVATION_GELU};
    const sl_shape shapes[] = {sl_shape_1d(9), sl_shape_3d(2, 5, 3)};
    for (size_t i = 0; i < 4; i++) {
        sl_module *module;
        check_ok(sl_activation_create(kinds[i % 2], &module));
        module_case one = {.module = module, .in = shapes[i / 2]};
        check_module(&one);
        sl_module_destroy(&module);
    }
}

static void check_values(sl_activation kind, const float *in_values, const float *expected,
                         int count)
{
    sl_device *device;
    sl_module *module;
    sl_pass *pass;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_activation_create(kind, &module));
    sl_pass_options options = {.device = device};
    check_ok(sl_pass_create(&options, &pass));
    sl_shape shape = sl_shape_1d(count);
    sl_tensor *in = float_tensor(device, &shape, in_values), *out;
    check_ok(sl_module_forward(module, pass, in, &out));
    for (int i = 0; i < count; i++) {
        assert_float_equal(sl_tensor_f32(out)[i], expected[i], 1e-6);
        assert_float_equal(sl_tensor_f32(in)[i], in_values[i], 0.0);
    }
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&out);
    sl_pass_destroy(&pass);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
}

static void values_are_pytorchs(void **state)
{
    (void)state;
    const float in[] = {-2, -0.5f, 0, 0.5f, 2};
    const float relu[] = {0, 0, 0, 0.5f, 2};
    const float gelu[] = {-0.04550026f, -0.15426877f, 0, 0.34573123f, 1.95449974f};
    check_values(SL_ACTIVATION_RELU, in, relu, 5);
    check_values(SL_ACTIVATION_GELU, in, gelu, 5);
}

int activation_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(values_are_pytorchs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
