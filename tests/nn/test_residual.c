/* y = x + branch(x). */
#include "nn/module.h"
#include "sluice/layers.h"
#include "support/modules.h"

#include <stdlib.h>

enum { ROWS = 3, WIDTH = 6 };

/* x + dropout(linear(gelu(linear(x)))) */
static sl_module *new_residual(void)
{
    sl_module *branch = NULL, *layer, *residual;
    check_ok(sl_sequential_append(&branch, sl_linear_create(WIDTH, 5, false, &layer), &layer));
    check_ok(
        sl_sequential_append(&branch, sl_activation_create(SL_ACTIVATION_GELU, &layer), &layer));
    check_ok(sl_sequential_append(&branch, sl_linear_create(5, WIDTH, false, &layer), &layer));
    check_ok(sl_sequential_append(&branch, sl_dropout_create(0.2f, &layer), &layer));
    check_ok(sl_residual_create(SL_OK, &branch, &residual));
    return residual;
}

static void gradients_match_differences(void **state)
{
    for (int training = 0; training < 2; training++) {
        SCOPED(sl_module) *module = new_residual();
        const module_case one = {.module = module,
                                 .in = sl_shape_2d(ROWS, WIDTH),
                                 .training = training};
        check_module(&one);
        check_samples_are_independent(&one);
    }
}

/* Of an empty sequential, which gives its input itself: y = 2 x, and its gradient is 2. */
static void branch_may_give_its_input(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    SCOPED(sl_pass) *pass = NULL;
    const sl_shape shape = sl_shape_2d(1, 2);
    sl_module *branch = new_sequential(NULL, 0);
    check_ok(sl_residual_create(SL_OK, &branch, &module));
    check_ok(sl_pass_create(&(sl_pass_options){.device = device, .keep = true}, &pass));
    SCOPED(sl_tensor) *in = float_tensor(device, &shape, (const float[]){1, -3});
    SCOPED(sl_tensor) *out = NULL, *grad = NULL;
    check_ok(sl_module_forward(module, pass, in, &out));
    assert_true(sl_tensor_f32(out)[0] == 2 && sl_tensor_f32(out)[1] == -6);
    assert_true(sl_tensor_f32(in)[0] == 1 && sl_tensor_f32(in)[1] == -3);
    check_ok(sl_module_backward(module, pass, out, &grad));
    assert_true(sl_tensor_f32(grad)[0] == 4 && sl_tensor_f32(grad)[1] == -12);
}

static void branch_with_another_shape_is_refused(void **state)
{
    sl_module *branch, *module;
    sl_shape in = sl_shape_2d(ROWS, WIDTH), out;
    sl_status created = sl_linear_create(WIDTH, 5, false, &branch);
    check_ok(sl_residual_create(created, &branch, &module));
    check_error(sl_module_output_shape(module, &in, &out), SL_ERR_INVALID,
                "the branch must keep the input's shape [3, 6], got [3, 5]");
    sl_module_destroy(&module);
    created = sl_linear_create(0, 5, false, &branch);
    check_error(sl_residual_create(created, &branch, &module), SL_ERR_INVALID, "features");
    assert_null(module);
}

int residual_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(branch_may_give_its_input),
        cmocka_unit_test(branch_with_another_shape_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
