/* Rows that are gathered ahead: the same as those that are gathered when they are asked for. */
#include "io/scratch.h"
#include "support/modules.h"
#include "train/loop/read_ahead.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 40, LENGTH = 8, BATCH = 4, WRONG_ROW = 30, NTOKENS = 500 };

typedef struct rows_data {
    sli_rows_task rows;
    sl_model_options model;
    sli_read_ahead *ahead;
    char path[600];
} rows_data;

/* Row r has the tokens from 8 r on, which are their numbers; one is no token. */
static void open_rows(scratch *dir, rows_data *out)
{
    *out = (rows_data){.model = {.ntokens = NTOKENS}};
    snprintf(out->path, sizeof out->path, "%s/train.bin", dir->directory);
    FILE *file = fopen(out->path, "wb");
    assert_non_null(file);
    for (int i = 0; i <= ROWS * LENGTH; i++) {
        uint16_t token = (uint16_t)(i == WRONG_ROW * LENGTH + 3 ? NTOKENS : i);
        assert_int_equal(fwrite(&token, sizeof token, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
    const sl_train_options options = {.data = out->path,
                                      .bptt = LENGTH,
                                      .token_type = SL_TOKENS_UINT16};
    check_ok(sli_rows_task_read(&options, NULL, &(sli_tokenizing){0}, &out->model, &out->rows));
    check_ok(sli_read_ahead_create(&out->rows, &out->ahead));
}

static void close_rows(rows_data *data)
{
    sli_read_ahead_destroy(&data->ahead);
    sli_rows_task_clear(&data->rows);
    remove(data->path);
}

static sl_train_rows rows_of(int64_t batch, int64_t first)
{
    return (sl_train_rows){.split = SL_SPLIT_TRAIN,
                           .batch = batch,
                           .batch_rows = 2 * BATCH,
                           .first = first,
                           .count = BATCH};
}

static void check_block(const sli_row_block *block, const sl_train_rows *rows)
{
    assert_int_equal(block->rows, BATCH);
    assert_int_equal(block->columns, LENGTH);
    for (int i = 0; i < BATCH * LENGTH; i++) {
        int expected = (int)(rows->batch * rows->batch_rows + rows->first) * LENGTH + i;
        assert_int_equal(block->ids[i], expected);
        assert_int_equal(block->targets[i], expected + 1);
    }
}

static void rows_are_those_that_are_asked_for(void **state)
{
    rows_data data;
    const sli_row_block *block;
    open_rows(*state, &data);
    for (int64_t i = 0; i < 6; i++) {
        const sl_train_rows rows = rows_of(i / 2, i % 2 * BATCH),
                            next = rows_of((i + 1) / 2, (i + 1) % 2 * BATCH);
        check_ok(sli_read_ahead_take(data.ahead, &rows, i < 5 ? &next : NULL, &block));
        check_block(block, &rows);
    }
    close_rows(&data);
}

/* As after a checkpoint that lies elsewhere. */
static void others_than_the_next_rows_are_gathered_at_once(void **state)
{
    rows_data data;
    const sli_row_block *block;
    open_rows(*state, &data);
    const sl_train_rows first = rows_of(0, 0), second = rows_of(0, BATCH), third = rows_of(2, 0);
    check_ok(sli_read_ahead_take(data.ahead, &first, &second, &block));
    check_block(block, &first);
    check_ok(sli_read_ahead_take(data.ahead, &third, &first, &block));
    check_block(block, &third);
    check_ok(sli_read_ahead_take(data.ahead, &first, &second, &block));
    check_block(block, &first); /* while the thread fills the other block */
    close_rows(&data);
}

/* The rows before it are whole, and so are those after it. */
static void error_is_that_of_the_rows_which_have_it(void **state)
{
    rows_data data;
    const sli_row_block *block;
    open_rows(*state, &data);
    const sl_train_rows good = rows_of(2, 0),
                        wrong = rows_of(WRONG_ROW / (2 * BATCH), WRONG_ROW % (2 * BATCH) & ~3);
    for (int round = 0; round < 3; round++) {
        check_ok(sli_read_ahead_take(data.ahead, &good, &wrong, &block));
        check_block(block, &good);
        check_error(sli_read_ahead_take(data.ahead, &wrong, &good, &block), SL_ERR_FORMAT,
                    "train.bin: its token 243 must be an id from 0 to 499, got 500");
    }
    check_ok(sli_read_ahead_take(data.ahead, &good, &wrong, &block));
    close_rows(&data); /* with an error that nobody asks for */
}

int read_ahead_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_those_that_are_asked_for),
        cmocka_unit_test(others_than_the_next_rows_are_gathered_at_once),
        cmocka_unit_test(error_is_that_of_the_rows_which_have_it),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
