/* f16: every one of them is the f32 that its sign, exponent and fraction say. */
#include "core/f16.h"
#include "support/check.h"

#include <math.h>

static void each_number_is_widened_exactly(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
        float found = sli_f32_from_f16((uint16_t)bits);
        assert_int_equal(signbit(found) != 0, bits >> 15);
        if (exponent == 31) {
            assert_true(fraction > 0 ? isnan(found) : isinf(found));
            continue;
        }
        float size = exponent > 0 ? ldexpf((float)(1024 + fraction), (int)exponent - 25)
                                  : ldexpf((float)fraction, -24);
        assert_true(fabsf(found) == size);
    }
}

static void known_numbers_are_those_of_the_standard(void **state)
{
    (void)state;
    assert_true(sli_f32_from_f16(0x3c00) == 1.0F && sli_f32_from_f16(0xc000) == -2.0F);
    assert_true(sli_f32_from_f16(0x7bff) == 65504.0F && sli_f32_from_f16(0x0001) == 0x1p-24F);
    assert_true(sli_f32_from_f16(0x3555) == 0.333251953125F);
}

int f16_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_number_is_widened_exactly),
        cmocka_unit_test(known_numbers_are_those_of_the_standard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
