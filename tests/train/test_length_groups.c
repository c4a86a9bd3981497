/* Batches of rows of similar lengths: which rows they have, against sorting by hand. */
#include "io/scratch.h"
#include "support/modules.h"
#include "train/loop/rows_task.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 103,
    BATCH = 6,
    BATCHES = ROWS / BATCH,
    GROUP = BATCHES / 4,
    SHARD = 3,
    LONGEST = 29
};

static int length_of_row(int row)
{
    return 1 + (row * 37 + row * row * 11) % LONGEST;
}

typedef struct rows_data {
    sl_device *device;
    sli_rows_task rows;
    sl_train_task task;
    sl_model_options model;
    char path[600];
} rows_data;

/* A row's first id is its number. */
static void write_lines(const char *path, int rows)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int row = 0; row < rows; row++) {
        fprintf(file, "{\"input_ids\": [%d", row);
        for (int i = 1; i < length_of_row(row); i++)
            fprintf(file, ", %d", i);
        fprintf(file, "]}\n");
    }
    assert_int_equal(fclose(file), 0);
}

/* After it the data stay where they are. */
static void open_rows(scratch *dir, int rows, bool grouped, rows_data *out)
{
    *out = (rows_data){.device = new_device(1)};
    snprintf(out->path, sizeof out->path, "%s/train.jsonl", dir->directory);
    write_lines(out->path, rows);
    const sl_train_options options = {.data = out->path, .group_by_length = grouped};
    check_ok(sli_rows_task_read(&options, NULL, &(sli_tokenizing){0}, &out->model, &out->rows));
    out->task = sli_rows_task_make(&out->rows);
}

static void close_rows(rows_data *data)
{
    remove(data->path);
    sli_rows_task_clear(&data->rows);
    sl_device_destroy(&data->device);
}

static sl_train_rows rows_of(int64_t batch, int64_t first, bool shuffled, int64_t epoch)
{
    return (sl_train_rows){.split = SL_SPLIT_TRAIN,
                           .epoch = epoch,
                           .batch = batch,
                           .batch_rows = BATCH,
                           .first = first,
                           .count = SHARD,
                           .shuffled = shuffled ? BATCHES * BATCH : 0,
                           .seed = 5};
}

/* An epoch's rows, in the order in which they are trained; gives how long they are with padding. */
static int64_t load_epoch(const rows_data *data, bool shuffled, int64_t epoch, int *order)
{
    int64_t all = 0;
    for (int64_t batch = 0; batch < BATCHES; batch++)
        for (int64_t first = 0; first < BATCH; first += SHARD) {
            const sl_train_rows rows = rows_of(batch, first, shuffled, epoch);
            SCOPED(sl_tensor) *input = NULL, *targets = NULL;
            sli_rows_size size;
            int64_t terms, tokens = 0, longest = 0;
            check_ok(data->task.load_rows(data->task.context, &rows, data->device, data->device,
                                          &input, &targets));
            check_ok(data->task.count_terms(data->task.context, &rows, &terms));
            check_ok(sli_rows_task_measure(&data->rows, &rows, 1, &size));
            for (int64_t row = 0; row < SHARD; row++) {
                *order = sl_tensor_i32(input)[row * sl_tensor_columns(input)];
                int length = length_of_row(*order++);
                longest = length > longest ? length : longest;
                tokens += length;
            }
            assert_int_equal(sl_tensor_columns(input), longest);
            assert_int_equal(size.padded, SHARD * longest);
            assert_int_equal(size.tokens, tokens);
            assert_int_equal(terms, tokens - SHARD);
            all += SHARD * longest;
        }
    return all;
}

/* Takes the longest row that is left of each group, of equal ones the first. */
static void sort_by_hand(bool shuffled, int64_t epoch, int *order)
{
    for (int first = 0; first < BATCHES; first += GROUP) {
        int batches = BATCHES - first < GROUP ? BATCHES - first : GROUP;
        int left[GROUP * BATCH], count = batches * BATCH;
        for (int i = 0; i < count; i++) {
            int place = first * BATCH + i;
            left[i] = shuffled ? (int)sl_shuffled(place, BATCHES * BATCH, 5, epoch) : place;
        }
        while (count > 0) {
            int longest = 0;
            for (int i = 1; i < count; i++)
                if (length_of_row(left[i]) > length_of_row(left[longest]))
                    longest = i;
            *order++ = left[longest];
            memmove(left + longest, left + longest + 1, (size_t)(--count - longest) * sizeof *left);
        }
    }
}

static void groups_are_sorted_by_length(void **state)
{
    rows_data plain, grouped;
    int order[BATCHES * BATCH], expected[BATCHES * BATCH];
    open_rows(*state, ROWS, false, &plain);
    open_rows(*state, ROWS, true, &grouped);
    for (int shuffled = 0; shuffled < 2; shuffled++)
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int64_t without = load_epoch(&plain, shuffled, epoch, order);
            int64_t with = load_epoch(&grouped, shuffled, epoch, order);
            sort_by_hand(shuffled, epoch, expected);
            assert_memory_equal(order, expected, sizeof order);
            assert_true(5 * with < 4 * without);
        }
    close_rows(&grouped);
    close_rows(&plain);
}

static int64_t length_at(const void *data, const sl_train_rows *rows, int64_t place)
{
    int row =
        (int)(rows->shuffled ? sl_shuffled(place, rows->shuffled, rows->seed, rows->epoch) : place);
    return length_of_row(row);
}

static void find_samples(const rows_data *data, int64_t batches, const sl_train_rows *rows,
                         int64_t samples[SHARD])
{
    sl_train_rows at = *rows;
    at.batch = 0;
    check_ok(sli_length_groups_find(data->rows.groups, length_at, NULL, batches, rows, samples));
    for (int row = 0; row < SHARD; row++) {
        at.first = samples[row];
        samples[row] = sl_train_sample(&at, 0);
    }
}

/* As ranks that are at different steps ask, and a profile before them. */
static void any_order_of_asking_gives_the_same_rows(void **state)
{
    rows_data grouped;
    int expected[BATCHES * BATCH];
    open_rows(*state, ROWS, true, &grouped);
    for (int i = 0; i < 200; i++) {
        int64_t epoch = i * 7 % 3, batch = i / 2 * 5 % BATCHES;
        bool shuffled = i % 5 < 3;
        const sl_train_rows rows = rows_of(batch, i % 2 * SHARD, shuffled, epoch);
        int64_t samples[SHARD];
        find_samples(&grouped, BATCHES, &rows, samples);
        sort_by_hand(shuffled, epoch, expected);
        for (int row = 0; row < SHARD; row++)
            assert_int_equal(samples[row], expected[batch * BATCH + rows.first + row]);
    }
    close_rows(&grouped);
}

/* Fewer batches than groups: each is a group of its own, and is sorted. */
static void few_batches_are_sorted_alone(void **state)
{
    rows_data grouped;
    int64_t samples[SHARD];
    open_rows(*state, BATCH, true, &grouped);
    const sl_train_rows rows = rows_of(0, 0, false, 0);
    find_samples(&grouped, 1, &rows, samples);
    for (int row = 1; row < SHARD; row++)
        assert_true(length_of_row((int)samples[row - 1]) >= length_of_row((int)samples[row]));
    close_rows(&grouped);
}

int length_groups_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_sorted_by_length),
        cmocka_unit_test(any_order_of_asking_gives_the_same_rows),
        cmocka_unit_test(few_batches_are_sorted_alone),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
