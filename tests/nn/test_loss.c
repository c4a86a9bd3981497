#include "nn/loss.h"
#include "sluice/layers.h"
#include "sluice/loss.h"
#include "support/modules.h"

#include <stdlib.h>

/* A loss of one's own: the sum of the input's elements, times `factor`. */
static sl_status sum_apply(sl_loss *loss, const sl_loss_call *call)
{
    const float *factor = sl_loss_state(loss);
    int64_t columns = sl_tensor_columns(call->in);
    if (*factor < 0.0f)
        return sl_error(SL_ERR_INVALID, "the factor is negative");
    for (int64_t row = 0; row < sl_tensor_rows(call->in); row++) {
        call->row_losses[row] = 0.0;
        for (int64_t i = 0; i < columns; i++)
            call->row_losses[row] += *factor * sl_tensor_f32(call->in)[row * columns + i];
    }
    return SL_OK;
}

static sl_status sum_terms(const sl_loss *loss, const sl_tensor *targets, int64_t *out)
{
    *out = 2 * sl_tensor_count(targets);
    return SL_OK;
}

static int64_t sum_rows(const sl_loss *loss, const sl_tensor *targets)
{
    return sl_tensor_count(targets);
}

static const sl_loss_ops sum_ops = {.type = "SumLoss",
                                    .apply = sum_apply,
                                    .terms = sum_terms,
                                    .rows = sum_rows};

static void own_loss_is_a_table(void **state)
{
    sl_device *device = new_device(1);
    sl_loss *loss;
    float *factor = malloc(sizeof *factor);
    *factor = 2.0f;
    sl_module *linear = new_linear(2, 2);
    check_ok(sl_loss_create(&sum_ops, factor, &loss));
    sl_shape shape = sl_shape_2d(2, 2), target_shape = sl_shape_1d(2);
    const float values[] = {1, 2, 3, 4};
    sl_tensor *in = float_tensor(device, &shape, values);
    sl_tensor *targets = random_tensor(device, &target_shape, 1);
    double row_losses[2];
    sl_loss_call call = {
        .device = device, .in = in, .targets = targets, .scale = 1.0, .row_losses = row_losses};
    check_ok(sl_loss_apply(loss, &call));
    assert_true(row_losses[0] == 6.0 && row_losses[1] == 14.0);
    assert_int_equal(loss_terms(loss, targets), 4);
    assert_int_equal(sli_loss_rows(loss, targets), 2);
    assert_false(sli_loss_takes_over(loss, linear));
    call.last = linear;
    check_error(sl_loss_apply(loss, &call), SL_ERR_INVALID, "SumLoss: cannot take over a Linear");
    call.last = NULL;
    *factor = -1.0f;
    check_error(sl_loss_apply(loss, &call), SL_ERR_INVALID, "SumLoss: the factor is negative");
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&targets);
    sl_loss_destroy(&loss);
    sl_loss_destroy(&loss);
    sl_module_destroy(&linear);
    sl_device_destroy(&device);
}

static void squared_error_and_its_gradient_are_pytorchs(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_loss) *loss = new_mse_loss();
    sl_shape shape = sl_shape_2d(2, 2);
    const float values[] = {1, 2, 3, 4}, target_values[] = {0, 2, 5, 1};
    SCOPED(sl_tensor) *in = float_tensor(device, &shape, values);
    sl_tensor *grad_in;
    SCOPED(sl_tensor) *targets = float_tensor(device, &shape, target_values);
    double row_losses[2];
    assert_int_equal(loss_terms(loss, targets), 4);
    assert_int_equal(sli_loss_rows(loss, targets), 2);
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
}

static void shapes_and_types_of_a_squared_error_must_agree(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_loss) *loss = new_mse_loss();
    sl_shape shape = sl_shape_2d(1, 2), other = sl_shape_1d(2);
    const int32_t ids[] = {1, 2};
    SCOPED(sl_tensor) *in = random_tensor(device, &shape, 1);
    sl_tensor *grad_in;
    SCOPED(sl_tensor) *flat = random_tensor(device, &other, 1);
    SCOPED(sl_tensor) *integers = integer_tensor(device, &shape, ids);
    double row_losses[1];
    sl_loss_call call = {
        .device = device, .in = in, .targets = flat, .row_losses = row_losses, .grad_in = &grad_in};
    check_error(sl_loss_apply(loss, &call), SL_ERR_INVALID,
                "MSELoss: output and target must have one shape, got [1, 2] and [2]");
    assert_null(grad_in);
    call.targets = integers;
    check_error(sl_loss_apply(loss, &call), SL_ERR_INVALID, "the target must be f32, got i32");
}

int loss_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_loss_is_a_table),
        cmocka_unit_test(squared_error_and_its_gradient_are_pytorchs),
        cmocka_unit_test(shapes_and_types_of_a_squared_error_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
