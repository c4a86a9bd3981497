#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"
#include "tensor/tensor.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- What the tests run ----------------------------------------------------------------- */

enum { FEATURES = 6, CLASSES = 5, WIDTH = 7 };

/* Linear, GELU, LayerNorm, Dropout, Linear, ReLU, Linear. */
static sl_module *perceptron(float dropout)
{
    sl_module *modules[7], *model;
    check_ok(sl_linear_create(FEATURES, WIDTH, false, &modules[0]));
    check_ok(sl_activation_create(SL_ACTIVATION_GELU, &modules[1]));
    check_ok(sl_layer_norm_create(WIDTH, 0, &modules[2]));
    check_ok(sl_dropout_create(dropout, &modules[3]));
    check_ok(sl_linear_create(WIDTH, WIDTH, false, &modules[4]));
    check_ok(sl_activation_create(SL_ACTIVATION_RELU, &modules[5]));
    check_ok(sl_linear_create(WIDTH, CLASSES, false, &modules[6]));
    check_ok(create_sequential(modules, 7, &model));
    return model;
}

/* A batch on a device of its own, which is none of the pipe's. */
typedef struct data {
    sl_device *device;
    sl_tensor *input, *targets;
} data;

static data random_data(int64_t rows)
{
    data d;
    sl_shape in = sl_shape_2d(rows, FEATURES), out = sl_shape_2d(rows, CLASSES);
    check_ok(sl_device_create_cpu(1, &d.device));
    d.input = random_tensor(d.device, &in, 11);
    d.targets = random_tensor(d.device, &out, 12);
    return d;
}

static void data_destroy(data *d)
{
    sl_tensor_destroy(&d->input);
    sl_tensor_destroy(&d->targets);
    sl_device_destroy(&d->device);
}

static test_pipe open_perceptron(sl_pipe_options options, float dropout)
{
    options.seed = 5;
    return open_pipe(perceptron(dropout), new_mse_loss(), options, options.stages, 1);
}

/* One stage, one chunk, nothing recomputed: the unpiped model. */
static test_pipe open_unpiped(float dropout)
{
    return open_perceptron((sl_pipe_options){.stages = 1, .recompute = SL_RECOMPUTE_NEVER},
                           dropout);
}

static void check_close(const float *a, const float *b, int64_t count, double limit)
{
    double distance = relative_distance(a, b, count);
    if (!(distance <= limit))
        fail_msg("relative distance %g is above %g", distance, limit);
}

/* ---- Forward ---------------------------------------------------------------------------- */

static void output_is_the_unpiped_models_in_order(void **state)
{
    const int64_t rows[] = {12, 7, 5, 1}; /* even, uneven, and fewer than chunks */
    for (int i = 0; i < 4; i++)
        for (int stages = 1; stages <= 4; stages++) {
            SCOPED(data) d = random_data(rows[i]);
            SCOPED(test_pipe) alone = open_unpiped(0.5f);
            SCOPED(test_pipe) piped =
                open_perceptron((sl_pipe_options){.stages = stages, .chunks = 6}, 0.5f);
            SCOPED(sl_tensor) *expected = NULL, *output = NULL;
            check_ok(sl_pipe_forward(alone.pipe, &(sl_pipe_batch){.input = d.input}, &expected));
            check_ok(sl_pipe_forward(piped.pipe, &(sl_pipe_batch){.input = d.input}, &output));
            assert_true(sl_shape_equal(sl_tensor_shape(output), sl_tensor_shape(expected)));
            assert_ptr_equal(sl_tensor_device(output), piped.devices[stages - 1]);
            check_close(sl_tensor_f32(output), sl_tensor_f32(expected), rows[i] * CLASSES, 1e-6);
        }
}

/* Also where the model's last module is none that runs for these alone. */
static void last_position_is_that_of_all(void **state)
{
    enum { ROWS = 5, TIME = 4 };
    sl_shape in = sl_shape_3d(ROWS, TIME, FEATURES), one = sl_shape_3d(ROWS, 1, CLASSES);
    for (int stages = 1; stages <= 4; stages++)
        for (int linear = 0; linear < 2; linear++) {
            SCOPED(sl_device) *device = new_device(1);
            SCOPED(sl_tensor) *input = random_tensor(device, &in, 11);
            sl_module *model = perceptron(0), *relu;
            check_ok(sl_activation_create(SL_ACTIVATION_RELU, &relu));
            if (linear)
                sl_module_destroy(&relu);
            else
                check_ok(sl_sequential_append(&model, SL_OK, &relu));
            SCOPED(test_pipe) piped =
                open_pipe(model, new_mse_loss(), (sl_pipe_options){.stages = stages, .chunks = 3},
                          stages, 1);
            SCOPED(sl_tensor) *all = NULL, *last = NULL;
            sl_pipe_batch batch = {.input = input};
            check_ok(sl_pipe_forward(piped.pipe, &batch, &all));
            batch.last_position = true;
            check_ok(sl_pipe_forward(piped.pipe, &batch, &last));
            assert_true(sl_shape_equal(sl_tensor_shape(last), &one));
            for (int n = 0; n < ROWS; n++)
                check_close(sl_tensor_f32(last) + (ptrdiff_t)n * CLASSES,
                            sl_tensor_f32(all) + (ptrdiff_t)((n + 1) * TIME - 1) * CLASSES, CLASSES,
                            2e-6);
            double sum;
            int64_t terms;
            batch.targets = input;
            check_error(sl_pipe_evaluate(piped.pipe, &batch, &sum, &terms), SL_ERR_INVALID,
                        "the last position alone is for sl_pipe_forward");
        }
}

/* Gives, in each row, the sum of the rows of the input "x" that its micro-batch has. */
static sl_status reader_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    const sl_tensor *x;
    float sum = 0;
    SL_TRY(sl_pass_input(pass, "x", &x));
    assert_ptr_equal(sl_tensor_device(x), sl_pass_device(pass));
    for (int64_t i = 0; i < sl_tensor_count(x); i++)
        sum += sl_tensor_f32(x)[i];
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(*out)[i] = sum;
    return SL_OK;
}

static test_pipe open_readers(void)
{
    static const sl_module_ops ops = {.type = "Reader", .forward = reader_forward};
    sl_module *modules[2], *model;
    for (int i = 0; i < 2; i++)
        check_ok(sl_module_create(&ops, NULL, &modules[i]));
    check_ok(create_sequential(modules, 2, &model));
    return open_pipe(model, NULL, (sl_pipe_options){.stages = 2, .chunks = 5}, 2, 1);
}

static void check_readers(int64_t rows, int64_t x_rows, bool whole, const float *expected)
{
    static const float ones_to_ten[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    sl_shape shape = sl_shape_2d(rows, 1), x_shape = sl_shape_1d(x_rows);
    SCOPED(data) d = random_data(1);
    SCOPED(test_pipe) piped = open_readers();
    SCOPED(sl_tensor) *in = random_tensor(d.device, &shape, 1), *output = NULL;
    SCOPED(sl_tensor) *x = float_tensor(d.device, &x_shape, ones_to_ten);
    const sl_input inputs[] = {{.name = "y", .tensor = in}, {"x", x, whole}};
    check_ok(sl_pipe_forward(piped.pipe,
                             &(sl_pipe_batch){.input = in, .inputs = inputs, .input_count = 2},
                             &output));
    assert_memory_equal(sl_tensor_data(output), expected, (size_t)rows * sizeof *expected);
}

/* In 5 chunks. */
static void further_inputs_are_cut_as_the_first_one(void **state)
{
    check_readers(3, 3, false, (float[]){1, 2, 3});
    check_readers(3, 6, false, (float[]){1 + 2, 3 + 4, 5 + 6});
    check_readers(7, 7, false, (float[]){3, 3, 7, 7, 11, 11, 7}); /* 2, 2, 2 and 1 rows */
    check_readers(7, 4, true, (float[]){10, 10, 10, 10, 10, 10, 10});
}

static void further_inputs_that_do_not_fit_are_refused(void **state)
{
    sl_shape three = sl_shape_2d(3, 1), four = sl_shape_2d(4, 1);
    SCOPED(data) d = random_data(1);
    SCOPED(test_pipe) piped = open_readers();
    SCOPED(sl_tensor) *in = random_tensor(d.device, &three, 1);
    sl_tensor *output;
    SCOPED(sl_tensor) *x = random_tensor(d.device, &four, 2);
    sl_input inputs[] = {{"x", in, false}, {"x", x, false}};
    sl_pipe_batch batch = {.input = in, .inputs = inputs, .input_count = 2};
    check_error(sl_pipe_forward(piped.pipe, &batch, &output), SL_ERR_INVALID,
                "sl_pipe_forward: the input makes 3 micro-batches, but input \"x\" makes 4");
    inputs[1].whole = true;
    check_error(sl_pipe_forward(piped.pipe, &batch, &output), SL_ERR_INVALID,
                "the pass has two inputs \"x\"");
    inputs[1].tensor = NULL;
    check_error(sl_pipe_forward(piped.pipe, &batch, &output), SL_ERR_INVALID,
                "inputs[1] has no tensor");
    inputs[0].name = NULL;
    check_error(sl_pipe_forward(piped.pipe, &batch, &output), SL_ERR_INVALID,
                "inputs[0] has no name");
    batch.input_count = 0;
    check_error(sl_pipe_forward(piped.pipe, &batch, &output), SL_ERR_NOT_FOUND,
                "[stage 0 micro 0] 0 (Reader): the batch has no input \"x\"");
}

static void pipe_without_a_loss_runs_forward_only(void **state)
{
    SCOPED(data) d = random_data(4);
    SCOPED(test_pipe) piped = open_pipe(perceptron(0), NULL, (sl_pipe_options){.stages = 2}, 2, 1);
    sl_tensor *output;
    check_ok(sl_pipe_forward(piped.pipe, &(sl_pipe_batch){.input = d.input}, &output));
    sl_tensor_destroy(&output);
    double loss;
    int64_t terms;
    sl_pipe_batch batch = {.input = d.input, .targets = d.targets};
    check_error(sl_pipe_train(piped.pipe, &batch, &loss), SL_ERR_INVALID,
                "sl_pipe_train: the pipe was created without a loss");
    check_error(sl_pipe_evaluate(piped.pipe, &batch, &loss, &terms), SL_ERR_INVALID,
                "sl_pipe_evaluate: the pipe was created without a loss");
}

/* ---- Training --------------------------------------------------------------------------- */

static void check_training(const sl_pipe_options *options, int64_t rows)
{
    SCOPED(data) d = random_data(rows);
    SCOPED(test_pipe) alone = open_unpiped(0.3f), piped = open_perceptron(*options, 0.3f);
    for (uint64_t step = 0; step < 2; step++) { /* the second adds to the first's gradients */
        double expected = pipe_train(&alone, d.input, d.targets, step);
        double loss = pipe_train(&piped, d.input, d.targets, step);
        assert_true(fabs(loss - expected) <= 1e-6 * expected);
        check_pipe_is_empty(&piped);
    }
    int64_t count, same;
    float *expected = pipe_gradients(alone.pipe, &same),
          *gradients = pipe_gradients(piped.pipe, &count);
    assert_int_equal(count, same);
    check_close(gradients, expected, count, 1e-6);
    free(expected);
    free(gradients);
}

/* Without zeroing, gradients add up. That every cut has the bits of one stage is
 * test_pipe_invariance.c's. */
static void gradients_of_two_steps_are_the_unpiped_models(void **state)
{
    check_training(&(sl_pipe_options){.stages = 3, .chunks = 4, .schedule = "zb-h1"}, 10);
    check_training(&(sl_pipe_options){.stages = 7, .chunks = 3}, 9);
    check_training(&(sl_pipe_options){.stages = 2, .chunks = 3, .balance = (int[]){1, 6}}, 9);
    check_training(&(sl_pipe_options){.stages = 2, .chunks = 3, .balance = (int[]){6, 1}}, 9);
}

static void zero_grad_forgets_the_gradients(void **state)
{
    SCOPED(data) d = random_data(6);
    SCOPED(test_pipe) piped = open_perceptron((sl_pipe_options){.stages = 2, .chunks = 2}, 0);
    pipe_train(&piped, d.input, d.targets, 0);
    int64_t count;
    FREED float *once = pipe_gradients(piped.pipe, &count);
    sl_pipe_zero_grad(piped.pipe);
    pipe_train(&piped, d.input, d.targets, 0);
    FREED float *again = pipe_gradients(piped.pipe, &count);
    assert_memory_equal(once, again, (size_t)count * sizeof *once);
    sl_pipe_zero_grad(piped.pipe);
    FREED float *zero = pipe_gradients(piped.pipe, &count);
    for (int64_t i = 0; i < count; i++)
        assert_true(zero[i] == 0.0f);
}

static void batch_without_any_term_has_loss_nan_and_no_gradient(void **state)
{
    const int32_t ignored[4] = {-100, -100, -100, -100};
    SCOPED(data) d = random_data(4);
    SCOPED(test_pipe) piped = open_pipe(perceptron(0), new_cross_entropy(),
                                        (sl_pipe_options){.stages = 2, .chunks = 2}, 2, 1);
    sl_shape shape = sl_shape_1d(4);
    SCOPED(sl_tensor) *targets = integer_tensor(d.device, &shape, ignored);
    assert_true(isnan(pipe_train(&piped, d.input, targets, 0)));
    int64_t count;
    FREED float *gradients = pipe_gradients(piped.pipe, &count);
    for (int64_t i = 0; i < count; i++)
        assert_true(gradients[i] == 0.0f);
}

/* ---- Evaluation ------------------------------------------------------------------------- */

static void evaluation_has_no_dropout_and_gives_sum_and_terms(void **state)
{
    SCOPED(data) d = random_data(7);
    SCOPED(test_pipe) dropping = open_perceptron((sl_pipe_options){.stages = 3, .chunks = 4}, 0.9f);
    SCOPED(test_pipe) plain = open_unpiped(0);
    double expected = pipe_train(&plain, d.input, d.targets, 0), sum;
    int64_t terms;
    check_ok(sl_pipe_evaluate(dropping.pipe,
                              &(sl_pipe_batch){.input = d.input, .targets = d.targets}, &sum,
                              &terms));
    assert_int_equal(terms, 7 * CLASSES);
    assert_true(fabs(sum / (double)terms - expected) <= 1e-6 * expected);
    check_pipe_is_empty(&dropping);
}

/* Each row's are those of an evaluation of it alone, however the batch is cut. */
static void rows_have_losses_of_their_own(void **state)
{
    enum { ROWS = 7 };
    SCOPED(data) d = random_data(ROWS);
    SCOPED(test_pipe) piped = open_perceptron((sl_pipe_options){.stages = 3, .chunks = 4}, 0);
    double losses[ROWS + 1] = {[ROWS] = 42}, sum, one, all = 0;
    int64_t terms;
    check_ok(sl_pipe_evaluate(
        piped.pipe, &(sl_pipe_batch){.input = d.input, .targets = d.targets, .row_losses = losses},
        &sum, &terms));
    for (int row = 0; row < ROWS; row++) {
        SCOPED(sl_tensor) *input = NULL, *targets = NULL;
        check_ok(sli_tensor_narrow(d.input, row, 1, &input));
        check_ok(sli_tensor_narrow(d.targets, row, 1, &targets));
        check_ok(sl_pipe_evaluate(piped.pipe, &(sl_pipe_batch){.input = input, .targets = targets},
                                  &one, &terms));
        assert_true(fabs(losses[row] - one) <= 1e-6 * one);
        all += losses[row];
    }
    assert_true(fabs(all - sum) <= 1e-12 * sum);
    assert_true(losses[ROWS] == 42);
}

/* What a pipe with dropout 0.9 that recomputes everything does with a batch in evaluation mode. */
static void check_gradients_in_evaluation(sl_pipe_options options)
{
    SCOPED(data) d = random_data(10);
    options.chunks = 4;
    SCOPED(test_pipe) plain = open_perceptron(options, 0);
    options.recompute = SL_RECOMPUTE_ALWAYS;
    SCOPED(test_pipe) dropping = open_perceptron(options, 0.9f);
    sl_pipe_batch batch = {.input = d.input, .targets = d.targets, .evaluation = true};
    double loss, expected_loss = pipe_train(&plain, d.input, d.targets, 0);
    check_ok(sl_pipe_train(dropping.pipe, &batch, &loss));
    assert_true(loss == expected_loss);
    const sl_timeline_entry *entries;
    for (int i = sl_pipe_timeline(dropping.pipe, &entries) - 1; i >= 0; i--)
        assert_true(entries[i].action.kind == SL_ACTION_FORWARD ||
                    entries[i].action.kind == SL_ACTION_BACKWARD);
    int64_t count;
    float *expected = pipe_gradients(plain.pipe, &count),
          *gradients = pipe_gradients(dropping.pipe, &count);
    assert_memory_equal(gradients, expected, (size_t)count * sizeof *gradients);
    free(expected);
    free(gradients);
    check_pipe_is_empty(&dropping);
    assert_true(pipe_train(&dropping, d.input, d.targets, 0) != loss); /* its dropout is back */
}

static void gradients_flow_in_evaluation_without_dropout_or_recomputation(void **state)
{
    for (int stages = 1; stages <= 3; stages++) {
        check_gradients_in_evaluation((sl_pipe_options){.stages = stages});
        check_gradients_in_evaluation((sl_pipe_options){.stages = stages, .schedule = "1f1b"});
    }
}

static void inference_has_no_gradients_and_refuses_to_train(void **state)
{
    SCOPED(data) d = random_data(6);
    SCOPED(test_pipe) piped =
        open_perceptron((sl_pipe_options){.stages = 2, .chunks = 3, .inference = true}, 0);
    double sum, loss;
    int64_t terms;
    check_ok(sl_pipe_evaluate(piped.pipe, &(sl_pipe_batch){.input = d.input, .targets = d.targets},
                              &sum, &terms));
    sl_pipe_batch batch = {.input = d.input, .targets = d.targets};
    check_error(sl_pipe_train(piped.pipe, &batch, &loss), SL_ERR_INVALID,
                "sl_pipe_train: the pipe was created for inference");
    for (int stage = 0; stage < 2; stage++) {
        sl_memory_stats stats;
        sl_device_memory(piped.devices[stage], &stats);
        assert_int_equal(stats.peak_bytes[SL_MEMORY_GRADIENTS], 0);
    }
}

static void batches_that_make_no_sense_are_refused(void **state)
{
    SCOPED(data) d = random_data(6), other = random_data(5), none = random_data(0);
    SCOPED(test_pipe) piped = open_perceptron((sl_pipe_options){.stages = 2, .chunks = 3}, 0);
    double loss;
    sl_tensor *output;
    check_error(sl_pipe_train(piped.pipe,
                              &(sl_pipe_batch){.input = d.input, .targets = other.targets}, &loss),
                SL_ERR_INVALID, "sl_pipe_train: the input has 6 rows, the targets have 5");
    check_error(sl_pipe_train(piped.pipe,
                              &(sl_pipe_batch){.input = none.input, .targets = none.targets},
                              &loss),
                SL_ERR_INVALID, "sl_pipe_train: the input must have at least one row, got [0, 6]");
    check_error(sl_pipe_train(piped.pipe, &(sl_pipe_batch){.input = d.input}, &loss),
                SL_ERR_INVALID, "sl_pipe_train: the batch has no targets");
    check_error(sl_pipe_forward(piped.pipe, &(sl_pipe_batch){.input = none.input}, &output),
                SL_ERR_INVALID, "sl_pipe_forward: the input must have at least one row");
    assert_null(output);
}

/* ---- Functions on the stages' threads --------------------------------------------------- */

typedef struct visits {
    pthread_t threads[4];
    atomic_int count[4];
    int fails_at;
} visits;

static sl_status visit(int stage, void *arg)
{
    visits *v = arg;
    v->threads[stage] = pthread_self();
    atomic_fetch_add(&v->count[stage], 1);
    if (stage == v->fails_at)
        return sl_error(SL_ERR_IO, "no more of this");
    return SL_OK;
}

static void functions_run_once_on_each_stages_own_thread(void **state)
{
    SCOPED(test_pipe) piped = open_perceptron((sl_pipe_options){.stages = 4}, 0);
    visits v = {.fails_at = -1};
    check_ok(sl_pipe_run_on_stages(piped.pipe, visit, &v));
    for (int a = 0; a < 4; a++) {
        assert_int_equal(v.count[a], 1);
        assert_false(pthread_equal(v.threads[a], pthread_self()));
        for (int b = 0; b < a; b++)
            assert_false(pthread_equal(v.threads[a], v.threads[b]));
    }
    v.fails_at = 2;
    check_error(sl_pipe_run_on_stages(piped.pipe, visit, &v), SL_ERR_IO,
                "[stage 2] no more of this");
    v.fails_at = -1;
    check_ok(sl_pipe_run_on_stages(piped.pipe, visit, &v));
    assert_int_equal(v.count[3], 3);
}

/* The mean square of what the pipe gives for the data's targets. */
static double loss_of(test_pipe *in, const data *d, bool same_weights)
{
    double sum;
    int64_t terms;
    check_ok(sl_pipe_evaluate(
        in->pipe,
        &(sl_pipe_batch){.input = d->input, .targets = d->targets, .same_weights = same_weights},
        &sum, &terms));
    return sum;
}

static void weights_in_bf16_are_converted_again_unless_they_are_the_same(void **state)
{
    SCOPED(data) d = random_data(4);
    sl_pipe_options options = {.stages = 2, .chunks = 2, .precision = SL_PRECISION_BF16};
    SCOPED(test_pipe) piped = open_perceptron(options, 0);
    double before = loss_of(&piped, &d, false);
    sl_tensor *weight = sl_parameter_value(
        sl_parameter_set_get(sl_pipe_parameters(piped.pipe, 0), 0)); /* the first linear's */
    for (int64_t i = 0; i < sl_tensor_count(weight); i++)
        sl_tensor_f32(weight)[i] *= 2;
    assert_true(loss_of(&piped, &d, true) == before);
    double after = loss_of(&piped, &d, false);
    assert_true(after != before);
    assert_true(loss_of(&piped, &d, true) == after);
}

int pipe_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_the_unpiped_models_in_order),
        cmocka_unit_test(last_position_is_that_of_all),
        cmocka_unit_test(further_inputs_are_cut_as_the_first_one),
        cmocka_unit_test(further_inputs_that_do_not_fit_are_refused),
        cmocka_unit_test(pipe_without_a_loss_runs_forward_only),
        cmocka_unit_test(gradients_of_two_steps_are_the_unpiped_models),
        cmocka_unit_test(zero_grad_forgets_the_gradients),
        cmocka_unit_test(batch_without_any_term_has_loss_nan_and_no_gradient),
        cmocka_unit_test(evaluation_has_no_dropout_and_gives_sum_and_terms),
        cmocka_unit_test(rows_have_losses_of_their_own),
        cmocka_unit_test(gradients_flow_in_evaluation_without_dropout_or_recomputation),
        cmocka_unit_test(weights_in_bf16_are_converted_again_unless_they_are_the_same),
        cmocka_unit_test(inference_has_no_gradients_and_refuses_to_train),
        cmocka_unit_test(batches_that_make_no_sense_are_refused),
        cmocka_unit_test(functions_run_once_on_each_stages_own_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
