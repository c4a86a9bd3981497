#include "sluice/layers.h"
#include "support/modules.h"

static sl_module *new_sequential(sl_module *const *modules, int count)
{
    sl_module *sequential;
    check_ok(sl_sequential_create(modules, count, &sequential));
    return sequential;
}

/* A small language model without its ends, with every kind of layer in it. */
static sl_module *new_model(void)
{
    sl_module *modules[5], *inner[2];
    sl_encoder_layer_options layer = {.width = 4, .heads = 2, .feed_forward = 6, .dropout = 0.1f};
    check_ok(sl_linear_create(3, 4, false, &modules[0]));
    check_ok(sl_activation_create(SL_ACTIVATION_GELU, &inner[0]));
    check_ok(sl_dropout_create(0.2f, &inner[1]));
    modules[1] = new_sequential(inner, 2);
    check_ok(sl_encoder_layer_create(&layer, &modules[2]));
    check_ok(sl_layer_norm_create(4, 0.0f, &modules[3]));
    check_ok(sl_decoder_create(4, 5, &modules[4]));
    return new_sequential(modules, 5);
}

static void gradients_flow_through_all_children(void **state)
{
    (void)state;
    sl_module *model = new_model();
    module_case one = {.module = model, .in = sl_shape_3d(2, 3, 3), .training = true};
    check_module(&one);
    check_samples_are_independent(&one);
    sl_module_destroy(&model);
}

static void empty_sequential_is_the_identity(void **state)
{
    (void)state;
    sl_module *model = new_sequential(NULL, 0);
    module_case one = {.module = model, .in = sl_shape_3d(2, 3, 3)};
    check_module(&one);
    sl_module_destroy(&model);
}

static void operations_add_up_and_shapes_follow(void **state)
{
    (void)state;
    sl_module *model = new_model();
    sl_shape in = sl_shape_3d(2, 3, 3), out;
    check_ok(sl_module_output_shape(model, &in, &out));
    assert_int_equal(out.size[2], 5);
    int64_t weights = 3 * 4 + (4 * 4 * 4 + 2 * 4 * 6) + 4 * 5, pairs = 2 * (3 * 4 / 2);
    assert_int_equal(sl_module_flops(model, &in), 2 * 6 * weights + 2 * 2 * pairs * 4);
    in = sl_shape_3d(2, 3, 4);
    check_error(sl_module_output_shape(model, &in, &out), SL_ERR_INVALID, "0 (Linear): the input");
    assert_true(sl_module_is_sequential(model));
    assert_false(sl_module_is_sequential(sl_module_child(model, 0)));
    sl_module_destroy(&model);
}

static void missing_module_is_refused(void **state)
{
    (void)state;
    sl_module *modules[2] = {NULL, NULL}, *model;
    check_ok(sl_linear_create(2, 2, false, &modules[0]));
    check_error(sl_sequential_create(modules, 2, &model), SL_ERR_INVALID, "module 1 is NULL");
    assert_null(model);
}

int sequential_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_flow_through_all_children),
        cmocka_unit_test(empty_sequential_is_the_identity),
        cmocka_unit_test(operations_add_up_and_shapes_follow),
        cmocka_unit_test(missing_module_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
