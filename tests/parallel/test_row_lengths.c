/* Batches whose rows say how long they are: a micro-batch has the positions of its longest row. */
#include "nn/module.h"
#include "sluice/model.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 7, TIME = 9, CHUNKS = 3, CLASSES = 11, IGNORED = -100, IMPOSSIBLE = 999 };

/* In micro-batches of three, three and one. */
static const int64_t lengths[ROWS] = {4, 2, 3, 1, 9, 5, 0};
static const int64_t longest[ROWS] = {4, 4, 4, 9, 9, 9, 1};

static const sl_model_options options_of_model = {.family = SL_FAMILY_LLAMA,
                                                  .ntokens = CLASSES,
                                                  .emsize = 8,
                                                  .nhid = 12,
                                                  .nlayers = 4,
                                                  .nhead = 2,
                                                  .pre_norm = true,
                                                  .decoder = {.positions = TIME,
                                                              .norm_eps = 1e-5,
                                                              .deviation = 0.3,
                                                              .key_heads = 2,
                                                              .head_width = 4,
                                                              .rotary = {.kind = SL_ROTARY_DEFAULT,
                                                                         .theta = 1e4}}};

static test_pipe open_model(int stages, const char *schedule, sl_recompute recompute,
                            int accumulate)
{
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options_of_model, &model));
    return open_pipe(model, new_cross_entropy(),
                     (sl_pipe_options){.stages = stages,
                                       .chunks = CHUNKS / accumulate,
                                       .accumulate = accumulate,
                                       .schedule = schedule,
                                       .recompute = recompute,
                                       .seed = 5},
                     stages, 1);
}

typedef struct data {
    sl_device *device;
    sl_tensor *input, *targets;
} data;

/* Behind the longest row of their micro-batch, ids are `beyond`. */
static data make_data(int32_t beyond)
{
    int32_t ids[ROWS * TIME], targets[ROWS * TIME];
    data made = {.device = new_device(1)};
    sl_shape shape = sl_shape_2d(ROWS, TIME);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t t = 0; t < TIME; t++) {
            bool is_there = t < lengths[row];
            ids[row * TIME + t] = is_there           ? (int32_t)((row * 5 + t * t) % CLASSES)
                                  : t < longest[row] ? 0
                                                     : beyond;
            targets[row * TIME + t] = is_there ? (int32_t)((row + 3 * t) % CLASSES) : IGNORED;
        }
    made.input = integer_tensor(made.device, &shape, ids);
    made.targets = integer_tensor(made.device, &shape, targets);
    return made;
}

static void data_destroy(data *made)
{
    sl_tensor_destroy(&made->input);
    sl_tensor_destroy(&made->targets);
    sl_device_destroy(&made->device);
}

typedef struct result {
    double mean, evaluated, rows[ROWS];
    float *gradients;
    int64_t count;
} result;

static result train(test_pipe *pipe, const data *d, const int64_t *row_lengths)
{
    result got;
    int64_t terms;
    sl_pipe_batch batch = {.input = d->input,
                           .targets = d->targets,
                           .row_losses = got.rows,
                           .lengths = row_lengths};
    sl_pipe_zero_grad(pipe->pipe);
    check_ok(sl_pipe_train(pipe->pipe, &batch, &got.mean));
    check_pipe_is_empty(pipe);
    got.gradients = pipe_gradients(pipe->pipe, &got.count);
    batch.row_losses = NULL;
    check_ok(sl_pipe_evaluate(pipe->pipe, &batch, &got.evaluated, &terms));
    assert_int_equal(terms, 4 + 2 + 3 + 1 + 9 + 5);
    return got;
}

/* What is cut off would be an error, and the rest is what it is with padding, to rounding. */
static void micro_batch_is_as_long_as_its_longest_row(void **state)
{
    SCOPED(data) padded = make_data(0), cut = make_data(IMPOSSIBLE);
    SCOPED(test_pipe) pipe = open_model(1, "gpipe", SL_RECOMPUTE_NEVER, 1);
    result expected = train(&pipe, &padded, NULL), found = train(&pipe, &cut, lengths);
    double mean, sum = 0;
    assert_float_equal(found.mean, expected.mean, 1e-6 * expected.mean);
    assert_float_equal(found.evaluated, expected.evaluated, 1e-6 * expected.evaluated);
    assert_true(relative_distance(found.gradients, expected.gradients, found.count) < 1e-6);
    for (int row = 0; row < ROWS; row++) {
        assert_float_equal(found.rows[row], expected.rows[row], 1e-5);
        sum += found.rows[row];
    }
    assert_float_equal(sum, found.mean * 24, 1e-9 * sum);
    check_error(sl_pipe_train(pipe.pipe,
                              &(sl_pipe_batch){.input = cut.input, .targets = cut.targets}, &mean),
                SL_ERR_INVALID, "token id 999");
    free(expected.gradients);
    free(found.gradients);
}

static void bits_are_the_same_in_every_schedule(void **state)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    SCOPED(data) from = make_data(IMPOSSIBLE);
    SCOPED(test_pipe) one = open_model(1, "gpipe", SL_RECOMPUTE_NEVER, 1);
    result expected = train(&one, &from, lengths);
    for (int stages = 1; stages <= 4; stages++)
        for (int kind = 0; kind < 3; kind++)
            for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++)
                for (int accumulate = 1; accumulate <= CHUNKS; accumulate += 2) {
                    SCOPED(test_pipe) pipe =
                        open_model(stages, schedules[kind], (sl_recompute)mode, accumulate);
                    result found = train(&pipe, &from, lengths);
                    assert_true(found.mean == expected.mean);
                    assert_true(found.evaluated == expected.evaluated);
                    assert_memory_equal(found.rows, expected.rows, sizeof found.rows);
                    assert_memory_equal(found.gradients, expected.gradients,
                                        (size_t)found.count * sizeof(float));
                    free(found.gradients);
                }
    free(expected.gradients);
}

/* So are the documents of packed rows. */
static void further_inputs_are_cut_with_the_rows(void **state)
{
    int32_t numbers[ROWS * TIME];
    double means[2];
    sl_shape shape = sl_shape_2d(ROWS, TIME);
    SCOPED(data) padded = make_data(0), cut = make_data(IMPOSSIBLE);
    for (int i = 0; i < ROWS * TIME; i++)
        numbers[i] = i % TIME % 3; /* documents of three tokens */
    sl_tensor *tensor = integer_tensor(cut.device, &shape, numbers);
    const sl_input documents = {SL_DOCUMENTS_INPUT, tensor, false};
    {
        SCOPED(test_pipe) pipe = open_model(2, "1f1b", SL_RECOMPUTE_ALWAYS, 1);
        sl_pipe_batch batch = {.input = padded.input,
                               .inputs = &documents,
                               .input_count = 1,
                               .targets = padded.targets};
        check_ok(sl_pipe_train(pipe.pipe, &batch, &means[0]));
        batch.input = cut.input;
        batch.lengths = lengths;
        check_ok(sl_pipe_train(pipe.pipe, &batch, &means[1]));
        assert_float_equal(means[1], means[0], 1e-6 * means[0]);
    }
    sl_tensor_destroy(&tensor);
}

static void impossible_lengths_are_refused(void **state)
{
    static const int64_t beyond[ROWS] = {4, 2, TIME + 1, 1, 9, 5, 0};
    sl_tensor *output;
    double mean;
    SCOPED(data) from = make_data(0);
    SCOPED(test_pipe) pipe = open_model(2, "gpipe", SL_RECOMPUTE_NEVER, 1);
    check_error(sl_pipe_forward(pipe.pipe,
                                &(sl_pipe_batch){.input = from.input, .lengths = lengths}, &output),
                SL_ERR_INVALID, "lengths of rows are for a batch with a loss");
    check_error(sl_pipe_train(pipe.pipe,
                              &(sl_pipe_batch){.input = from.input,
                                               .targets = from.targets,
                                               .lengths = beyond},
                              &mean),
                SL_ERR_INVALID, "10 positions from 0 on are not in a tensor of [3, 9]");
    check_pipe_is_empty(&pipe);
}

int row_lengths_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_batch_is_as_long_as_its_longest_row),
        cmocka_unit_test(bits_are_the_same_in_every_schedule),
        cmocka_unit_test(further_inputs_are_cut_with_the_rows),
        cmocka_unit_test(impossible_lengths_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
