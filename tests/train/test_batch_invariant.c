/* With batch_invariant, what a model computes of a row is the same in any pipe and any run, beside
 * any other rows, and where it generates. */
#include "sluice/app/inference.h"
#include "small_run.h"

enum { ROWS = 17, LENGTH = 12, EACH = LENGTH * SMALL_TOKENS };

static test_pipe open_invariant(int stages, int chunks, sl_precision precision)
{
    sl_module *model;
    sl_model_options options = small_model_options;
    options.mask = SL_MASK_CAUSAL;
    check_ok(sl_transformer_lm_create(&options, &model));
    test_pipe made = open_pipe(
        model, new_cross_entropy(),
        (sl_pipe_options){.stages = stages, .chunks = chunks, .seed = 3, .precision = precision},
        stages, 2);
    for (int i = 0; i < made.device_count; i++)
        check_ok(sl_device_set_batch_invariant(made.devices[i], true));
    return made;
}

static float *compute(test_pipe *pipe, const int32_t *ids, int64_t rows)
{
    float *logits;
    int64_t ntokens;
    check_ok(sl_compute_logits(pipe->pipe, ids, rows, LENGTH, &logits, &ntokens));
    return logits;
}

static void logits_are_those_of_a_row_alone(void **state)
{
    static const int chunks[] = {1, 2, 4};
    sl_tokens tokens = small_tokens(ROWS * LENGTH);
    for (int precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++) {
        float alone[ROWS * EACH];
        SCOPED(test_pipe) one = open_invariant(1, 1, (sl_precision)precision);
        for (int row = 0; row < ROWS; row++) {
            FREED float *own = compute(&one, tokens.ids + row * LENGTH, 1);
            memcpy(alone + row * EACH, own, sizeof(float[EACH]));
        }
        for (int i = 0; i < 3; i++) {
            SCOPED(test_pipe) pipe = open_invariant(1 + i, chunks[i], (sl_precision)precision);
            for (int rows = 2; rows <= ROWS; rows += 1 + i) {
                FREED float *all = compute(&pipe, tokens.ids, rows);
                assert_memory_equal(all, alone, (size_t)(rows * EACH) * sizeof *all);
            }
        }
    }
    free(tokens.ids);
}

/* Beside others of other lengths, a text goes on as it does alone. */
static void text_is_the_one_that_is_generated_alone(void **state)
{
    enum { TEXTS = 5, ADDED = 30, ROOM = LENGTH + ADDED };
    sl_tokens tokens = small_tokens(TEXTS * LENGTH);
    const sl_generate_options options = {.temperature = 1, .seed = 7, .context = ROOM};
    int32_t ids[TEXTS][ROOM], alone[ROOM];
    sl_text texts[TEXTS];
    SCOPED(test_pipe) pipe = open_invariant(2, 2, SL_PRECISION_F32);
    for (int i = 0; i < TEXTS; i++) {
        memcpy(ids[i], tokens.ids + i * LENGTH, sizeof(int32_t[LENGTH]));
        texts[i] = (sl_text){.ids = ids[i], .length = LENGTH - 2 * i};
    }
    check_ok(sl_generate_texts(pipe.pipe, &options, texts, TEXTS, ADDED));
    SCOPED(test_pipe) single = open_invariant(1, 1, SL_PRECISION_F32);
    memcpy(alone, tokens.ids, sizeof(int32_t[LENGTH]));
    sl_text text = {.ids = alone, .length = LENGTH};
    check_ok(sl_generate_texts(single.pipe, &options, &text, 1, ADDED));
    assert_int_equal(text.length, texts[0].length);
    assert_memory_equal(alone, ids[0], (size_t)text.length * sizeof *alone);
    free(tokens.ids);
}

/* The first step's loss is the forward's alone. */
static void run_begins_with_the_same_loss_for_any_chunks(void **state)
{
    static small_record first, other;
    sl_train_options options = small_options(*state);
    options.batch_invariant = true;
    options.max_batches = 1;
    for (int precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++) {
        options.precision = (sl_precision)precision;
        options.chunks = 1;
        options.eval_batch_size = 7;
        check_ok(small_run(&options, &first));
        options.pipeline_ranks = 1;
        for (options.chunks = 2; options.chunks <= 4; options.chunks += 2) {
            check_ok(small_run(&options, &other));
            assert_true(other.steps[0].loss == first.steps[0].loss);
        }
    }
}

int batch_invariant_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_a_row_alone),
        cmocka_unit_test(text_is_the_one_that_is_generated_alone),
        cmocka_unit_test_setup_teardown(run_begins_with_the_same_loss_for_any_chunks,
                                        small_corpus_create, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
