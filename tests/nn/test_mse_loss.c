#include "sluice/loss.h"
#include "support/modules.h"

static void value_and_gradient_are_pytorchs(void **state)
{
    (void)state;
    sl_device *device;
    sl_loss *loss;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_mse_loss_create(&loss));
    sl_shape shape = sl_shape_2d(2, 2);
    const float values[] = {1, 2, 3, 4}, target_values[] = {0, 2, 5, 1};
    sl_tensor *in = float_tensor(device, &shape, values), *grad_in;
    sl_tensor *targets = float_tensor(device, &shape, target_values);
    double row_losses[2];
    assert_int_equal(loss_terms(loss, targets), 4);
    assert_int_equal(sl_loss_rows(loss, targets), 2);
    sl_loss_call call = {.device = device,
                         .in = in,
                         .targets = targets,
                         .scale = 1.0 / 4.0,
                         .row_losses = row_losses,
                         .grad_in = &grad_in};
    check_ok(sl_loss_apply(loss, &call));
    assert_true(row_losses[0] == 1.0 && row_losses[1] == 13.0);
    const float expected[] = {0.5f, 0, -1, 1.5f};
    for (int i = 0; i < 4; i++)
        assert_float_equal(sl_tensor_f32(grad_in)[i], expected[i], 0.0);
    sl_tensor_destroy(&grad_in);

    call.grad_in = NULL;
    row_losses[1] = 0.0;
    check_ok(sl_loss_apply(loss, &call));
    assert_true(row_losses[1] == 13.0);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&targets);
    sl_loss_destroy(&loss);
    sl_device_destroy(&device);
}

static void shapes_and_types_must_agree(void **state)
{
    (void)state;
    sl_device *device;
    sl_loss *loss;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_mse_loss_create(&loss));
    sl_shape shape = sl_shape_2d(1, 2), other = sl_shape_1d(2);
    const int32_t ids[] = {1, 2};
    sl_tensor *in = random_tensor(device, &shape, 1), *grad_in;
    sl_tensor *flat = random_tensor(device, &other, 1);
    sl_tensor *integers = integer_tensor(device, &shape, ids);
    double row_losses[1];
    sl_loss_call call = {
        .device = device, .in = in, .targets = flat, .row_losses = row_losses, .grad_in = &grad_in};
    check_error(sl_loss_apply(loss, &call), SL_ERR_INVALID,
                "MSELoss: output and target must have one shape, got [1, 2] and [2]");
    assert_null(grad_in);
    call.targets = integers;
    check_error(sl_loss_apply(loss, &call), SL_ERR_INVALID, "the target must be f32, got i32");
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&flat);
    sl_tensor_destroy(&integers);
    sl_loss_destroy(&loss);
    sl_device_destroy(&device);
}

int mse_loss_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(value_and_gradient_are_pytorchs),
        cmocka_unit_test(shapes_and_types_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
