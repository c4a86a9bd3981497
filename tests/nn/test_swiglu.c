/* The feed-forward network of Llama. */
#include "nn/module.h"
#include "sluice/layers.h"
#include "support/modules.h"

static void gradients_match_differences(void **state)
{
    const sl_shape shapes[] = {sl_shape_1d(5), sl_shape_2d(1, 5), sl_shape_3d(3, 4, 5)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        SCOPED(sl_module) *module = NULL;
        check_ok(sl_swiglu_create(5, 7, &module));
        const module_case one = {.module = module, .in = shapes[i]};
        check_module(&one);
        if (shapes[i].dims > 1)
            check_samples_are_independent(&one);
    }
}

/* A frozen product gives its input a gradient, and its weight none. */
static void any_product_may_be_frozen(void **state)
{
    for (int frozen = 1; frozen < 8; frozen++) {
        SCOPED(sl_module) *module = NULL;
        check_ok(sl_swiglu_create(3, 4, &module));
        for (int i = 0; i < 3; i++)
            if (frozen >> i & 1)
                check_ok(sl_module_freeze(sl_module_child(module, i)));
        check_module(&(module_case){.module = module, .in = sl_shape_2d(2, 3)});
    }
}

static void parameters_are_named_as_llamas(void **state)
{
    static const char *const names[] = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"};
    const sl_shape in = sl_shape_2d(1, 3);
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_swiglu_create(3, 4, &module));
    SCOPED(sl_parameter_set) *set = random_parameters(module, device);
    assert_int_equal(sl_parameter_set_count(set), 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, i)), names[i]);
    assert_int_equal(sl_module_parameter_elements(module), 3 * 3 * 4);
    assert_int_equal(sl_module_flops(module, &in), 2 * 3 * 3 * 4);
}

static void impossible_sizes_are_refused(void **state)
{
    sl_module *module;
    check_error(sl_swiglu_create(0, 4, &module), SL_ERR_INVALID,
                "width and hidden must be at least 1, got 0 and 4");
    check_error(sl_swiglu_create(4, -1, &module), SL_ERR_INVALID, "got 4 and -1");
    assert_null(module);
}

int swiglu_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(any_product_may_be_frozen),
        cmocka_unit_test(parameters_are_named_as_llamas),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
