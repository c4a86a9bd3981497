#include "sluice/layers.h"
#include "support/modules.h"

#include <math.h>

static void gradients_match_differences(void **state)
{
    (void)state;
    const float rates[] = {0.0f, 0.3f};
    for (int i = 0; i < 4; i++) {
        sl_module *module;
        check_ok(sl_dropout_create(rates[i % 2], &module));
        module_case one = {.module = module, .in = sl_shape_3d(3, 4, 5), .training = i < 2};
        check_module(&one);
        check_samples_are_independent(&one);
        sl_module_destroy(&module);
    }
}

static void elements_are_0_or_scaled_at_the_given_rate(void **state)
{
    (void)state;
    const float p = 0.25f;
    sl_device *device;
    sl_module *module;
    sl_pass *pass;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_dropout_create(p, &module));
    sl_pass_options options = {.device = device, .training = true, .seed = 1};
    check_ok(sl_pass_create(&options, &pass));
    sl_shape shape = sl_shape_2d(100, 400);
    sl_tensor *in = random_tensor(device, &shape, 1), *out;
    check_ok(sl_module_forward(module, pass, in, &out));
    int64_t dropped = 0, count = sl_tensor_count(in);
    for (int64_t i = 0; i < count; i++) {
        float y = sl_tensor_f32(out)[i], kept = sl_tensor_f32(in)[i] / (1.0f - p);
        assert_true(y == 0.0f || fabsf(y - kept) < 1e-6f);
        dropped += y == 0.0f;
    }
    double deviation = sqrt((double)count * p * (1.0 - p));
    assert_true(fabs((double)dropped - (double)count * p) < 5.0 * deviation);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&out);
    sl_pass_destroy(&pass);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
}

static void impossible_rates_and_shapes_are_refused(void **state)
{
    (void)state;
    const float rates[] = {-0.1f, 1.0f, NAN};
    sl_module *module;
    for (int i = 0; i < 3; i++)
        check_error(sl_dropout_create(rates[i], &module), SL_ERR_INVALID,
                    "dropout must be at least 0 and below 1, got");
    check_ok(sl_dropout_create(0.5f, &module));
    sl_shape in = sl_shape_1d(3), out;
    check_error(sl_module_output_shape(module, &in, &out), SL_ERR_INVALID, "at least 2 dimensions");
    sl_module_destroy(&module);
}

int dropout_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(elements_are_0_or_scaled_at_the_given_rate),
        cmocka_unit_test(impossible_rates_and_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
