/* Dropout's masks in samples so long that their groups of four do not fit 32 bits: attention has
 * them from heads * positions^2 / 4 = 2^32 on. */
#include "device/cpu/cpu_device.h"
#include "device/reference.h"
#include "support/check.h"
#ifdef SLUICE_TEST_EMULATION
#include "device/cuda/emulated.h"
#endif

enum { ROWS = 4, COLUMNS_MOST = 1003 };

/* The rows of 20 columns are masked ahead, those of 1003 one by one. Group 2^32 is within a row of
 * each. */
static const int64_t widths[] = {20, COLUMNS_MOST};

static int64_t row_of_group(uint64_t group, int64_t columns)
{
    return (int64_t)group / ((columns + 3) / 4);
}

static sli_dropout long_dropout(void)
{
    return (sli_dropout){.p = 0.5f,
                         .key = {{11, 12}},
                         .step = 13,
                         .site = 14,
                         .first_sample = 15,
                         .rows_per_sample = (int64_t)1 << 34};
}

static void check_mask(const sli_dropout *dropout, int64_t row, int64_t column, int64_t columns,
                       bool is_kept)
{
    assert_int_equal(is_kept, multiplier(dropout, row, column, columns) > 0);
}

static void masks_on_cpus_go_on_beyond_32_bits_of_groups(void **state)
{
    const lab *every = *state;
    sli_dropout dropout = long_dropout();
    float scores[ROWS * COLUMNS_MOST];
    for (int f = 0; f < every->count; f++)
        for (int w = 0; w < 2; w++) {
            int64_t columns = widths[w];
            sli_score_block block = {.rows = ROWS,
                                     .columns = columns,
                                     .ld = columns,
                                     .positions = columns,
                                     .dropout_row = row_of_group(UINT64_C(1) << 32, columns) - 1,
                                     .scale = 1,
                                     .dropout = &dropout};
            memset(scores, 0, sizeof scores);
            sli_cpu(every->families[f].members[0])->kernels->softmax(&block, scores);
            for (int64_t i = 0; i < ROWS * columns; i++)
                check_mask(&dropout, block.dropout_row + i / columns, i % columns, columns,
                           scores[i] > 0);
        }
}

static void masks_of_cuda_go_on_beyond_32_bits_of_groups(void **state)
{
#ifdef SLUICE_TEST_EMULATION
    sli_dropout dropout = long_dropout();
    for (int w = 0; w < 2; w++) {
        int64_t first = row_of_group(UINT64_C(1) << 32, widths[w]) - 1;
        for (int64_t row = first; row < first + ROWS; row++)
            for (int64_t column = 0; column < widths[w]; column += 4) {
                float four[4];
                emulated_mask(&dropout, widths[w], row, column, four);
                for (int64_t i = 0; i < 4 && column + i < widths[w]; i++)
                    check_mask(&dropout, row, column + i, widths[w], four[i] > 0);
            }
    }
#else
    skip();
#endif
}

/* A wrapped counter would repeat the first rows' masks, of this site or of another. */
static void counters_of_groups_and_sites_differ(void **state)
{
    uint32_t last_site = (UINT32_C(1) << SLI_SITE_BITS) - 1;
    assert_int_equal(sli_site_of_group(14, UINT32_MAX), 14);
    assert_int_equal(sli_site_of_group(14, UINT64_C(1) << 32), 14 + (1 << SLI_SITE_BITS));
    assert_int_equal(sli_site_of_group(last_site, (UINT64_C(1) << SLI_GROUP_BITS) - 1), UINT32_MAX);
}

static void what_the_counter_cannot_hold_is_refused(void **state)
{
    const lab *every = *state;
    float x[8] = {0};
    sli_add_dropout fine = {.rows = 1, .width = 8, .x = x, .out = x, .dropout = long_dropout()};
    fine.dropout.rows_per_sample = INT64_C(1) << (SLI_GROUP_BITS - 1);
    check_ok(sli_device_add_dropout(every->families[0].members[0], &fine));
    sli_add_dropout bad = fine;
    bad.dropout.rows_per_sample++;
    check_error(sli_device_add_dropout(every->families[0].members[0], &bad), SL_ERR_INVALID,
                "add_dropout: expected at most 2^42 elements of dropout a sample");
    bad = fine;
    bad.dropout.site = UINT32_C(1) << SLI_SITE_BITS;
    check_error(sli_device_add_dropout(every->families[0].members[0], &bad), SL_ERR_INVALID,
                "add_dropout: expected a dropout site below 2^24");
}

int masks_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_on_cpus_go_on_beyond_32_bits_of_groups),
        cmocka_unit_test(masks_of_cuda_go_on_beyond_32_bits_of_groups),
        cmocka_unit_test(counters_of_groups_and_sites_differ),
        cmocka_unit_test(what_the_counter_cannot_hold_is_refused),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
