#include "sluice/optim.h"
#include "support/check.h"

#include <math.h>

static void assert_near(double got, double expected)
{
    assert_true(fabs(got - expected) <= 1e-12 * fabs(expected));
}

static void step_schedule_multiplies_by_gamma_every_epoch(void **state)
{
    (void)state;
    const sl_lr_schedule schedule = {.kind = SL_LR_STEP, .lr = 5, .gamma = 0.95};
    const double expected[] = {5, 4.75, 4.5125, 4.286875};
    for (int epoch = 0; epoch < 4; epoch++)
        assert_near(sl_lr_at(&schedule, 1000, epoch), expected[epoch]);
}

static void step_schedule_of_three_epochs_multiplies_every_third(void **state)
{
    (void)state;
    const sl_lr_schedule schedule = {.kind = SL_LR_STEP, .lr = 1, .gamma = 0.1, .step_epochs = 3};
    const double expected[] = {1, 1, 1, 0.1, 0.1, 0.1, 0.01};
    for (int epoch = 0; epoch < 7; epoch++)
        assert_near(sl_lr_at(&schedule, 0, epoch), expected[epoch]);
}

static void warm_up_rises_linearly_to_the_rate(void **state)
{
    (void)state;
    const sl_lr_schedule schedule = {.kind = SL_LR_STEP, .lr = 2, .gamma = 0.5, .warmup_steps = 4};
    const double expected[] = {0.5, 1, 1.5, 2, 2};
    for (int step = 0; step < 5; step++)
        assert_near(sl_lr_at(&schedule, step, 0), expected[step]);
    assert_near(sl_lr_at(&schedule, 9, 1), 1);
}

static void cosine_falls_from_the_rate_to_zero(void **state)
{
    (void)state;
    const sl_lr_schedule schedule = {.kind = SL_LR_COSINE,
                                     .lr = 2,
                                     .warmup_steps = 10,
                                     .total_steps = 110};
    assert_near(sl_lr_at(&schedule, 9, 0), 2);
    assert_near(sl_lr_at(&schedule, 10, 0), 2);
    assert_near(sl_lr_at(&schedule, 60, 0), 1);
    assert_near(sl_lr_at(&schedule, 35, 0), 1 + sqrt(0.5));
    assert_true(sl_lr_at(&schedule, 110, 0) == 0);
    assert_true(sl_lr_at(&schedule, 500, 0) == 0);
}

int lr_schedule_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_schedule_multiplies_by_gamma_every_epoch),
        cmocka_unit_test(step_schedule_of_three_epochs_multiplies_every_third),
        cmocka_unit_test(warm_up_rises_linearly_to_the_rate),
        cmocka_unit_test(cosine_falls_from_the_rate_to_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
