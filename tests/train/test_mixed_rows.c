/* The rows of a mixture: which ones a run gets, against counting them by hand. */
#include "io/scratch.h"
#include "support/modules.h"
#include "train/loop/rows_task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { A_ROWS = 23, B_ROWS = 10, BATCH = 6, SHARD = 3, BATCHES = 5, EPOCHS = 7, B_FIRST = 100 };

typedef struct rows_data {
    sl_device *device;
    sli_rows_task rows;
    sl_train_task task;
    sl_model_options model;
    char data[1300];
} rows_data;

/* A row's first id is its number, from `first` on; it has as many more as the number says. */
static void write_lines(const char *path, int first, int rows)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int row = first; row < first + rows; row++) {
        fprintf(file, "{\"input_ids\": [%d", row);
        for (int i = 0; i <= row % 7; i++)
            fprintf(file, ", %d", i);
        fprintf(file, "]}\n");
    }
    assert_int_equal(fclose(file), 0);
}

static void open_rows(scratch *dir, bool grouped, rows_data *out)
{
    char a[600], b[600];
    *out = (rows_data){.device = new_device(1)};
    snprintf(a, sizeof a, "%s/a.jsonl", dir->directory);
    snprintf(b, sizeof b, "%s/b.jsonl", dir->directory);
    write_lines(a, 0, A_ROWS);
    write_lines(b, B_FIRST, B_ROWS);
    snprintf(out->data, sizeof out->data, "a=3:%s,b=2:%s", a, b);
    const sl_train_options options = {.data = out->data, .group_by_length = grouped};
    check_ok(sli_rows_task_read(&options, NULL, &(sli_tokenizing){0}, &out->model, &out->rows));
    out->rows.batches_per_epoch = BATCHES;
    out->task = sli_rows_task_make(&out->rows);
    remove(a);
    remove(b);
}

static void close_rows(rows_data *data)
{
    sli_rows_task_clear(&data->rows);
    sl_device_destroy(&data->device);
}

static sl_train_rows rows_of(int64_t epoch, int64_t batch, int64_t first, int64_t count,
                             bool shuffled)
{
    return (sl_train_rows){.split = SL_SPLIT_TRAIN,
                           .epoch = epoch,
                           .batch = batch,
                           .batch_rows = BATCH,
                           .first = first,
                           .count = count,
                           .shuffled = shuffled ? BATCHES * BATCH : 0,
                           .seed = 5};
}

/* The rows of a run, by their first ids, a shard at a time. */
static void load_run(const rows_data *data, bool shuffled, int64_t count, int *order)
{
    for (int64_t sample = 0; sample < EPOCHS * BATCHES * BATCH; sample += count) {
        const sl_train_rows rows = rows_of(sample / BATCH / BATCHES, sample / BATCH % BATCHES,
                                           sample % BATCH, count, shuffled);
        SCOPED(sl_tensor) *input = NULL, *targets = NULL;
        check_ok(data->task.load_rows(data->task.context, &rows, data->device, data->device, &input,
                                      &targets));
        for (int64_t row = 0; row < count; row++)
            order[sample + row] = sl_tensor_i32(input)[row * sl_tensor_columns(input)];
    }
}

static void sources_are_passed_again_and_again(void **state)
{
    enum { SAMPLES = EPOCHS * BATCHES * BATCH };
    rows_data data;
    int order[SAMPLES], shuffled[SAMPLES], one_by_one[SAMPLES], counts[2] = {0}, changed = 0;
    int last[B_FIRST + B_ROWS] = {0};
    bool seen[B_FIRST + B_ROWS] = {false};
    open_rows(*state, false, &data);
    assert_int_equal(data.model.ntokens, B_FIRST + B_ROWS);
    load_run(&data, false, SHARD, order);
    load_run(&data, true, SHARD, shuffled);
    load_run(&data, true, 1, one_by_one);
    assert_memory_equal(shuffled, one_by_one, sizeof shuffled);
    for (int i = 0; i < SAMPLES; i++) {
        bool is_b = order[i] >= B_FIRST;
        int rows = is_b ? B_ROWS : A_ROWS, first = is_b ? B_FIRST : 0;
        assert_int_equal(order[i], first + counts[is_b] % rows);
        assert_int_equal(shuffled[i] >= B_FIRST, is_b);
        if (counts[is_b] % rows == 0)
            memset(seen + first, 0, (size_t)rows * sizeof *seen);
        assert_false(seen[shuffled[i]]); /* once in each pass */
        seen[shuffled[i]] = true;
        changed += last[first + counts[is_b] % rows] != shuffled[i];
        last[first + counts[is_b] % rows] = shuffled[i];
        counts[is_b]++;
    }
    assert_int_equal(counts[0], SAMPLES * 3 / 5);
    assert_int_equal(counts[1], SAMPLES * 2 / 5);
    assert_true(changed > SAMPLES * 8 / 10); /* each pass has an order of its own */
    assert_true(fabs(sli_rows_task_epochs(&data.rows, 1, SAMPLES) - (double)counts[1] / B_ROWS) <
                1e-12);
    close_rows(&data);
}

/* A batch's rows are those that it has when they are not sorted, within the epoch. */
static void rows_of_a_mixture_are_sorted_by_length(void **state)
{
    rows_data plain, grouped;
    int order[EPOCHS * BATCHES * BATCH], sorted[EPOCHS * BATCHES * BATCH];
    open_rows(*state, false, &plain);
    open_rows(*state, true, &grouped);
    load_run(&plain, true, SHARD, order);
    load_run(&grouped, true, SHARD, sorted);
    for (int first = 0; first < EPOCHS * BATCHES * BATCH; first += BATCH) {
        int64_t sums[2] = {0};
        for (int i = first; i < first + BATCH; i++) {
            assert_true(i == first || sorted[i - 1] % 7 >= sorted[i] % 7);
            sums[0] += (int64_t)order[i] * order[i] * order[i];
            sums[1] += (int64_t)sorted[i] * sorted[i] * sorted[i];
        }
        assert_true(sums[0] == sums[1]); /* five batches are groups of one */
    }
    close_rows(&plain);
    close_rows(&grouped);
}

static void rows_are_divided_by_sources(void **state)
{
    rows_data data;
    open_rows(*state, false, &data);
    for (int64_t batch = 0; batch < BATCHES; batch++) {
        const sl_train_rows rows = rows_of(1, batch, 0, BATCH, true);
        sli_source_part parts[2] = {{0}};
        double losses[BATCH], all = 0;
        int64_t terms;
        for (int i = 0; i < BATCH; i++)
            all += losses[i] = 1 << i;
        check_ok(sli_rows_task_divide(&data.rows, &rows, losses, parts));
        check_ok(data.task.count_terms(data.task.context, &rows, &terms));
        assert_int_equal(parts[0].rows + parts[1].rows, BATCH);
        assert_int_equal(parts[0].targets + parts[1].targets, terms);
        assert_true(parts[0].loss + parts[1].loss == all);
        int of_b = 0;
        for (int i = 0; i < BATCH; i++) {
            const sl_train_rows row = rows_of(1, batch, i, 1, true);
            SCOPED(sl_tensor) *input = NULL, *targets = NULL;
            check_ok(data.task.load_rows(data.task.context, &row, data.device, data.device, &input,
                                         &targets));
            of_b += sl_tensor_i32(input)[0] >= B_FIRST ? 1 << i : 0;
        }
        assert_true(parts[1].loss == of_b);
    }
    close_rows(&data);
}

int mixed_rows_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_are_passed_again_and_again),
        cmocka_unit_test(rows_of_a_mixture_are_sorted_by_length),
        cmocka_unit_test(rows_are_divided_by_sources),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
