#include "sluice/layers.h"
#include "support/modules.h"

#include <stdlib.h>

static void gradients_match_differences(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        sl_module *module;
        sl_mask mask = i % 2 ? SL_MASK_NONE : SL_MASK_CAUSAL;
        check_ok(sl_self_attention_create(6, i < 2 ? 2 : 3, 0.2f, mask, &module));
        module_case one = {.module = module, .in = sl_shape_3d(2, 5, 6), .training = i < 2};
        check_module(&one);
        check_samples_are_independent(&one);
        sl_module_destroy(&module);
    }
}

/* How many positions of the output change when the last position of the input does. */
static int positions_that_see_the_last(sl_mask mask)
{
    enum { TIME = 4, WIDTH = 4 };
    sl_device *device;
    sl_module *module;
    sl_pass *pass;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_self_attention_create(WIDTH, 2, 0.0f, mask, &module));
    sl_parameter_set *set = random_parameters(module, device);
    sl_pass_options options = {.device = device};
    check_ok(sl_pass_create(&options, &pass));
    sl_shape shape = sl_shape_3d(1, TIME, WIDTH);
    sl_tensor *in = random_tensor(device, &shape, 1), *before, *after;
    check_ok(sl_module_forward(module, pass, in, &before));
    sl_tensor_f32(in)[(TIME - 1) * WIDTH] += 1.0f;
    check_ok(sl_module_forward(module, pass, in, &after));
    int changed = 0;
    for (int t = 0; t < TIME; t++)
        changed += relative_distance(sl_tensor_f32(before) + t * WIDTH,
                                     sl_tensor_f32(after) + t * WIDTH, WIDTH) > 1e-7;
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&before);
    sl_tensor_destroy(&after);
    sl_pass_destroy(&pass);
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
    return changed;
}

static void causal_mask_hides_what_comes_later(void **state)
{
    (void)state;
    assert_int_equal(positions_that_see_the_last(SL_MASK_CAUSAL), 1);
    assert_int_equal(positions_that_see_the_last(SL_MASK_NONE), 4);
}

static void parameters_bear_pytorchs_names_in_its_order(void **state)
{
    (void)state;
    sl_device *device;
    sl_module *module;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_self_attention_create(4, 2, 0.0f, SL_MASK_NONE, &module));
    sl_parameter_set *set = random_parameters(module, device);
    const char *const names[] = {"in_proj_weight", "in_proj_bias", "out_proj.weight",
                                 "out_proj.bias"};
    assert_int_equal(sl_parameter_set_count(set), 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, i)), names[i]);
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
}

static void operations_count_the_pairs_that_the_mask_lets_through(void **state)
{
    (void)state;
    sl_module *causal, *full;
    check_ok(sl_self_attention_create(4, 2, 0.0f, SL_MASK_CAUSAL, &causal));
    check_ok(sl_self_attention_create(4, 2, 0.0f, SL_MASK_NONE, &full));
    sl_shape in = sl_shape_3d(2, 3, 4);
    int64_t projections = 2 * 6 * 4 * 12 + 2 * 6 * 4 * 4;
    assert_int_equal(sl_module_flops(causal, &in), projections + 2 * (2 * 2 * 6 * 4));
    assert_int_equal(sl_module_flops(full, &in), projections + 2 * (2 * 2 * 9 * 4));
    sl_module_destroy(&causal);
    sl_module_destroy(&full);
}

static void impossible_options_and_shapes_are_refused(void **state)
{
    (void)state;
    sl_module *module;
    check_error(sl_self_attention_create(8, 3, 0.0f, SL_MASK_NONE, &module), SL_ERR_INVALID,
                "the heads must divide the width, got 3 heads and a width of 8");
    check_error(sl_self_attention_create(8, 0, 0.0f, SL_MASK_NONE, &module), SL_ERR_INVALID,
                "at least 1, got 8 and 0");
    check_error(sl_self_attention_create(8, 2, 1.5f, SL_MASK_NONE, &module), SL_ERR_INVALID,
                "dropout");
    check_ok(sl_self_attention_create(8, 2, 0.0f, SL_MASK_NONE, &module));
    sl_shape in = sl_shape_2d(3, 8), out;
    check_error(sl_module_output_shape(module, &in, &out), SL_ERR_INVALID,
                "the input must be [N, T, 8], got [3, 8]");
    sl_module_destroy(&module);
}

int self_attention_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(causal_mask_hides_what_comes_later),
        cmocka_unit_test(parameters_bear_pytorchs_names_in_its_order),
        cmocka_unit_test(operations_count_the_pairs_that_the_mask_lets_through),
        cmocka_unit_test(impossible_options_and_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
