/* ReLU, GELU, softmax, dropout and layer norm as modules. */
#include "sluice/layers.h"
#include "support/modules.h"

#include <math.h>

static void gradients_of_activations_match_differences(void **state)
{
    const sl_activation kinds[] = {SL_ACTIVATION_RELU, SL_ACTIVATION_GELU, SL_ACTIVATION_GELU_TANH};
    const sl_shape shapes[] = {sl_shape_1d(9), sl_shape_3d(2, 5, 3)};
    for (size_t i = 0; i < 6; i++) {
        SCOPED(sl_module) *module = NULL;
        check_ok(sl_activation_create(kinds[i % 3], &module));
        module_case one = {.module = module, .in = shapes[i / 3]};
        check_module(&one);
    }
}

static void softmax_holds_what_layers_must(void **state)
{
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_softmax_create(&module));
    const module_case one = {.module = module, .in = sl_shape_3d(2, 5, 7)};
    check_module(&one);
    check_samples_are_independent(&one);
}

/* Of the module that a call has created. */
static void check_values(sl_status created, sl_module *module, const float *in_values,
                         const float *expected, int count)
{
    sl_device *device = new_device(1);
    sl_pass *pass;
    check_ok(created);
    sl_pass_options options = {.device = device};
    check_ok(sl_pass_create(&options, &pass));
    sl_shape shape = sl_shape_1d(count);
    sl_tensor *in = float_tensor(device, &shape, in_values), *out;
    check_ok(sl_module_forward(module, pass, in, &out));
    for (int i = 0; i < count; i++) {
        assert_float_equal(sl_tensor_f32(out)[i], expected[i], 1e-6);
        assert_float_equal(sl_tensor_f32(in)[i], in_values[i], 0.0);
    }
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&out);
    sl_pass_destroy(&pass);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
}

static void activations_are_pytorchs(void **state)
{
    const float in[] = {-2, -0.5f, 0, 0.5f, 2};
    const float relu[] = {0, 0, 0, 0.5f, 2};
    const float gelu[] = {-0.04550026f, -0.15426877f, 0, 0.34573123f, 1.95449974f};
    const float gelu_tanh[] = {-0.04540229f, -0.15428600f, 0, 0.34571400f, 1.95459771f};
    sl_module *module;
    sl_status created = sl_activation_create(SL_ACTIVATION_RELU, &module);
    check_values(created, module, in, relu, 5);
    created = sl_activation_create(SL_ACTIVATION_GELU, &module);
    check_values(created, module, in, gelu, 5);
    created = sl_activation_create(SL_ACTIVATION_GELU_TANH, &module);
    check_values(created, module, in, gelu_tanh, 5);
}

static void softmax_of_scores_far_apart_has_no_nan(void **state)
{
    sl_module *module;
    sl_status created = sl_softmax_create(&module);
    check_values(created, module, (const float[]){3e38f, 0, -3e38f}, (const float[]){1, 0, 0}, 3);
}

static void gradients_of_dropout_match_differences(void **state)
{
    const float rates[] = {0.0f, 0.3f};
    for (int i = 0; i < 4; i++) {
        SCOPED(sl_module) *module = NULL;
        check_ok(sl_dropout_create(rates[i % 2], &module));
        module_case one = {.module = module, .in = sl_shape_3d(3, 4, 5), .training = i < 2};
        check_module(&one);
        check_samples_are_independent(&one);
    }
}

static void elements_are_0_or_scaled_at_the_given_rate(void **state)
{
    const float p = 0.25f;
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *out = NULL;
    check_ok(sl_dropout_create(p, &module));
    sl_pass_options options = {.device = device, .training = true, .seed = 1};
    check_ok(sl_pass_create(&options, &pass));
    sl_shape shape = sl_shape_2d(100, 400);
    SCOPED(sl_tensor) *in = random_tensor(device, &shape, 1);
    check_ok(sl_module_forward(module, pass, in, &out));
    int64_t dropped = 0, count = sl_tensor_count(in);
    for (int64_t i = 0; i < count; i++) {
        float y = sl_tensor_f32(out)[i], kept = sl_tensor_f32(in)[i] / (1.0f - p);
        assert_true(y == 0.0f || fabsf(y - kept) < 1e-6f);
        dropped += y == 0.0f;
    }
    double deviation = sqrt((double)count * p * (1.0 - p));
    assert_true(fabs((double)dropped - (double)count * p) < 5.0 * deviation);
}

static void impossible_rates_and_shapes_are_refused(void **state)
{
    const float rates[] = {-0.1f, 1.0f, NAN};
    SCOPED(sl_module) *module = NULL;
    for (int i = 0; i < 3; i++)
        check_error(sl_dropout_create(rates[i], &module), SL_ERR_INVALID,
                    "dropout must be at least 0 and below 1, got");
    check_ok(sl_dropout_create(0.5f, &module));
    sl_shape in = sl_shape_1d(3), out;
    check_error(sl_module_output_shape(module, &in, &out), SL_ERR_INVALID, "at least 2 dimensions");
}

/* ---- Layer norm and RMSNorm --------------------------------------------------------------- */

static void gradients_match_differences(void **state)
{
    const sl_shape shapes[] = {sl_shape_1d(7), sl_shape_2d(3, 7), sl_shape_3d(2, 3, 7)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        SCOPED(sl_module) *module = NULL;
        SCOPED(sl_module) *rms = NULL;
        check_ok(sl_layer_norm_create(7, 0.0f, &module));
        check_ok(sl_rms_norm_create(7, 0.0f, &rms));
        check_module(&(module_case){.module = module, .in = shapes[i]});
        check_module(&(module_case){.module = rms, .in = shapes[i]});
    }
}

/* A frozen weight has no gradient, and the input's is as before. */
static void frozen_norms_give_gradients(void **state)
{
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_rms_norm_create(7, 0.0f, &module));
    check_ok(sl_module_freeze(module));
    check_module(&(module_case){.module = module, .in = sl_shape_2d(3, 7)});
}

/* Weight 1, bias 0. */
static void outputs_of_a_known_row_are_known(void **state)
{
    const struct {
        float eps;
        double mean, rstd;
    } norms[] = {{3.75f, 2.5, 0.447213595499958}, /* layer norm: variance 1.25, with eps 5 */
                 {12.5f, 0, 0.223606797749979}};  /* RMSNorm: mean square 7.5, with eps 20 */
    const float row[] = {1, 2, 3, 4};
    const sl_shape shape = sl_shape_2d(1, 4);
    for (int i = 0; i < 2; i++) {
        SCOPED(sl_device) *device = new_device(1);
        SCOPED(sl_module) *module = NULL;
        SCOPED(sl_parameter_set) *set = NULL;
        SCOPED(sl_pass) *pass = NULL;
        SCOPED(sl_tensor) *out = NULL;
        check_ok(i == 0 ? sl_layer_norm_create(4, norms[i].eps, &module)
                        : sl_rms_norm_create(4, norms[i].eps, &module));
        check_ok(sl_parameter_set_create(module, 0, 0,
                                         &(sl_parameter_set_options){.device = device}, &set));
        assert_int_equal(sl_parameter_set_count(set), 2 - i);
        check_ok(sl_pass_create(&(sl_pass_options){.device = device}, &pass));
        SCOPED(sl_tensor) *in = float_tensor(device, &shape, row);
        check_ok(sl_module_forward(module, pass, in, &out));
        for (int k = 0; k < 4; k++)
            assert_float_equal(sl_tensor_f32(out)[k], (row[k] - norms[i].mean) * norms[i].rstd,
                               1e-6);
    }
}

static void impossible_norms_are_refused(void **state)
{
    sl_module *module;
    check_error(sl_layer_norm_create(0, 0.0f, &module), SL_ERR_INVALID, "at least 1, got 0");
    check_error(sl_layer_norm_create(4, -1.0f, &module), SL_ERR_INVALID, "negative, got -1");
    check_error(sl_rms_norm_create(0, 0.0f, &module), SL_ERR_INVALID,
                "sl_rms_norm_create: width must be at least 1, got 0");
    check_error(sl_rms_norm_create(4, NAN, &module), SL_ERR_INVALID, "negative, got nan");
    assert_null(module);
}

int elementwise_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_activations_match_differences),
        cmocka_unit_test(softmax_holds_what_layers_must),
        cmocka_unit_test(softmax_of_scores_far_apart_has_no_nan),
        cmocka_unit_test(activations_are_pytorchs),
        cmocka_unit_test(gradients_of_dropout_match_differences),
        cmocka_unit_test(elements_are_0_or_scaled_at_the_given_rate),
        cmocka_unit_test(impossible_rates_and_shapes_are_refused),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(frozen_norms_give_gradients),
        cmocka_unit_test(outputs_of_a_known_row_are_known),
        cmocka_unit_test(impossible_norms_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
