/* Encoder layers, and the self attention in them. */
#include "sluice/layers.h"
#include "support/modules.h"
#include "tensor/tensor.h"

#include <stdlib.h>

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
    for (int i = 0; i < 8; i++) {
        sl_encoder_layer_options options =
            small(i & 1, i & 2 ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU, i & 4 ? 0.2f : 0.0f);
        SCOPED(sl_module) *module = NULL;
        check_ok(sl_encoder_layer_create(&options, &module));
        module_case one = {.module = module, .in = sl_shape_3d(2, 4, 6), .training = true};
        check_module(&one);
        check_samples_are_independent(&one);
    }
}

static void parameters_bear_pytorchs_names_in_its_order(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    sl_encoder_layer_options options = small(false, SL_ACTIVATION_RELU, 0.0f);
    check_ok(sl_encoder_layer_create(&options, &module));
    SCOPED(sl_parameter_set) *set = random_parameters(module, device);
    assert_int_equal(sl_parameter_set_count(set), LAYER_NAMES);
    for (int i = 0; i < LAYER_NAMES; i++)
        assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, i)), layer_names[i]);
}

/* What stays after forward is what saved_bytes says and the output; nothing of it is workspace. */
static void activations_are_what_saved_bytes_says(void **state)
{
    for (int i = 0; i < 4; i++) {
        sl_encoder_layer_options options =
            small(i & 1, i & 2 ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU, 0.1f);
        SCOPED(sl_device) *device = new_device(1);
        SCOPED(sl_module) *module = NULL;
        sl_memory_stats memory;
        check_ok(sl_encoder_layer_create(&options, &module));
        SCOPED(sl_parameter_set) *set = random_parameters(module, device);
        SCOPED(sl_pass) *pass = NULL;
        SCOPED(sl_tensor) *out = NULL;
        sl_pass_options pass_options = {.device = device, .training = true, .keep = true};
        check_ok(sl_pass_create(&pass_options, &pass));
        sl_shape shape = sl_shape_3d(2, 4, 6);
        sl_tensor *in = random_tensor(device, &shape, 1);
        check_ok(sl_module_forward(module, pass, in, &out));
        sl_tensor_destroy(&in);
        sl_device_memory(device, &memory);
        assert_int_equal(memory.current_bytes[SL_MEMORY_ACTIVATIONS],
                         sl_module_saved_bytes(module, &shape) + (int64_t)sli_tensor_bytes(out));
        assert_int_equal(memory.current_bytes[SL_MEMORY_WORKSPACE], 0);
    }
}

static void operations_are_the_products(void **state)
{
    sl_encoder_layer_options options = small(false, SL_ACTIVATION_RELU, 0.0f);
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_encoder_layer_create(&options, &module));
    sl_shape in = sl_shape_3d(2, 4, 6);
    int64_t weights = 4 * 6 * 6 + 2 * 6 * 9, pairs = 4 * 5 / 2;
    assert_int_equal(sl_module_flops(module, &in), 2 * 8 * weights + 2 * 2 * 2 * pairs * 6);
}

static void impossible_options_are_refused(void **state)
{
    sl_module *module;
    sl_encoder_layer_options options = small(false, SL_ACTIVATION_RELU, 0.0f);
    options.feed_forward = 0;
    check_error(sl_encoder_layer_create(&options, &module), SL_ERR_INVALID,
                "must be at least 1, got 6, 2 and 0");
    options = small(false, SL_ACTIVATION_RELU, 0.0f);
    options.heads = 4;
    check_error(sl_encoder_layer_create(&options, &module), SL_ERR_INVALID,
                "heads that divide the width");
    options = small(false, SL_ACTIVATION_RELU, 1.0f);
    check_error(sl_encoder_layer_create(&options, &module), SL_ERR_INVALID, "below 1, got 1");
    assert_null(module);
}

static void check_all_gradients_are_0(sl_parameter_set *set)
{
    for (int b = 0; b < sl_parameter_set_bucket_count(set); b++) {
        sl_tensor *grads = bucket_gradients(set, b);
        for (int64_t i = 0; i < sl_tensor_count(grads); i++)
            assert_true(sl_tensor_f32(grads)[i] == 0.0f);
    }
}

/* `samples` of `positions` in the gradient, where the output has 1 of 4. */
static void check_other_gradient(sl_module *module, int64_t samples, int64_t positions)
{
    sl_device *device = new_device(1);
    sl_pass *pass;
    sl_shape in_shape = sl_shape_3d(1, 4, 6), grad_shape = sl_shape_3d(samples, positions, 6);
    sl_parameter_set *set = random_parameters(module, device);
    check_ok(sl_pass_create(&(sl_pass_options){.device = device, .keep = true}, &pass));
    sl_tensor *in = random_tensor(device, &in_shape, 1), *out;
    sl_tensor *grad = random_tensor(device, &grad_shape, 2);
    check_ok(sl_module_forward(module, pass, in, &out));
    check_error(sl_module_backward(module, pass, grad, NULL), SL_ERR_INVALID,
                "the gradient must have the output's shape [1, 4, 6], got ");
    check_all_gradients_are_0(set);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&out);
    sl_tensor_destroy(&grad);
    sl_pass_destroy(&pass);
    sl_parameter_set_destroy(&set);
    sl_device_destroy(&device);
}

static void gradient_of_another_shape_is_refused_before_it_is_used(void **state)
{
    for (int i = 0; i < 4; i++) {
        sl_encoder_layer_options options =
            small(i & 1, i & 2 ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU, 0.0f);
        SCOPED(sl_module) *module = NULL;
        check_ok(sl_encoder_layer_create(&options, &module));
        check_other_gradient(module, 1, 2);
        check_other_gradient(module, 2, 4);
    }
}

/* ---- Self attention ---------------------------------------------------------------------- */

static void attention_gradients_match_differences(void **state)
{
    for (int i = 0; i < 4; i++) {
        SCOPED(sl_module) *module = NULL;
        sl_mask mask = i % 2 ? SL_MASK_NONE : SL_MASK_CAUSAL;
        check_ok(sl_self_attention_create(6, i < 2 ? 2 : 3, 0.2f, mask, &module));
        module_case one = {.module = module, .in = sl_shape_3d(2, 5, 6), .training = i < 2};
        check_module(&one);
        check_samples_are_independent(&one);
    }
}

/* How many positions of the output change when the last position of the input does. */
static int positions_that_see_the_last(sl_mask mask)
{
    enum { TIME = 4, WIDTH = 4 };
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_self_attention_create(WIDTH, 2, 0.0f, mask, &module));
    SCOPED(sl_parameter_set) *set = random_parameters(module, device);
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *after = NULL, *before = NULL;
    sl_pass_options options = {.device = device};
    check_ok(sl_pass_create(&options, &pass));
    sl_shape shape = sl_shape_3d(1, TIME, WIDTH);
    SCOPED(sl_tensor) *in = random_tensor(device, &shape, 1);
    check_ok(sl_module_forward(module, pass, in, &before));
    sl_tensor_f32(in)[(TIME - 1) * WIDTH] += 1.0f;
    check_ok(sl_module_forward(module, pass, in, &after));
    int changed = 0;
    for (int t = 0; t < TIME; t++)
        changed += relative_distance(sl_tensor_f32(before) + t * WIDTH,
                                     sl_tensor_f32(after) + t * WIDTH, WIDTH) > 1e-7;
    return changed;
}

static void causal_mask_hides_what_comes_later(void **state)
{
    assert_int_equal(positions_that_see_the_last(SL_MASK_CAUSAL), 1);
    assert_int_equal(positions_that_see_the_last(SL_MASK_NONE), 4);
}

static void attention_parameters_bear_pytorchs_names_in_its_order(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_self_attention_create(4, 2, 0.0f, SL_MASK_NONE, &module));
    SCOPED(sl_parameter_set) *set = random_parameters(module, device);
    const char *const names[] = {"in_proj_weight", "in_proj_bias", "out_proj.weight",
                                 "out_proj.bias"};
    assert_int_equal(sl_parameter_set_count(set), 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, i)), names[i]);
}

static void operations_count_the_pairs_that_the_mask_lets_through(void **state)
{
    SCOPED(sl_module) *full = NULL, *causal = NULL;
    check_ok(sl_self_attention_create(4, 2, 0.0f, SL_MASK_CAUSAL, &causal));
    check_ok(sl_self_attention_create(4, 2, 0.0f, SL_MASK_NONE, &full));
    sl_shape in = sl_shape_3d(2, 3, 4);
    int64_t projections = 2 * 6 * 4 * 12 + 2 * 6 * 4 * 4;
    assert_int_equal(sl_module_flops(causal, &in), projections + 2 * (2 * 2 * 6 * 4));
    assert_int_equal(sl_module_flops(full, &in), projections + 2 * (2 * 2 * 9 * 4));
}

static void impossible_options_and_shapes_are_refused(void **state)
{
    SCOPED(sl_module) *module = NULL;
    check_error(sl_self_attention_create(8, 3, 0.0f, SL_MASK_NONE, &module), SL_ERR_INVALID,
                "there must be heads that divide the width, got 3 heads and a width of 8");
    check_error(sl_self_attention_create(8, 0, 0.0f, SL_MASK_NONE, &module), SL_ERR_INVALID,
                "got 0 heads and a width of 8");
    check_error(sl_self_attention_create(8, 2, 1.5f, SL_MASK_NONE, &module), SL_ERR_INVALID,
                "dropout");
    check_ok(sl_self_attention_create(8, 2, 0.0f, SL_MASK_NONE, &module));
    sl_shape in = sl_shape_2d(3, 8), out;
    check_error(sl_module_output_shape(module, &in, &out), SL_ERR_INVALID,
                "the input must be [N, T, 8], got [3, 8]");
}

int encoder_layer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(parameters_bear_pytorchs_names_in_its_order),
        cmocka_unit_test(activations_are_what_saved_bytes_says),
        cmocka_unit_test(operations_are_the_products),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(gradient_of_another_shape_is_refused_before_it_is_used),
        cmocka_unit_test(attention_gradients_match_differences),
        cmocka_unit_test(causal_mask_hides_what_comes_later),
        cmocka_unit_test(attention_parameters_bear_pytorchs_names_in_its_order),
        cmocka_unit_test(operations_count_the_pairs_that_the_mask_lets_through),
        cmocka_unit_test(impossible_options_and_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
