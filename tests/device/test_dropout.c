/* Dropout masks, bit for bit against the formula in device.h. */
#include "lab.h"

static sli_dropout make(float p, int64_t rows_per_sample)
{
    return (sli_dropout){.p = p,
                         .key = sli_philox_key_make(0x123456789abcdef0u, SLI_RANDOM_DROPOUT),
                         .step = 11,
                         .site = 22,
                         .first_sample = 0xFFFFFFFEu, /* the third sample wraps to 0 */
                         .rows_per_sample = rows_per_sample};
}

static bool kept(const sli_dropout *d, int64_t row, int64_t column, int64_t columns)
{
    int64_t position = row % d->rows_per_sample, groups = (columns + 3) / 4;
    uint32_t words[4] = {(uint32_t)(position * groups + column / 4),
                         d->first_sample + (uint32_t)(row / d->rows_per_sample), d->site, d->step};
    sli_philox(d->key, words);
    return sli_uniform_from_bits(words[column % 4]) >= d->p;
}

/* Drops from rows of ones; returns malloc'ed [rows, width]. */
static float *drop_ones(sl_device *device, const sli_dropout *dropout, int64_t rows, int64_t width)
{
    float *ones = floats(rows * width), *sum = floats(rows * width);
    for (int64_t i = 0; i < rows * width; i++)
        ones[i] = 1;
    sli_add_dropout arguments = {.rows = rows, .width = width, .x = ones, .out = sum};
    arguments.dropout = *dropout;
    assert_int_equal(sli_device_add_dropout(device, &arguments), SL_OK);
    free(ones);
    return sum;
}

static void masks_follow_the_formula_on_every_device(void **state)
{
    const lab *all = *state;
    static const int64_t widths[] = {1, 3, 4, 35, 64, 200, 257, 1023, 1024, 1025, 4100};
    static const float rates[] = {0.1f, 0.2f, 0.5f, 0.999f, 0x1p-24f};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int isa = 0; isa < LAB_ISAS && all->devices[isa][0]; isa++) {
            int64_t width = widths[w], rows = width > 300 ? 25 : 150;
            sli_dropout dropout = make(rates[w % 5], 9);
            float *sum = drop_ones(all->devices[isa][w % 2], &dropout, rows, width);
            float scale = 1.0f / (1.0f - dropout.p);
            for (int64_t i = 0; i < rows * width; i++)
                assert_float_equal(sum[i],
                                   kept(&dropout, i / width, i % width, width) ? scale : 0.0f, 0);
            free(sum);
        }
}

static void probability_one_drops_everything(void **state)
{
    const lab *all = *state;
    for (int isa = 0; isa < LAB_ISAS && all->devices[isa][0]; isa++) {
        sli_dropout dropout = make(1, 5);
        float *sum = drop_ones(all->devices[isa][0], &dropout, 40, 300);
        for (int i = 0; i < 40 * 300; i++)
            assert_float_equal(sum[i], 0, 0);
        free(sum);
    }
}

static void samples_keep_their_masks_when_a_batch_is_cut(void **state)
{
    const lab *all = *state;
    enum { SAMPLES = 6, POSITIONS = 7, WIDTH = 35 };
    sli_dropout dropout = make(0.4f, POSITIONS);
    float *whole = drop_ones(all->devices[0][0], &dropout, SAMPLES * POSITIONS, WIDTH);
    for (int first = 0; first < SAMPLES; first += 2) {
        sli_dropout part_of = dropout;
        part_of.first_sample += (uint32_t)first;
        float *part = drop_ones(all->devices[0][1], &part_of, 2 * POSITIONS, WIDTH);
        assert_memory_equal(part, whole + first * POSITIONS * WIDTH,
                            2 * POSITIONS * WIDTH * sizeof *part);
        free(part);
    }
    free(whole);
}

static void kept_share_is_one_minus_p_and_independent_of_neighbours(void **state)
{
    const lab *all = *state;
    enum { ROWS = 1000, WIDTH = 300, COUNT = ROWS * WIDTH };
    static const float rates[] = {0.1f, 0.5f, 0.8f};
    for (int r = 0; r < 3; r++) {
        sli_dropout dropout = make(rates[r], 20);
        float *sum = drop_ones(all->devices[0][1], &dropout, ROWS, WIDTH);
        double share = 0, both = 0, q = 1 - (double)rates[r];
        for (int i = 0; i < COUNT; i++)
            share += (sum[i] > 0) / (double)COUNT;
        for (int i = 1; i < COUNT; i++)
            both += (sum[i] > 0 && sum[i - 1] > 0) / (double)(COUNT - 1);
        assert_true(fabs(share - q) < 5 * sqrt(q * (1 - q) / COUNT));
        assert_true(fabs(both - q * q) < 8 * sqrt(q * q * (1 - q * q) / COUNT));
        free(sum);
    }
}

int dropout_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_follow_the_formula_on_every_device),
        cmocka_unit_test(probability_one_drops_everything),
        cmocka_unit_test(samples_keep_their_masks_when_a_batch_is_cut),
        cmocka_unit_test(kept_share_is_one_minus_p_and_independent_of_neighbours),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
