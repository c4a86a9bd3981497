/* Rotary positions: by how much each pair turns. */
#include "nn/layers.h"
#include "support/check.h"

#include <math.h>

static void check_frequencies(const sl_rotary_options *options, int64_t head_width,
                              const double *expected)
{
    float frequencies[SLI_ROTARY_PAIRS];
    sli_rotary_frequencies(options, head_width, frequencies);
    for (int64_t i = 0; i < head_width / 2; i++)
        assert_true(fabs((double)frequencies[i] - expected[i]) <= 2e-7 * expected[i]);
}

/* 10000^(-2 i / 8). */
static void frequencies_fall_by_powers_of_theta(void **state)
{
    const sl_rotary_options options = {.kind = SL_ROTARY_DEFAULT, .theta = 10000};
    check_frequencies(&options, 8, (const double[]){1, 0.1, 0.01, 0.001});
}

static void linear_divides_all(void **state)
{
    const sl_rotary_options options = {.kind = SL_ROTARY_LINEAR, .theta = 10000, .factor = 4};
    check_frequencies(&options, 8, (const double[]){0.25, 0.025, 0.0025, 0.00025});
}

/* Wavelengths of 6.28, 62.8, 628 and 6283 beside 128 / 4 = 32 and 128 / 1: the first stays, the
 * second is mixed by (128 / 62.83 - 1) / 3 = 0.3457, the others are divided. */
static void llama3_divides_the_slow_ones(void **state)
{
    const sl_rotary_options options = {.kind = SL_ROTARY_LLAMA3,
                                       .theta = 10000,
                                       .factor = 8,
                                       .low_freq_factor = 1,
                                       .high_freq_factor = 4,
                                       .original_positions = 128};
    double smooth = (128 / 62.83185307179586 - 1) / 3;
    check_frequencies(&options, 8,
                      (const double[]){1, 0.1 * (smooth + (1 - smooth) / 8), 0.01 / 8, 0.001 / 8});
}

int rotary_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_fall_by_powers_of_theta),
        cmocka_unit_test(linear_divides_all),
        cmocka_unit_test(llama3_divides_the_slow_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
