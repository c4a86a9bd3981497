/* Rows of several documents: which ones, against trying every row for each document. */
#include "support/check.h"
#include "text/rows.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 400, MOST_LENGTH = 200 };

/* Rows of drawn lengths, whose ids count up; some targets are ignored. */
static sl_rows *draw_rows(unsigned seed, int count, int longest)
{
    sl_rows *rows = calloc(1, sizeof *rows);
    assert_non_null(rows);
    check_ok(sli_rows_reserve(rows, count, (int64_t)count * longest, false));
    rows->begins[0] = 0;
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        int length = 1 + (int)(seed >> 8) % longest;
        for (int k = 0; k < length; k++) {
            int64_t place = rows->begins[i] + k;
            rows->ids[place] = (int32_t)place;
            rows->targets[place] =
                k + 1 == length || k % 5 == 2 ? SLI_IGNORED_TARGET : (int32_t)place + 1;
        }
        rows->begins[++rows->count] = rows->begins[i] + length;
    }
    return rows;
}

/* The documents, cut; sorted by length. */
static int cut(const sl_rows *rows, int length, int64_t *begins, int *lengths)
{
    int count = 0;
    for (int64_t i = 0; i < rows->count; i++)
        for (int64_t begin = rows->begins[i]; begin < rows->begins[i + 1]; begin += length) {
            int64_t left = rows->begins[i + 1] - begin;
            int own = left < length ? (int)left : length, place = count++;
            for (; place > 0 && lengths[place - 1] < own; place--) {
                lengths[place] = lengths[place - 1];
                begins[place] = begins[place - 1];
            }
            lengths[place] = own;
            begins[place] = begin;
        }
    return count;
}

/* The row of each document: the fullest that has room, of equal ones the one that was filled last.
 */
static int pack_by_hand(const int *lengths, int count, int length, int *row_of)
{
    static int used[100000], filled[100000];
    int rows = 0;
    for (int i = 0; i < count; i++) {
        int best = -1;
        for (int row = 0; row < rows; row++)
            if (used[row] + lengths[i] <= length &&
                (best < 0 || used[row] > used[best] ||
                 (used[row] == used[best] && filled[row] > filled[best])))
                best = row;
        if (best < 0) {
            best = rows++;
            used[best] = 0;
        }
        used[best] += lengths[i];
        filled[best] = i;
        row_of[i] = best;
    }
    return rows;
}

static void check_packed(const sl_rows *rows, int length)
{
    static int64_t begins[MOST_ROWS * MOST_LENGTH];
    static int lengths[MOST_ROWS * MOST_LENGTH], row_of[MOST_ROWS * MOST_LENGTH];
    sl_rows *packed;
    check_ok(sli_rows_pack(rows, length, &packed));
    int count = cut(rows, length, begins, lengths);
    assert_int_equal(packed->count, pack_by_hand(lengths, count, length, row_of));
    assert_int_equal(sli_rows_tokens(packed), sli_rows_tokens(rows));
    int64_t longest = 0;
    for (int64_t row = 0; row < packed->count; row++) {
        int64_t place = packed->begins[row];
        for (int i = 0; i < count; i++) {
            if (row_of[i] != row)
                continue;
            assert_memory_equal(packed->ids + place, rows->ids + begins[i],
                                (size_t)lengths[i] * sizeof(int32_t));
            assert_memory_equal(packed->targets + place, rows->targets + begins[i],
                                (size_t)lengths[i] * sizeof(int32_t));
            for (int k = 0; k < lengths[i]; k++)
                assert_int_equal(packed->numbers[place++], k);
        }
        assert_int_equal(place, packed->begins[row + 1]);
        longest = place - packed->begins[row] > longest ? place - packed->begins[row] : longest;
        assert_true(sli_rows_length(packed, row) <= length);
    }
    assert_int_equal(packed->longest, longest);
    assert_int_equal(packed->arrays[SLI_ROW_BEGINS].bytes, 8 * (packed->count + 1));
    for (int i = SLI_ROW_IDS; i < SLI_ROW_ARRAYS; i++)
        assert_int_equal(packed->arrays[i].bytes, 4 * sli_rows_tokens(rows));
    sl_rows_destroy(&packed);
}

static void documents_are_packed_as_by_hand(void **state)
{
    static const int limits[] = {1, 2, 7, 63, 64, 65, 128, 1000};
    for (unsigned seed = 1; seed <= 6; seed++) {
        sl_rows *rows =
            draw_rows(seed, 1 + (int)seed * 60 % MOST_ROWS, (int)seed % 2 ? MOST_LENGTH : 30);
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
            check_packed(rows, limits[i]);
        sl_rows_destroy(&rows);
    }
}

/* Rows of 5, 3 and 1 tokens, of which those of 5 are cut at 4. */
static void documents_are_counted_by_their_lengths(void **state)
{
    static int64_t begins[] = {0, 5, 8, 9};
    static int32_t ids[9], targets[9];
    const sl_rows rows = {
        .count = 3, .longest = 5, .begins = begins, .ids = ids, .targets = targets};
    double tokens = 1, squares = 2;
    sl_rows *packed;
    check_ok(sli_rows_pack(&rows, 4, &packed));
    sli_rows_count_documents(packed, &tokens, &squares);
    assert_true(tokens == 1 + 9);
    assert_true(squares == 2 + 16 + 1 + 9 + 1);
    sl_rows_destroy(&packed);
}

/* Their files take no descriptors, and no more of the disk than there is in them. */
static void large_rows_are_finished(void **state)
{
    enum { LENGTH = SLI_LARGE_BYTES / 4 + 5000 };
    sl_rows *rows = calloc(1, sizeof *rows), *packed;
    (void)state;
    assert_non_null(rows);
    check_ok(sli_rows_reserve(rows, 1, LENGTH, false));
    rows->begins[0] = 0;
    rows->begins[1] = LENGTH;
    rows->count = 1;
    memset(rows->ids, 0, LENGTH * sizeof *rows->ids);
    memset(rows->targets, 0, LENGTH * sizeof *rows->targets);
    sli_rows_finish(rows);
    check_ok(sli_rows_pack(rows, LENGTH, &packed));
    for (int i = SLI_ROW_IDS; i < SLI_ROW_ARRAYS; i++) {
        const sli_large_array *array = &packed->arrays[i];
        assert_true(array->is_mapped);
        assert_int_equal(array->file, 0);
        assert_in_range(array->bytes, 4 * LENGTH, 4 * LENGTH + (1 << 16));
    }
    assert_ptr_equal(packed->ids, packed->arrays[SLI_ROW_IDS].data);
    assert_int_equal(packed->numbers[LENGTH - 1], LENGTH - 1);
    assert_int_equal(rows->arrays[SLI_ROW_IDS].file, 0);
    sl_rows_destroy(&packed);
    sl_rows_destroy(&rows);
}

/* Of 2,000 drawn documents nearly every row is full. */
static void little_is_left(void **state)
{
    enum { LENGTH = 256 };
    sl_rows *packed, *rows = draw_rows(9, 2000, MOST_LENGTH);
    check_ok(sli_rows_pack(rows, LENGTH, &packed));
    int64_t fewest = (sli_rows_tokens(rows) + LENGTH - 1) / LENGTH;
    assert_true(packed->count >= fewest && packed->count <= fewest + fewest / 50);
    sl_rows_destroy(&packed);
    sl_rows_destroy(&rows);
}

int pack_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_packed_as_by_hand),
        cmocka_unit_test(documents_are_counted_by_their_lengths),
        cmocka_unit_test(large_rows_are_finished),
        cmocka_unit_test(little_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
