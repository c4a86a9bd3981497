/* Training a model of one's own with sl_train_run: a classifier that learns in which third of a
 * circle a point lies. The run saves checkpoints; started again, also after it was killed, it
 * resumes, and ends with the same bits.
 *
 *   classifier [DIRECTORY [EPOCHS]]        default: classifier-checkpoints, 10 */
#include "exit_code.h"

#include <sluice/sluice.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 60, BATCHES = 20, CLASSES = 3, HIDDEN = 16 };

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    sl_module *layer;
    (void)context;
    SL_TRY(sl_sequential_append(model, sl_linear_create(2, HIDDEN, false, &layer), &layer));
    SL_TRY(sl_sequential_append(model, sl_activation_create(SL_ACTIVATION_GELU, &layer), &layer));
    SL_TRY(sl_sequential_append(model, sl_linear_create(HIDDEN, CLASSES, false, &layer), &layer));
    return sl_cross_entropy_create(loss);
}

/* The points lie anywhere: there are as many batches as one wants. */
static sl_status count_batches(void *context, sl_split split, int64_t rows, int64_t *batches)
{
    (void)context, (void)rows;
    *batches = split == SL_SPLIT_TRAIN ? BATCHES : 1;
    return SL_OK;
}

static sl_status load_rows(void *context, const sl_train_rows *rows, sl_device *input_device,
                           sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    (void)context;
    sl_shape points = sl_shape_2d(rows->count, 2), classes = sl_shape_1d(rows->count);
    SL_TRY(sl_tensor_create(input_device, SL_MEMORY_WORKSPACE, SL_F32, &points, input));
    SL_TRY(sl_tensor_create(target_device, SL_MEMORY_WORKSPACE, SL_I32, &classes, targets));
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t point = sl_train_sample(rows, i);
        double angle = fmod((double)(point + 1000 * (int)rows->split) * 0.6180339887, 1);
        sl_tensor_f32(*input)[2 * i] = cosf(6.2831853f * (float)angle);
        sl_tensor_f32(*input)[2 * i + 1] = sinf(6.2831853f * (float)angle);
        sl_tensor_i32(*targets)[i] = (int32_t)(CLASSES * angle);
    }
    return SL_OK;
}

static sl_status print_resumed(void *context, const sl_checkpoint_event *event)
{
    (void)context;
    if (event->kind == SL_CHECKPOINT_RESUMED)
        printf("resumed after step %" PRId64 "\n", event->step);
    return SL_OK;
}

int main(int argc, char **argv)
{
    const sl_train_task task = {NULL, create_model, count_batches, load_rows, NULL, {NULL}};
    const sl_reporter reporter = {.checkpoint = print_resumed};
    const char *directory = argc > 1 ? argv[1] : "classifier-checkpoints";
    sl_run_result result;
    sl_train_options options;
    sl_train_options_default(&options);
    options.task = &task;
    options.batch_size = options.eval_batch_size = ROWS;
    options.epochs = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 10;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.lr.lr = 0.01;
    options.checkpoints =
        (sl_save_options){.directory = directory, .every_epoch = true, .resume = "auto"};
    sl_status status = sl_train_run(&options, &reporter, 1, &result);
    if (status == SL_OK)
        printf("after step %" PRId64 ": test loss %.17g\n", result.steps, result.test_loss);
    return exit_code("classifier", status);
}
