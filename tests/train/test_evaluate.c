#include "io/scratch.h"
#include "sluice/app/inference.h"
#include "tensor/tensor.h"
#include "train/small_run.h"

#include <math.h>

enum { COLUMNS = 4, BPTT = 5, COUNT = 4 * 18 + 2 };

/* -log softmax(logits)[target] of every token that follows in its column, block by block, in double
 * precision from the pipe's logits. */
static double reference_sum(test_pipe *pipe, const sl_batches *batches, int64_t blocks,
                            int64_t *terms)
{
    double sum = 0;
    *terms = 0;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t length = sl_batches_block_length(batches, b);
        int32_t inputs[COLUMNS * BPTT], targets[COLUMNS * BPTT];
        sl_shape shape = sl_shape_2d(COLUMNS, length);
        SCOPED(sl_tensor) *out = NULL, *in = NULL;
        check_ok(sl_batches_block(batches, b, inputs, targets));
        check_ok(sl_tensor_create(pipe->devices[0], SL_MEMORY_WORKSPACE, SL_I32, &shape, &in));
        check_ok(sl_tensor_write(in, inputs));
        check_ok(sl_pipe_forward(pipe->pipe, &(sl_pipe_batch){.input = in}, &out));
        FREED float *logits = malloc(sli_tensor_bytes(out));
        check_ok(sl_tensor_read(out, logits));
        for (int64_t i = 0; i < COLUMNS * length; i++) {
            double total = 0;
            for (int id = 0; id < SMALL_TOKENS; id++)
                total += exp(logits[i * SMALL_TOKENS + id]);
            sum += log(total) - logits[i * SMALL_TOKENS + targets[i]];
            ++*terms;
        }
    }
    return sum;
}

static void check_mean(int stages, int64_t max_batches, int64_t blocks)
{
    SCOPED(test_pipe) pipe = open_small_model(stages, 8);
    sl_tokens tokens = small_tokens(COUNT);
    sl_batches batches;
    sl_evaluation result;
    int64_t terms;
    check_ok(sl_batchify(tokens.ids, tokens.count, COLUMNS, BPTT, &batches));
    check_ok(sl_evaluate_tokens(
        pipe.pipe, &tokens,
        &(sl_evaluate_options){.batch_size = COLUMNS, .bptt = BPTT, .max_batches = max_batches},
        &result));
    double expected = reference_sum(&pipe, &batches, blocks, &terms) / (double)terms;
    assert_int_equal(result.tokens, terms);
    assert_true(fabs(result.loss / expected - 1) < 1e-6);
    assert_true(result.perplexity == exp(result.loss));
    sl_tokens_free(&tokens);
}

/* 18 tokens a column are blocks of 5, 5, 5 and 2 positions: a mean of blocks' means is another
 * number. */
static void loss_is_the_mean_over_all_tokens(void **state)
{
    for (int stages = 1; stages <= 3; stages++)
        check_mean(stages, 0, 4);
    check_mean(1, 9, 4);
}

static void fewer_batches_are_the_first_ones(void **state)
{
    check_mean(1, 2, 2);
    check_mean(2, 1, 1);
}

typedef struct progress {
    int64_t calls, fail_at;
} progress;

static sl_status count_batches(void *context, int64_t batch, int64_t batches)
{
    progress *seen = context;
    assert_int_equal(batch, ++seen->calls);
    assert_int_equal(batches, 4);
    return batch == seen->fail_at ? sl_error(SL_ERR_CANCELLED, "enough") : SL_OK;
}

static void progress_is_told_and_may_end_it(void **state)
{
    SCOPED(test_pipe) pipe = open_small_model(2, 8);
    sl_tokens tokens = small_tokens(COUNT);
    sl_evaluation result;
    progress seen = {0};
    sl_evaluate_options options = {.batch_size = COLUMNS,
                                   .bptt = BPTT,
                                   .progress = count_batches,
                                   .context = &seen};
    check_ok(sl_evaluate_tokens(pipe.pipe, &tokens, &options, &result));
    assert_int_equal(seen.calls, 4);
    seen = (progress){.fail_at = 3};
    check_error(sl_evaluate_tokens(pipe.pipe, &tokens, &options, &result), SL_ERR_CANCELLED,
                "enough");
    assert_int_equal(seen.calls, 3);
    sl_tokens_free(&tokens);
}

static void tokens_too_few_or_out_of_range_are_refused(void **state)
{
    SCOPED(test_pipe) pipe = open_small_model(2, 8);
    sl_tokens tokens = small_tokens(COUNT);
    sl_evaluation result;
    sl_evaluate_options options = {.batch_size = COUNT, .bptt = BPTT};
    check_error(sl_evaluate_tokens(pipe.pipe, &tokens, &options, &result), SL_ERR_INVALID,
                "too few for bptt 5");
    options.batch_size = COLUMNS;
    tokens.ids[7] = SMALL_TOKENS;
    check_error(sl_evaluate_tokens(pipe.pipe, &tokens, &options, &result), SL_ERR_INVALID, "11");
    tokens.ids[7] = 0;
    check_ok(sl_evaluate_tokens(pipe.pipe, &tokens, &options, &result));
    sl_tokens_free(&tokens);
}

/* Of three ranks the middle one has no stage; it gets the result of the others. */
static sl_status evaluate_on_rank(sl_group *group, void *arg)
{
    static const int group_ranks[] = {0, 2};
    const sl_evaluation *expected = arg;
    sl_module *model;
    sl_loss *loss = new_cross_entropy();
    sl_device *device, *devices[2] = {NULL};
    sl_pipe *pipe;
    sl_evaluation result;
    sl_tokens tokens = small_tokens(COUNT);
    check_ok(sl_transformer_lm_create(&small_model_options, &model));
    check_ok(sl_device_create_cpu(1, &device));
    for (int stage = 0; stage < 2; stage++)
        devices[stage] = group_ranks[stage] == sl_group_rank(group) ? device : NULL;
    check_ok(sl_pipe_create(&(sl_pipe_options){.model = model,
                                               .loss = loss,
                                               .stages = 2,
                                               .chunks = 3,
                                               .devices = devices,
                                               .seed = 8,
                                               .group = group,
                                               .group_ranks = group_ranks},
                            &pipe));
    sl_status status =
        sl_evaluate_tokens(pipe, &tokens,
                           &(sl_evaluate_options){.batch_size = COLUMNS, .bptt = BPTT}, &result);
    if (status == SL_OK)
        assert_memory_equal(&result, expected, sizeof result);
    sl_pipe_destroy(&pipe);
    sl_module_destroy(&model);
    sl_loss_destroy(&loss);
    sl_device_destroy(&device);
    sl_tokens_free(&tokens);
    return status;
}

static void rank_without_a_stage_gets_the_result(void **state)
{
    SCOPED(test_pipe) pipe = open_small_model(2, 8);
    sl_tokens tokens = small_tokens(COUNT);
    sl_evaluation expected;
    check_ok(sl_evaluate_tokens(pipe.pipe, &tokens,
                                &(sl_evaluate_options){.batch_size = COLUMNS, .bptt = BPTT},
                                &expected));
    check_ok(sl_spawn(evaluate_on_rank, &expected, 3, &(sl_group_options){.timeout_seconds = 20}));
    sl_tokens_free(&tokens);
}

static void question_without_a_probability_is_an_error(void **state)
{
    static const char line[] = "{\"context\": [1, 2], \"endings\": [[3], [4]], \"label\": 0}\n";
    sl_choices found;
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    const sl_choices_options asking = {.ntokens = SMALL_TOKENS, .positions = 8};
    const char *path = scratch_path(*state, "task.jsonl");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(line, 1, sizeof line - 1, file), sizeof line - 1);
    fclose(file);
    check_ok(sl_evaluate_choices(pipe.pipe, path, &asking, &found));
    assert_int_equal(found.questions, 1);
    sl_tensor_f32(sl_parameter_value(find_parameter(&pipe, "4.decoder.bias")))[6] = NAN;
    check_error(sl_evaluate_choices(pipe.pipe, path, &asking, &found), SL_ERR_NUMERIC,
                "line 1: the logarithm of the probability of ending 0 is nan");
}

int evaluate_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_is_the_mean_over_all_tokens),
        cmocka_unit_test(fewer_batches_are_the_first_ones),
        cmocka_unit_test(progress_is_told_and_may_end_it),
        cmocka_unit_test(tokens_too_few_or_out_of_range_are_refused),
        cmocka_unit_test_setup_teardown(question_without_a_probability_is_an_error, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(rank_without_a_stage_gets_the_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
