#include "sluice/layers.h"
#include "sluice/optim.h"
#include "support/modules.h"

#include <math.h>

static void coefficient_is_pytorchs(void **state)
{
    (void)state;
    /* Gradients [3, 4] with max_norm 0.5 become [0.29999995, 0.39999992]. */
    double coefficient = sl_clip_coefficient(5, 0.5);
    assert_true(fabs(3 * coefficient - 0.29999995) < 1e-8);
    assert_true(fabs(4 * coefficient - 0.39999992) < 1e-8);
    assert_true(sl_clip_coefficient(0.1, 0.5) == 1);
    assert_true(sl_clip_coefficient(0, 0.5) == 1);
    assert_true(isnan(sl_clip_coefficient(NAN, 0.5)));
}

/* Gradients 3, -4 in the weight and 12 in the bias. */
static void check_norm(sl_grad_norm_kind kind, double expected)
{
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
    check_ok(sl_device_create_cpu(2, &device));
    check_ok(sl_linear_create(2, 1, false, &module));
    check_ok(
        sl_parameter_set_create(module, 0, 0, &(sl_parameter_set_options){.device = device}, &set));
    double terms[2];
    int count;
    check_ok(sl_grad_norm_terms(set, kind, terms, 2, &count));
    assert_int_equal(count, 2);
    assert_true(sl_grad_norm_combine(kind, terms, count) == 0); /* untouched gradients are 0 */
    check_error(sl_grad_norm_terms(set, kind, terms, 1, &count), SL_ERR_INVALID,
                "2 trained parameters give as many terms, there is room for 1");
    assert_int_equal(count, 0);
    float *weight = sl_tensor_f32(gradient_of(sl_parameter_set_get(set, 0)));
    float *bias = sl_tensor_f32(gradient_of(sl_parameter_set_get(set, 1)));
    weight[0] = 3;
    weight[1] = -4;
    bias[0] = 12;
    check_ok(sl_grad_norm_terms(set, kind, terms, 2, &count));
    assert_true(fabs(sl_grad_norm_combine(kind, terms, count) - expected) < 1e-6);
    bias[0] = NAN;
    check_ok(sl_grad_norm_terms(set, kind, terms, 2, &count));
    assert_true(isnan(sl_grad_norm_combine(kind, terms, count)));
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
}

static void norms_are_over_all_parameters_and_show_nan(void **state)
{
    (void)state;
    check_norm(SL_GRAD_NORM_L1, 19);
    check_norm(SL_GRAD_NORM_L2, 13);
    check_norm(SL_GRAD_NORM_INF, 12);
}

static void norm_without_terms_is_zero(void **state)
{
    (void)state;
    for (int kind = SL_GRAD_NORM_L1; kind <= SL_GRAD_NORM_INF; kind++)
        assert_true(sl_grad_norm_combine((sl_grad_norm_kind)kind, NULL, 0) == 0);
}

int clip_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coefficient_is_pytorchs),
        cmocka_unit_test(norms_are_over_all_parameters_and_show_nan),
        cmocka_unit_test(norm_without_terms_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
