/* f16: every one of them is the f32 that its sign, exponent and fraction say, and the other way
 * round to the nearest. */
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

/* Of two neighbours, both are themselves, and what lies between them is the nearer one; in the
 * middle it is the one whose last bit is 0. */
static void numbers_are_narrowed_to_the_nearest(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x7c00; bits++) {
        float low = sli_f32_from_f16((uint16_t)bits);
        float high = bits + 1 == 0x7c00 ? 65536 : sli_f32_from_f16((uint16_t)(bits + 1));
        float middle = (low + high) / 2;
        unsigned even = bits + (bits & 1);
        for (unsigned sign = 0; sign < 2; sign++) {
            float to = sign ? -1 : 1;
            unsigned high_bit = sign << 15;
            assert_int_equal(sli_f16_from_f32(to * low), high_bit | bits);
            assert_int_equal(sli_f16_from_f32(to * nextafterf(middle, 0)), high_bit | bits);
            assert_int_equal(sli_f16_from_f32(to * middle), high_bit | even);
            assert_int_equal(sli_f16_from_f32(to * nextafterf(middle, INFINITY)),
                             high_bit | (bits + 1));
        }
    }
    assert_int_equal(sli_f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(sli_f16_from_f32(-1e30F), 0xfc00);
    assert_true(isnan(sli_f32_from_f16(sli_f16_from_f32(NAN))));
}

int f16_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_number_is_widened_exactly),
        cmocka_unit_test(known_numbers_are_those_of_the_standard),
        cmocka_unit_test(numbers_are_narrowed_to_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
