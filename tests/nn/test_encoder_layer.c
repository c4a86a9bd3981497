#include "sluice/layers.h"
#include "support/modules.h"

static sl_encoder_layer_options small(bool pre_norm, sl_activation activation, float dropout)
{
    return (sl_encoder_layer_options){.width = 6,
                                      .heads = 2,
                                      .feed_forward = 9,
                                      .dropout = dropout,
                                      .mask = SL_MASK_CAUSAL,
                                      .activation = activation,
                                      .pre_norm = pre_norm};
}

/* Both orders of norms, both activations, with and without dropout. */
static void gradients_match_differences(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        sl_encoder_layer_options options =
            small(i & 1, i & 2 ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU, i & 4 ? 0.2f : 0.0f);
        sl_module *module;
        check_ok(sl_encoder_layer_create(&options, &module));
        module_case one = {.module = module, .in = sl_shape_3d(2, 4, 6), .training = true};
        check_module(&one);
        check_samples_are_independent(&one);
        sl_module_destroy(&module);
    }
}

static void parameters_bear_pytorchs_names_in_its_order(void **state)
{
    (void)state;
    sl_device *device;
    sl_module *module;
    sl_encoder_layer_options options = small(false, SL_ACTIVATION_RELU, 0.0f);
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_encoder_layer_create(&options, &module));
    sl_parameter_set *set = random_parameters(module, device);
    assert_int_equal(sl_parameter_set_count(set), LAYER_NAMES);
    for (int i = 0; i < LAYER_NAMES; i++)
        assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, i)), layer_names[i]);
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
}

/* What stays after forward is what saved_bytes says and the output; nothing of it is workspace. */
static void activations_are_what_saved_bytes_says(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        sl_encoder_layer_options options =
            small(i & 1, i & 2 ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU, 0.1f);
        sl_device *device;
        sl_module *module;
        sl_pass *pass;
        sl_memory_stats memory;
        check_ok(sl_device_create_cpu(1, &device));
        check_ok(sl_encoder_layer_create(&options, &module));
        sl_parameter_set *set = random_parameters(module, device);
        sl_pass_options pass_options = {.device = device, .training = true, .keep = true};
        check_ok(sl_pass_create(&pass_options, &pass));
        sl_shape shape = sl_shape_3d(2, 4, 6);
        sl_tensor *in = random_tensor(device, &shape, 1), *out;
        check_ok(sl_module_forward(module, pass, in, &out));
        sl_tensor_destroy(&in);
        sl_device_memory(device, &memory);
        assert_int_equal(memory.current_bytes[SL_MEMORY_ACTIVATIONS],
                         sl_module_saved_bytes(module, &shape) + (int64_t)sl_tensor_bytes(out));
        assert_int_equal(memory.current_bytes[SL_MEMORY_WORKSPACE], 0);
        sl_tensor_destroy(&out);
        sl_pass_destroy(&pass);
        sl_parameter_set_destroy(&set);
        sl_module_destroy(&module);
        sl_device_destroy(&device);
    }
}

static void operations_are_the_products(void **state)
{
    (void)state;
    sl_encoder_layer_options options = small(false, SL_ACTIVATION_RELU, 0.0f);
    sl_module *module;
    check_ok(sl_encoder_layer_create(&options, &module));
    sl_shape in = sl_shape_3d(2, 4, 6);
    int64_t weights = 4 * 6 * 6 + 2 * 6 * 9, pairs = 4 * 5 / 2;
    assert_int_equal(sl_module_flops(module, &in), 2 * 8 * weights + 2 * 2 * 2 * pairs * 6);
    sl_module_destroy(&module);
}

static void impossible_options_are_refused(void **state)
{
    (void)state;
    sl_module *module;
    sl_encoder_layer_options options = small(false, SL_ACTIVATION_RELU, 0.0f);
    options.feed_forward = 0;
    check_error(sl_encoder_layer_create(&options, &module), SL_ERR_INVALID,
                "must be at least 1, got 6, 2 and 0");
    options = small(false, SL_ACTIVATION_RELU, 0.0f);
    options.heads = 4;
    check_error(sl_encoder_layer_create(&options, &module), SL_ERR_INVALID, "must divide");
    options = small(false, SL_ACTIVATION_RELU, 1.0f);
    check_error(sl_encoder_layer_create(&options, &module), SL_ERR_INVALID, "below 1, got 1");
    assert_null(module);
}

int encoder_layer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(parameters_bear_pytorchs_names_in_its_order),
        cmocka_unit_test(activations_are_what_saved_bytes_says),
        cmocka_unit_test(operations_are_the_products),
        cmocka_unit_test(impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
