#include "sluice/pipe.h"
#include "support/check.h"

static void rows_are_cut_as_torch_chunk_cuts_them(void **state)
{
    const struct {
        int rows, chunks, count, sizes[8];
    } cases[] = {
        {20, 8, 7, {3, 3, 3, 3, 3, 3, 2}},
        {30, 8, 8, {4, 4, 4, 4, 4, 4, 4, 2}},
        {10, 8, 5, {2, 2, 2, 2, 2}},
        {7, 4, 4, {2, 2, 2, 1}},
        {2, 4, 2, {1, 1}},
        {1, 8, 1, {1}},
        {20, 1, 1, {20}},
        {8, 8, 8, {1, 1, 1, 1, 1, 1, 1, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t sizes[8];
        assert_int_equal(sl_micro_batches(cases[i].rows, cases[i].chunks, sizes), cases[i].count);
        assert_int_equal(sl_micro_batches(cases[i].rows, cases[i].chunks, NULL), cases[i].count);
        for (int micro = 0; micro < cases[i].count; micro++)
            assert_int_equal(sizes[micro], cases[i].sizes[micro]);
    }
}

static void any_rows_are_all_there_and_all_but_the_last_equal(void **state)
{
    for (int64_t rows = 1; rows <= 70; rows++)
        for (int chunks = 1; chunks <= 20; chunks++) {
            int64_t sizes[20], sum = 0;
            int count = sl_micro_batches(rows, chunks, sizes);
            assert_in_range(count, 1, chunks);
            for (int micro = 0; micro < count; micro++) {
                sum += sizes[micro];
                if (micro + 1 < count)
                    assert_int_equal(sizes[micro], sizes[0]);
            }
            assert_in_range(sizes[count - 1], 1, sizes[0]);
            assert_int_equal(sum, rows);
        }
}

static void nothing_to_cut_gives_no_micro_batch(void **state)
{
    assert_int_equal(sl_micro_batches(0, 4, NULL), 0);
    assert_int_equal(sl_micro_batches(4, 0, NULL), 0);
}

int micro_batch_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_cut_as_torch_chunk_cuts_them),
        cmocka_unit_test(any_rows_are_all_there_and_all_but_the_last_equal),
        cmocka_unit_test(nothing_to_cut_gives_no_micro_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
