#include "sluice/text.h"
#include "support/check.h"

static void count_up(int32_t *tokens, int count)
{
    for (int i = 0; i < count; i++)
        tokens[i] = i;
}

static void columns_are_runs_and_the_rest_is_trimmed(void **state)
{
    int32_t tokens[26], inputs[20], targets[20];
    sl_batches batches;
    (void)state;
    count_up(tokens, 26);
    check_ok(sl_batchify(tokens, 26, 4, 5, &batches));
    assert_int_equal(batches.column_length, 6);
    assert_int_equal(sl_batches_count(&batches), 1);
    check_ok(sl_batches_block(&batches, 0, inputs, targets));
    for (int n = 0; n < 4; n++)
        for (int t = 0; t < 5; t++) {
            assert_int_equal(inputs[5 * n + t], 6 * n + t);
            assert_int_equal(targets[5 * n + t], 6 * n + t + 1);
        }
}

static void last_block_is_shorter(void **state)
{
    int32_t tokens[26], inputs[12], targets[12];
    static const int32_t first[] = {0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20};
    static const int32_t last[] = {3, 4, 9, 10, 15, 16, 21, 22};
    sl_batches batches;
    (void)state;
    count_up(tokens, 26);
    check_ok(sl_batchify(tokens, 26, 4, 3, &batches));
    assert_int_equal(sl_batches_count(&batches), 2);
    assert_int_equal(sl_batches_block_length(&batches, 0), 3);
    assert_int_equal(sl_batches_block_length(&batches, 1), 2);
    check_ok(sl_batches_block(&batches, 0, inputs, NULL));
    assert_memory_equal(inputs, first, sizeof first);
    check_ok(sl_batches_block(&batches, 1, inputs, targets));
    assert_memory_equal(inputs, last, sizeof last);
    for (int i = 0; i < 8; i++)
        assert_int_equal(targets[i], last[i] + 1);
}

/* Every token of a column but its last is an input once, in its order; every one but its first a
 * target. */
static void blocks_cover_every_column_once(void **state)
{
    enum { TOKENS = 101 };
    int32_t tokens[TOKENS], inputs[TOKENS], targets[TOKENS];
    (void)state;
    count_up(tokens, TOKENS);
    for (int columns = 1; columns <= TOKENS / 2; columns++) {
        for (int bptt = 1; bptt < TOKENS / columns; bptt++) {
            sl_batches batches;
            int64_t position = 0;
            check_ok(sl_batchify(tokens, TOKENS, columns, bptt, &batches));
            for (int64_t i = 0; i < sl_batches_count(&batches); i++) {
                int64_t length = sl_batches_block_length(&batches, i);
                assert_true(length >= 1 && length <= bptt);
                check_ok(sl_batches_block(&batches, i, inputs, targets));
                for (int64_t k = 0; k < columns * length; k++) {
                    int64_t expected = k / length * (TOKENS / columns) + position + k % length;
                    assert_int_equal(inputs[k], expected);
                    assert_int_equal(targets[k], expected + 1);
                }
                position += length;
            }
            assert_int_equal(position, TOKENS / columns - 1);
        }
    }
}

static void some_columns_are_batches_of_their_own(void **state)
{
    int32_t tokens[26], whole[12], part[6];
    sl_batches batches, shard;
    (void)state;
    count_up(tokens, 26);
    check_ok(sl_batchify(tokens, 26, 4, 3, &batches));
    check_ok(sl_batches_columns(&batches, 1, 2, &shard));
    assert_int_equal(sl_batches_count(&shard), 2);
    check_ok(sl_batches_block(&batches, 0, whole, NULL));
    check_ok(sl_batches_block(&shard, 0, part, NULL));
    assert_memory_equal(part, whole + 3, sizeof part);
    check_error(sl_batches_columns(&batches, 3, 2, &shard), SL_ERR_INVALID, "from column 3 of 4");
    assert_null(shard.tokens);
    check_error(sl_batches_columns(&batches, -1, 2, &shard), SL_ERR_INVALID, "column -1");
    check_error(sl_batches_columns(&batches, 0, 0, &shard), SL_ERR_INVALID, "0 columns");
    check_error(sl_batches_columns(&batches, INT64_MAX, 1, &shard), SL_ERR_INVALID, "of 4");
    check_ok(sl_batches_columns(&batches, 2, 2, &batches)); /* in place */
    assert_int_equal(batches.tokens[0], 12);
}

/* Share r of R has token r P + i of every column as its token i, P being the column's length by R.
 */
static void share_has_a_piece_of_every_column(void **state)
{
    enum { TOKENS = 103, COLUMNS = 4 };
    int32_t tokens[TOKENS], inputs[TOKENS], targets[TOKENS];
    sl_batches whole, shard;
    (void)state;
    count_up(tokens, TOKENS);
    check_ok(sl_batchify(tokens, TOKENS, COLUMNS, 4, &whole));
    for (int shards = 1; shards <= 5; shards++)
        for (int r = 0; r < shards; r++) {
            int64_t piece = whole.column_length / shards, position = 0;
            check_ok(sl_batches_shard(&whole, r, shards, &shard));
            assert_int_equal(shard.column_length, piece);
            for (int64_t i = 0; i < sl_batches_count(&shard); i++) {
                int64_t length = sl_batches_block_length(&shard, i);
                check_ok(sl_batches_block(&shard, i, inputs, targets));
                for (int64_t k = 0; k < COLUMNS * length; k++) {
                    int64_t expected =
                        k / length * whole.column_length + r * piece + position + k % length;
                    assert_int_equal(inputs[k], expected);
                    assert_int_equal(targets[k], expected + 1);
                }
                position += length;
            }
            assert_int_equal(position, piece - 1);
        }
    check_ok(sl_batches_shard(&whole, 1, 2, &shard));
    check_ok(sl_batches_columns(&shard, 2, 1, &shard));
    assert_int_equal(shard.tokens[0], 2 * 25 + 12);
    check_error(sl_batches_shard(&whole, 2, 2, &shard), SL_ERR_INVALID, "shard 2 of 2");
    check_error(sl_batches_shard(&whole, -1, 2, &shard), SL_ERR_INVALID, "shard -1 of 2");
    check_error(sl_batches_shard(&whole, 0, 0, &shard), SL_ERR_INVALID, "asked for 0 shards");
    check_error(sl_batches_shard(&whole, 0, 6, &shard), SL_ERR_INVALID,
                "25 tokens a column in 6 shards are 4 each, too few for bptt 4");
    assert_null(shard.tokens);
    check_ok(sl_batches_columns(&whole, 1, 2, &shard)); /* shard 1 of columns 1 and 2 */
    check_ok(sl_batches_shard(&shard, 1, 5, &shard));
    assert_int_equal(shard.columns, 2);
    assert_int_equal(shard.tokens[0], 25 + 5);
}

/* Any run of columns of all shards has the rows that the shards have one by one. */
static void columns_may_be_of_several_shares(void **state)
{
    enum { TOKENS = 103, COLUMNS = 4, SHARDS = 3, BPTT = 3, ALL = SHARDS * COLUMNS };
    int32_t tokens[TOKENS], expected[ALL * BPTT], got[ALL * BPTT], targets[ALL * BPTT];
    sl_batches whole, all, shard, part;
    (void)state;
    count_up(tokens, TOKENS);
    check_ok(sl_batchify(tokens, TOKENS, COLUMNS, BPTT, &whole));
    check_ok(sl_batches_shards(&whole, SHARDS, &all));
    assert_int_equal(all.columns, ALL);
    for (int64_t block = 0; block < sl_batches_count(&all); block++) {
        int64_t length = sl_batches_block_length(&all, block);
        for (int s = 0; s < SHARDS; s++) {
            check_ok(sl_batches_shard(&whole, s, SHARDS, &shard));
            assert_int_equal(sl_batches_block_length(&shard, block), length);
            check_ok(sl_batches_block(&shard, block, expected + s * COLUMNS * length, NULL));
        }
        for (int first = 0; first < ALL; first++)
            for (int count = 1; count <= ALL - first; count++) {
                check_ok(sl_batches_columns(&all, first, count, &part));
                assert_int_equal(part.tokens[0] + block * BPTT, expected[first * length]);
                check_ok(sl_batches_block(&part, block, got, targets));
                for (int i = 0; i < count * length; i++) {
                    assert_int_equal(got[i], expected[first * length + i]);
                    assert_int_equal(targets[i], expected[first * length + i] + 1);
                }
            }
    }
    check_ok(sl_batches_columns(&all, 3, 7, &part)); /* columns of columns */
    check_ok(sl_batches_columns(&part, 2, 4, &part));
    check_ok(sl_batches_block(&part, 0, got, NULL));
    check_ok(sl_batches_block(&all, 0, expected, NULL));
    assert_memory_equal(got, expected + 5 * BPTT, 4 * BPTT * sizeof *got);
    check_error(sl_batches_shards(&all, 1, &part), SL_ERR_INVALID, "of several shards already");
    check_error(sl_batches_columns(&all, 3, 10, &part), SL_ERR_INVALID, "from column 3 of 12");
}

static void impossible_sizes_are_refused(void **state)
{
    int32_t tokens[26];
    sl_batches batches;
    (void)state;
    count_up(tokens, 26);
    check_error(sl_batchify(tokens, 26, 0, 3, &batches), SL_ERR_INVALID, "at least 1, got 0 and 3");
    check_error(sl_batchify(tokens, 26, 4, 0, &batches), SL_ERR_INVALID, "at least 1, got 4 and 0");
    check_error(sl_batchify(tokens, 26, 4, 6, &batches), SL_ERR_INVALID,
                "26 tokens in 4 columns are 6 a column, too few for bptt 6");
    check_error(sl_batchify(tokens, 26, 27, 1, &batches), SL_ERR_INVALID, "are 0 a column");
    check_error(sl_batchify(tokens, 26, 4, INT64_MAX, &batches), SL_ERR_INVALID, "too few");
    assert_null(batches.tokens);
}

static void block_that_is_not_there_is_refused(void **state)
{
    int32_t tokens[26], inputs[12] = {-7};
    sl_batches batches;
    (void)state;
    count_up(tokens, 26);
    check_ok(sl_batchify(tokens, 26, 4, 3, &batches));
    check_error(sl_batches_block(&batches, 2, inputs, NULL), SL_ERR_INVALID, "block 2 of 2");
    check_error(sl_batches_block(&batches, -1, inputs, NULL), SL_ERR_INVALID, "block -1 of 2");
    assert_int_equal(inputs[0], -7);
}

int batches_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_runs_and_the_rest_is_trimmed),
        cmocka_unit_test(last_block_is_shorter),
        cmocka_unit_test(blocks_cover_every_column_once),
        cmocka_unit_test(some_columns_are_batches_of_their_own),
        cmocka_unit_test(share_has_a_piece_of_every_column),
        cmocka_unit_test(columns_may_be_of_several_shares),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(block_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
