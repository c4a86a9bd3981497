/* Training in an order that each epoch has anew. That it has the same bits in any layout is
 * test_shards.c's. */
#include "train/loop/language.h"
#include "train/small_run.h"

/* ---- Which rows a batch has ----------------------------------------------------------------- */

enum { BPTT = 9, ROWS = 4, SHARDS = 3, BATCH = SHARDS * ROWS };

typedef struct text {
    sl_tokens tokens;
    sli_language language;
    sl_train_task task;
    sl_device *device;
    int64_t batches;
} text;

/* Ids count up, so that a row's first token says which one it is. */
static text open_text(int64_t count)
{
    text made = {.tokens = small_tokens(count)};
    for (int64_t i = 0; i < count; i++)
        made.tokens.ids[i] = (int32_t)i;
    check_ok(sl_device_create_cpu(1, &made.device));
    return made;
}

/* After it the text stays where it is. */
static void cut_text(text *t)
{
    t->language = (sli_language){.tokens = {&t->tokens},
                                 .bptt = BPTT,
                                 .shard_rows = ROWS,
                                 .whole_rows = true};
    t->task = sli_language_task(&t->language);
    check_ok(t->task.count_batches(t->task.context, SL_SPLIT_TRAIN, BATCH, &t->batches));
}

static void text_destroy(text *t)
{
    sl_device_destroy(&t->device);
    sl_tokens_free(&t->tokens);
}

/* The first tokens of all rows of an epoch, in the order in which they are trained. */
static void find_rows(const text *of, bool shuffle, int64_t epoch, int32_t *out)
{
    for (int64_t batch = 0; batch < of->batches; batch++)
        for (int shard = 0; shard < SHARDS; shard++) {
            const sl_train_rows rows = {.split = SL_SPLIT_TRAIN,
                                        .epoch = epoch,
                                        .batch = batch,
                                        .batch_rows = BATCH,
                                        .first = (int64_t)shard * ROWS,
                                        .count = ROWS,
                                        .shuffled = shuffle ? of->batches * BATCH : 0,
                                        .seed = 7};
            SCOPED(sl_tensor) *targets = NULL, *input = NULL;
            check_ok(of->task.load_rows(of->task.context, &rows, of->device, of->device, &input,
                                        &targets));
            for (int row = 0; row < ROWS; row++) {
                for (int t = 0; t < BPTT; t++) {
                    int32_t id = sl_tensor_i32(input)[row * BPTT + t];
                    assert_int_equal(id, sl_tensor_i32(input)[(int64_t)row * BPTT] + t);
                    assert_int_equal(sl_tensor_i32(targets)[row * BPTT + t], id + 1);
                }
                *out++ = sl_tensor_i32(input)[(int64_t)row * BPTT];
            }
        }
}

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* 4 columns of 155 tokens in 3 shards of 51: five whole rows each, and five tokens that are left.
 */
static void every_epoch_has_all_whole_rows_once(void **state)
{
    enum { BATCHES = 5, COUNT = BATCHES * BATCH };
    int32_t in_order[COUNT], epochs[2][COUNT];
    SCOPED(text) of = open_text(4 * 155);
    cut_text(&of);
    assert_int_equal(of.batches, BATCHES);
    find_rows(&of, false, 0, in_order);
    for (int epoch = 0; epoch < 2; epoch++) {
        find_rows(&of, true, epoch, epochs[epoch]);
        assert_memory_not_equal(epochs[epoch], in_order, sizeof in_order);
    }
    assert_memory_not_equal(epochs[0], epochs[1], sizeof in_order);
    qsort(in_order, COUNT, sizeof *in_order, compare_ids);
    for (int epoch = 0; epoch < 2; epoch++) {
        qsort(epochs[epoch], COUNT, sizeof **epochs, compare_ids);
        assert_memory_equal(epochs[epoch], in_order, sizeof in_order);
    }
}

static void rows_that_fill_the_columns_are_all_trained(void **state)
{
    SCOPED(text) of = open_text(4 * (int64_t)(SHARDS * (3 * BPTT + 1)));
    cut_text(&of);
    assert_int_equal(of.batches, 3);
}

/* ---- Runs ----------------------------------------------------------------------------------- */

static sl_train_options shuffled_options(void **state)
{
    sl_train_options options = small_options(*state);
    options.shuffle = true;
    options.shards = 3;
    options.epochs = 2;
    options.max_batches = 3;
    return options;
}

/* As no weight changes, the same rows have the same loss. */
static void epochs_of_a_run_differ_where_rows_are_shuffled(void **state)
{
    enum { BATCHES = 3 };
    static small_record record;
    sl_train_options options = shuffled_options(state);
    options.lr.lr = options.model.dropout = 0;
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        options.shuffle = shuffle;
        check_ok(small_run(&options, &record));
        assert_int_equal(record.step_count, 2 * BATCHES);
        for (int i = 0; i < BATCHES; i++)
            assert_int_equal(record.steps[i].loss != record.steps[BATCHES + i].loss, shuffle);
    }
}

static unsigned stop_in_second_epoch(void *context)
{
    int *asked = context;
    return ++*asked == 8 ? SL_TRAIN_STOP : SL_TRAIN_GO_ON;
}

static void resumed_run_goes_on_in_its_order(void **state)
{
    static small_record whole, first, second;
    sl_train_options options = shuffled_options(state);
    char directory[512];
    int asked = 0;
    snprintf(directory, sizeof directory, "%s", scratch_path(*state, "checkpoints"));
    check_ok(small_run(&options, &whole));
    options.checkpoints = (sl_save_options){.directory = directory,
                                            .request = stop_in_second_epoch,
                                            .context = &asked};
    check_ok(small_run(&options, &first));
    assert_true(first.step_count > 3 && first.step_count < 6);
    options.checkpoints = (sl_save_options){.resume = directory};
    options.pipeline_ranks = 2;
    check_ok(small_run(&options, &second));
    check_continued(&first, &second, &whole);
    options.shuffle = false;
    check_error(small_run(&options, &second), SL_ERR_INVALID, "shuffle");
    scratch_remove_tree(*state, "checkpoints");
}

int shuffle_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_has_all_whole_rows_once),
        cmocka_unit_test(rows_that_fill_the_columns_are_all_trained),
        cmocka_unit_test(epochs_of_a_run_differ_where_rows_are_shuffled),
        cmocka_unit_test(resumed_run_goes_on_in_its_order),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, scratch_remove);
}
