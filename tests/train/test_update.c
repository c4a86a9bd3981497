#include "train/update.h"

#include "train/small_model.h"

#include <math.h>

enum { ROWS = 5, TIME = 7 };

/* One backward, so that every parameter has a gradient. */
static void make_gradients(test_pipe *pipe)
{
    sl_tokens tokens = small_tokens(2 * ROWS * TIME);
    sl_shape shape = sl_shape_2d(ROWS, TIME);
    sl_tensor *in, *targets;
    check_ok(sl_tensor_create(pipe->devices[0], SL_MEMORY_WORKSPACE, SL_I32, &shape, &in));
    check_ok(sl_tensor_create(pipe->devices[0], SL_MEMORY_WORKSPACE, SL_I32, &shape, &targets));
    check_ok(sl_tensor_write(in, tokens.ids));
    check_ok(sl_tensor_write(targets, tokens.ids + ROWS * TIME));
    sl_pipe_zero_grad(pipe->pipe);
    pipe_train(pipe, in, targets, 0);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&targets);
    sl_tokens_free(&tokens);
}

static double norm_of(int stages)
{
    double norm;
    sli_update *update;
    test_pipe pipe = open_small_model(stages, 4);
    make_gradients(&pipe);
    check_ok(sli_update_create(pipe.pipe, &(sl_optimizer_options){0}, NULL, &update));
    check_ok(sli_update_norm(update, &norm));
    int64_t count;
    float *gradients = pipe_gradients(&pipe, &count);
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += (double)gradients[i] * gradients[i];
    assert_true(fabs(norm / sqrt(squares) - 1) < 1e-6);
    free(gradients);
    sli_update_destroy(&update);
    close_pipe(&pipe);
    return norm;
}

static void norm_is_over_all_stages_and_the_same_bits_for_each_cut(void **state)
{
    (void)state;
    double one = norm_of(1);
    assert_true(one > 0);
    assert_true(norm_of(2) == one);
    assert_true(norm_of(3) == one);
}

/* The largest difference between what a step did and value - lr * scale * gradient. */
static void check_step(int stages, double clip)
{
    const double lr = 0.5;
    double norm;
    int64_t count;
    sli_update *update;
    test_pipe pipe = open_small_model(stages, 4);
    make_gradients(&pipe);
    check_ok(sli_update_create(pipe.pipe, &(sl_optimizer_options){0}, NULL, &update));
    check_ok(sli_update_norm(update, &norm));
    float *before = pipe_values(&pipe, &count), *gradients = pipe_gradients(&pipe, &count);
    check_ok(sli_update_apply(update, lr, norm, clip));
    float *after = pipe_values(&pipe, &count), *unscaled = pipe_gradients(&pipe, &count);
    double scale = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
    for (int64_t i = 0; i < count; i++) {
        assert_true(fabs(after[i] - (before[i] - lr * scale * gradients[i])) < 1e-6);
        assert_true(unscaled[i] == gradients[i]); /* clipping does not write */
    }
    free(before);
    free(gradients);
    free(after);
    free(unscaled);
    sli_update_destroy(&update);
    close_pipe(&pipe);
}

static void step_is_clipped_by_the_norm_of_all_stages(void **state)
{
    (void)state;
    for (int stages = 1; stages <= 3; stages++) {
        check_step(stages, 0);
        check_step(stages, 0.01);
        check_step(stages, 1e6);
    }
}

static void impossible_optimizer_is_refused(void **state)
{
    (void)state;
    sli_update *update;
    test_pipe pipe = open_small_model(2, 4);
    check_error(sli_update_create(pipe.pipe, &(sl_optimizer_options){.nesterov = true}, NULL,
                                  &update),
                SL_ERR_INVALID, "Nesterov momentum requires a momentum");
    assert_null(update);
    close_pipe(&pipe);
}

int update_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_is_over_all_stages_and_the_same_bits_for_each_cut),
        cmocka_unit_test(step_is_clipped_by_the_norm_of_all_stages),
        cmocka_unit_test(impossible_optimizer_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
