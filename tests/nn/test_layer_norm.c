#include "sluice/layers.h"
#include "support/modules.h"

static void gradients_match_differences(void **state)
{
    (void)state;
    const sl_shape shapes[] = {sl_shape_1d(7), sl_shape_2d(3, 7), sl_shape_3d(2, 3, 7)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        sl_module *module;
        check_ok(sl_layer_norm_create(7, 0.0f, &module));
        module_case one = {.module = module, .in = shapes[i]};
        check_module(&one);
        sl_module_destroy(&module);
    }
}

static void output_of_a_known_row_is_known(void **state)
{
    (void)state;
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
    sl_pass *pass;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_layer_norm_create(4, 3.75f, &module));
    sl_parameter_set_options options = {.device = device};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set)); /* weight 1, bias 0 */
    sl_pass_options pass_options = {.device = device};
    check_ok(sl_pass_create(&pass_options, &pass));
    sl_shape shape = sl_shape_2d(1, 4);
    const float row[] = {1, 2, 3, 4}; /* mean 2.5, variance 1.25: 1.25 + eps is 5 */
    sl_tensor *in = float_tensor(device, &shape, row), *out;
    check_ok(sl_module_forward(module, pass, in, &out));
    const double rstd = 0.447213595499958;
    for (int i = 0; i < 4; i++)
        assert_float_equal(sl_tensor_f32(out)[i], (row[i] - 2.5) * rstd, 1e-6);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&out);
    sl_pass_destroy(&pass);
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
}

static void impossible_norms_are_refused(void **state)
{
    (void)state;
    sl_module *module;
    check_error(sl_layer_norm_create(0, 0.0f, &module), SL_ERR_INVALID, "at least 1, got 0");
    check_error(sl_layer_norm_create(4, -1.0f, &module), SL_ERR_INVALID, "negative, got -1");
    assert_null(module);
}

int layer_norm_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(output_of_a_known_row_is_known),
        cmocka_unit_test(impossible_norms_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
