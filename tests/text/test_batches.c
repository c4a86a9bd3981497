#include "sluice/app/text.h"
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

/* Shard r of R has token r P + i of every column as its token i, P being the column's length by R.
 */
static void shard_has_a_range_of_every_column(void **state)
{
    enum { TOKENS = 103, COLUMNS = 4 };
    int32_t tokens[TOKENS], inputs[TOKENS], targets[TOKENS];
    sl_batches whole, shard;
    count_up(tokens, TOKENS);
    check_ok(sl_batchify(tokens, TOKENS, COLUMNS, 4, &whole));
    for (int shards = 1; shards <= 5; shards++)
        for (int r = 0; r < shards; r++) {
            int64_t range = whole.column_length / shards, position = 0;
            check_ok(sl_batches_shard(&whole, r, shards, &shard));
            assert_int_equal(shard.column_length, range);
            for (int64_t i = 0; i < sl_batches_count(&shard); i++) {
                int64_t length = sl_batches_block_length(&shard, i);
                check_ok(sl_batches_block(&shard, i, inputs, targets));
                for (int64_t k = 0; k < COLUMNS * length; k++) {
                    int64_t expected =
                        k / length * whole.column_length + r * range + position + k % length;
                    assert_int_equal(inputs[k], expected);
                    assert_int_equal(targets[k], expected + 1);
                }
                position += length;
            }
            assert_int_equal(position, range - 1);
        }
    check_error(sl_batches_shard(&whole, 2, 2, &shard), SL_ERR_INVALID, "shard 2 of 2");
    check_error(sl_batches_shard(&whole, -1, 2, &shard), SL_ERR_INVALID, "shard -1 of 2");
    check_error(sl_batches_shard(&whole, 0, 0, &shard), SL_ERR_INVALID, "shard 0 of 0");
    check_error(sl_batches_shard(&whole, 0, 6, &shard), SL_ERR_INVALID,
                "25 tokens a column in 6 shards are 4 each, too few for bptt 4");
    assert_null(shard.tokens);
    check_ok(sl_batches_shard(&whole, 1, 2, &whole)); /* in place */
    check_ok(sl_batches_shard(&whole, 1, 2, &shard)); /* a shard of a shard */
    assert_int_equal(shard.columns, COLUMNS);
    assert_int_equal(shard.tokens[0], 12 + 6);
}

static void impossible_sizes_are_refused(void **state)
{
    int32_t tokens[26];
    sl_batches batches;
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
        cmocka_unit_test(shard_has_a_range_of_every_column),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(block_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
