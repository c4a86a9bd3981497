/* AdamW's averages in bf16: which random bits round which element, and what the mean is. */
#include "core/bf16.h"
#include "device/cases.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Rounding --------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void what_bf16_has_stays_and_nan_stays_nan(void **state)
{
    static const uint32_t kept[] = {0,          0x80000000, 0x00010000, 0x3f800000, 0xc0490000,
                                    0x7f7f0000, 0x7f800000, 0xff800000, 0x7fc00000};
    static const uint32_t nans[] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff};
    static const uint32_t random[] = {0, 1, 0x8000, 0xffff};
    for (int r = 0; r < 4; r++) {
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
            assert_int_equal(sli_bf16_at_random(float_of(kept[i]), random[r]), kept[i] >> 16);
        for (size_t i = 0; i < sizeof nans / sizeof *nans; i++)
            assert_true(isnan(sli_f32_from_bf16(sli_bf16_at_random(float_of(nans[i]), random[r]))));
    }
}

static void part_of_the_way_is_how_many_of_the_random_numbers_round_away_from_0(void **state)
{
    static const uint32_t parts[] = {1, 0x1234, 0x8000, 0xffff};
    for (int p = 0; p < 4; p++)
        for (int sign = 0; sign < 2; sign++) {
            uint32_t bits = (sign ? 0xbf800000 : 0x3f800000) + parts[p], away = 0;
            for (uint32_t random = 0; random < 0x10000; random++)
                away += sli_bf16_at_random(float_of(bits), random) == (bits >> 16) + 1;
            assert_int_equal(away, parts[p]);
        }
}

/* ---- The update ------------------------------------------------------------------------- */

enum { MOST = 1 << 16 };

/* Averages before and after, and gradients, of up to MOST elements. */
typedef struct update {
    int64_t count;
    uint16_t mean[MOST], square[MOST];
    float grad[MOST];
    sli_rounding rounding;
} update;

/* Every sum and product is exact in f32. */
static update *new_update(int64_t count)
{
    update *made = calloc(1, sizeof *made);
    assert_non_null(made);
    made->count = count;
    made->rounding = (sli_rounding){.key = sli_philox_key_make(11, SLI_RANDOM_ROUND),
                                    .site = 14,
                                    .step = 13,
                                    .first_group = ((int64_t)1 << 32) - 100};
    for (int64_t i = 0; i < count; i++) {
        made->mean[i] = sli_bf16_from_f32(1 + (float)(i % 128) / 128);
        made->square[i] = sli_bf16_from_f32(1 + (float)(i * 3 % 128) / 128);
        made->grad[i] = 1 + (float)(i * 7 % 512) / 512;
    }
    return made;
}

static float mean_of(const update *before, int64_t i)
{
    return 0.5f * sli_f32_from_bf16(before->mean[i]) + 0.5f * before->grad[i];
}

static float square_of(const update *before, int64_t i)
{
    return 0.5f * sli_f32_from_bf16(before->square[i]) + 0.5f * before->grad[i] * before->grad[i];
}

/* Runs it on the elements first … first + count - 1 alone; what they become is in `after`. */
static void run_update(sl_device *device, const update *before, int64_t first, int64_t count,
                       update *after)
{
    enum { ARRAYS = 4 };
    FREED float *values = calloc(MOST, sizeof *values);
    const size_t sizes[ARRAYS] = {sizeof(uint16_t), sizeof(uint16_t), sizeof(float), sizeof(float)};
    const void *const from[ARRAYS] = {before->mean + first, before->square + first,
                                      before->grad + first, values};
    void *on_device[ARRAYS];
    assert_non_null(values);
    for (int a = 0; a < ARRAYS; a++) {
        size_t bytes = (size_t)count * sizes[a];
        check_ok(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &on_device[a]));
        check_ok(sli_device_write(device, on_device[a], from[a], bytes));
    }
    sli_adamw call = {.count = count,
                      .value = on_device[3],
                      .grad = on_device[2],
                      .exp_avg = on_device[0],
                      .exp_avg_sq = on_device[1],
                      .bf16 = true,
                      .rounding = before->rounding,
                      .grad_scale = 1,
                      .lr = 0.5f,
                      .beta1 = 0.5f,
                      .beta2 = 0.5f,
                      .eps = 1e-8f,
                      .bias_correction1 = 1,
                      .bias_correction2 = 1};
    call.rounding.first_group += first / 4;
    check_ok(sli_device_adamw(device, &call));
    check_ok(sli_device_read(device, after->mean + first, on_device[0], (size_t)count * sizes[0]));
    check_ok(
        sli_device_read(device, after->square + first, on_device[1], (size_t)count * sizes[1]));
    check_ok(sli_device_read(device, values, on_device[3], (size_t)count * sizes[3]));
    for (int64_t i = 0; i < count; i++) { /* by averages that were not rounded yet */
        float step = 0.5f * mean_of(before, first + i) / sqrtf(square_of(before, first + i));
        assert_float_equal(values[i], -step, 1e-6);
    }
    for (int a = 0; a < ARRAYS; a++)
        sli_device_release(device, SL_MEMORY_WORKSPACE, on_device[a], (size_t)count * sizes[a]);
}

static void check_bits(const update *before, const update *after)
{
    const sli_rounding *r = &before->rounding;
    for (int64_t i = 0; i < before->count; i++) {
        uint64_t group = (uint64_t)(r->first_group + i / 4);
        uint32_t words[4] = {(uint32_t)group, 0, sli_site_of_group(r->site, group), r->step};
        sli_philox(r->key, words);
        uint32_t word = words[i % 4];
        assert_int_equal(after->mean[i], sli_bf16_at_random(mean_of(before, i), word & 0xffff));
        assert_int_equal(after->square[i], sli_bf16_at_random(square_of(before, i), word >> 16));
    }
}

/* On every kind of device and instruction set, of all elements at once and cut in two. */
static void bits_are_those_of_the_element_wherever_the_array_is_cut(void **state)
{
    const lab *all = *state;
    enum { COUNT = 1003 };
    FREED update *before = new_update(COUNT), *after = new_update(COUNT);
    for (int f = 0; f < all->count; f++)
        for (int64_t first = 0; first < COUNT; first += 332) {
            sl_device *device = all->families[f].members[0];
            if (first > 0)
                run_update(device, before, 0, first, after);
            run_update(device, before, first, COUNT - first, after);
            check_bits(before, after);
        }
}

/* Each of 65,536 averages is rounded up with a probability of 1/4, that of squares of about 1/2,
 * and both of about 1/8: five deviations are 555, 640 and 423 of them. */
static void mean_of_many_roundings_is_the_number(void **state)
{
    const lab *all = *state;
    FREED update *before = new_update(MOST), *after = new_update(MOST);
    for (int64_t i = 0; i < MOST; i++) {
        before->mean[i] = before->square[i] = sli_bf16_from_f32(1);
        before->grad[i] = 1 + 0x1p-8f; /* a bf16 number is 2^-7 above 1 */
    }
    for (int step = 0; step < 2; step++) {
        int up = 0, square_up = 0, both = 0;
        before->rounding.step = (uint32_t)step;
        run_update(all->families[0].members[0], before, 0, MOST, after);
        for (int64_t i = 0; i < MOST; i++) {
            bool is_up = after->mean[i] != before->mean[i],
                 is_square_up = after->square[i] != before->square[i];
            up += is_up;
            square_up += is_square_up;
            both += is_up && is_square_up;
        }
        assert_in_range(up, MOST / 4 - 555, MOST / 4 + 555);
        assert_in_range(square_up, MOST / 2 - 640, MOST / 2 + 704);
        assert_in_range(both, MOST / 8 - 424, MOST / 8 + 440);
    }
}

static void other_steps_and_parameters_have_other_bits(void **state)
{
    const lab *all = *state;
    FREED update *before = new_update(512), *first = new_update(512), *other = new_update(512);
    sl_device *device = all->families[0].members[0];
    run_update(device, before, 0, 512, first);
    for (int change = 0; change < 3; change++) {
        const sli_rounding kept = before->rounding;
        before->rounding.step += change == 0;
        before->rounding.site += change == 1;
        before->rounding.key.word[0] += change == 2;
        run_update(device, before, 0, 512, other);
        assert_memory_not_equal(first->mean, other->mean, 512 * sizeof *first->mean);
        before->rounding = kept;
    }
}

int rounding_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_bf16_has_stays_and_nan_stays_nan),
        cmocka_unit_test(part_of_the_way_is_how_many_of_the_random_numbers_round_away_from_0),
        cmocka_unit_test(bits_are_those_of_the_element_wherever_the_array_is_cut),
        cmocka_unit_test(mean_of_many_roundings_is_the_number),
        cmocka_unit_test(other_steps_and_parameters_have_other_bits),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
