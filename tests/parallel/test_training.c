/* A training is what its objects are one by one, and its step their three calls. */
#include "sluice/layers.h"
#include "sluice/training.h"

#include "support/check.h"
#include "support/replicas.h"

#include <string.h>

enum { ROWS = 8, WIDTH = 4, STEPS = 3, WEIGHTS = WIDTH * WIDTH + WIDTH };

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    sl_module *layer;
    SL_TRY(sl_sequential_append(model, sl_linear_create(WIDTH, WIDTH, false, &layer), &layer));
    SL_TRY(sl_sequential_append(model, sl_activation_create(SL_ACTIVATION_GELU, &layer), &layer));
    SL_TRY(sl_sequential_append(model, sl_linear_create(WIDTH, WIDTH, false, &layer), &layer));
    return sl_mse_loss_create(loss);
}

/* Numbers that depend on the step and the shard; the targets are others than the input. */
static void fill(sl_tensor *rows, int seed)
{
    for (int i = 0; i < ROWS * WIDTH; i++)
        sl_tensor_f32(rows)[i] = (float)((7 * i + 13 * seed) % 11) / 11 - 0.5f;
}

static const sl_optimizer_options momentum = {.momentum = 0.9f};

static sl_training_options small_training(const char *devices)
{
    sl_training_tensor rows = {SL_F32, sl_shape_2d(ROWS, WIDTH)};
    return (sl_training_options){.create_model = create_model,
                                 .devices = devices,
                                 .pipe = {.chunks = 2, .seed = 3},
                                 .optimizer = momentum,
                                 .input = rows,
                                 .targets = rows};
}

typedef struct numbers {
    double loss[STEPS], norm[STEPS];
    float weights[WEIGHTS]; /* of the last stage */
} numbers;

static void read_weights(const sl_pipe *pipe, numbers *out)
{
    const sl_parameter_set *set = sl_pipe_parameters(pipe, sl_pipe_stages(pipe) - 1);
    memcpy(out->weights, sl_tensor_f32(sl_parameter_set_bucket_values(set, 0)),
           sizeof out->weights);
}

static void train_one_by_one(const sl_training *given, numbers *out)
{
    sl_module *model = NULL;
    sl_loss *loss = NULL;
    sl_device *devices[2];
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    check_ok(create_model(NULL, &model, &loss));
    for (int i = 0; i < 2; i++)
        check_ok(sl_device_create_cpu(1, &devices[i]));
    check_ok(sl_pipe_create(
        &(sl_pipe_options){
            .model = model, .loss = loss, .stages = 2, .devices = devices, .chunks = 2, .seed = 3},
        &pipe));
    check_ok(
        sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = pipe, .optimizer = momentum},
                                 &optimizer));
    for (int i = 0; i < STEPS; i++) {
        fill(given->input, i);
        fill(given->targets, i + 5);
        sl_pipe_zero_grad(pipe);
        check_ok(sl_pipe_train(pipe,
                               &(sl_pipe_batch){.input = given->input, .targets = given->targets},
                               &out->loss[i]));
        check_ok(sl_pipe_optimizer_step(optimizer, 0.1, 0.01, &out->norm[i]));
    }
    read_weights(pipe, out);
    sl_pipe_optimizer_destroy(&optimizer);
    sl_pipe_destroy(&pipe);
    sl_loss_destroy(&loss);
    sl_module_destroy(&model);
    for (int i = 0; i < 2; i++)
        sl_device_destroy(&devices[i]);
}

static void training_has_the_bits_of_its_objects_one_by_one(void **state)
{
    sl_training_options options = small_training("cpu:0,cpu:1");
    sl_training *training;
    static numbers got, expected;
    check_ok(sl_training_create(&options, &training));
    assert_int_equal(sl_pipe_stages(training->pipe), 2);
    for (int i = 0; i < STEPS; i++) {
        fill(training->input, i);
        fill(training->targets, i + 5);
        check_ok(sl_training_step(training,
                                  &(sl_pipe_batch){.input = training->input,
                                                   .targets = training->targets},
                                  0.1, 0.01, &got.loss[i], &got.norm[i]));
    }
    read_weights(training->pipe, &got);
    train_one_by_one(training, &expected);
    sl_training_destroy(&training);
    assert_null(training);
    assert_memory_equal(&got, &expected, sizeof got);
}

/* ---- Shards ----------------------------------------------------------------------------- */

enum { SHARDS = 3 };

/* Every rank trains on its shards of a step, of which each is a batch of its own. */
static sl_status train_shards(sl_group *group, void *arg)
{
    numbers *out = sl_group_rank(group) == 0 ? arg : &(numbers){0};
    sl_training_options options = small_training("cpu");
    options.ddp = (sl_ddp_options){.group = group, .shards = SHARDS};
    options.zero = true;
    SCOPED(sl_training) *training = NULL;
    sl_tensor *rows[2 * SHARDS] = {NULL};
    sl_pipe_batch batches[SHARDS];
    int first, count;
    SL_TRY(sl_training_create(&options, &training));
    sl_ddp_shards(training->ddp, &first, &count);
    for (int i = 0; i < 2 * count; i++)
        SL_TRY(sl_tensor_create(sl_pipe_device(training->pipe, 0), SL_MEMORY_ACTIVATIONS, SL_F32,
                                &options.input.shape, &rows[i]));
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < count; k++) {
            fill(rows[2 * k], SHARDS * i + first + k);
            fill(rows[2 * k + 1], i + 5);
            batches[k] = (sl_pipe_batch){.input = rows[2 * k], .targets = rows[2 * k + 1]};
        }
        SL_TRY(sl_training_step(training, batches, 0.1, 0, &out->loss[i], &out->norm[i]));
    }
    read_weights(training->pipe, out);
    for (int i = 0; i < 2 * SHARDS; i++)
        sl_tensor_destroy(&rows[i]);
    return SL_OK;
}

static void weights_do_not_depend_on_how_many_ranks_train_the_shards(void **state)
{
    static numbers one, several;
    check_ranks(train_shards, &one, 1);
    for (int ranks = 2; ranks <= SHARDS; ranks++) {
        check_ranks(train_shards, &several, ranks);
        assert_memory_equal(several.norm, one.norm, sizeof one.norm);
        assert_memory_equal(several.weights, one.weights, sizeof one.weights);
    }
}

/* ---- Errors ----------------------------------------------------------------------------- */

static sl_status fail_after_model(void *context, sl_module **model, sl_loss **loss)
{
    SL_TRY(create_model(context, model, loss));
    return sl_error(SL_ERR_INVALID, "no such model");
}

static void trainings_that_cannot_be_are_refused(void **state)
{
    sl_training *training;
    sl_training_options options = small_training("cpu:0,cpu:1");
    options.create_model = fail_after_model;
    check_error(sl_training_create(&options, &training), SL_ERR_INVALID, "no such model");
    assert_null(training);
    options.create_model = NULL;
    check_error(sl_training_create(&options, &training), SL_ERR_INVALID, "create_model is NULL");
    options = small_training("cpu:0,cpu:1");
    options.pipe.stages = 3;
    check_error(sl_training_create(&options, &training), SL_ERR_INVALID,
                "2 devices do not fit 3 stages");
    check_error(sl_training_create(NULL, &training), SL_ERR_INVALID, "options is NULL");
    check_error(sl_training_create(&options, NULL), SL_ERR_INVALID, "out is NULL");
    check_error(sl_training_step(NULL, &(sl_pipe_batch){0}, 0, 0, &(double){0}, NULL),
                SL_ERR_INVALID, "training is NULL");
}

int training_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_has_the_bits_of_its_objects_one_by_one),
        cmocka_unit_test(weights_do_not_depend_on_how_many_ranks_train_the_shards),
        cmocka_unit_test(trainings_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
