/* Training a model of one's own with checkpoints: a classifier that learns in which third of a
 * circle a point lies. It saves model, optimizer and step; started again, it goes on from there to
 * the same bits.
 *
 *   classifier [DIRECTORY [STEPS]]        default: classifier-checkpoint, 200 */
#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 60, CLASSES = 3, HIDDEN = 16, SAVE_EVERY = 50 };

typedef struct trainer {
    sl_device *device;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_tensor *points, *classes; /* f32 [ROWS, 2], i32 [ROWS] */
} trainer;

static sl_status open_trainer(trainer *at)
{
    sl_module *layer;
    sl_shape points = sl_shape_2d(ROWS, 2), classes = sl_shape_1d(ROWS);
    SL_TRY(sl_device_create_cpu(1, &at->device));
    SL_TRY(sl_sequential_append(&at->model, sl_linear_create(2, HIDDEN, false, &layer), &layer));
    SL_TRY(
        sl_sequential_append(&at->model, sl_activation_create(SL_ACTIVATION_GELU, &layer), &layer));
    SL_TRY(
        sl_sequential_append(&at->model, sl_linear_create(HIDDEN, CLASSES, false, &layer), &layer));
    SL_TRY(sl_cross_entropy_create(&at->loss));
    sl_pipe_options pipe = {.model = at->model,
                            .loss = at->loss,
                            .stages = 1,
                            .devices = &at->device};
    SL_TRY(sl_pipe_create(&pipe, &at->pipe));
    sl_pipe_optimizer_options adamw = {.pipe = at->pipe, .optimizer = {.kind = SL_OPTIMIZER_ADAMW}};
    SL_TRY(sl_pipe_optimizer_create(&adamw, &at->optimizer));
    SL_TRY(sl_tensor_create(at->device, SL_MEMORY_ACTIVATIONS, SL_F32, &points, &at->points));
    SL_TRY(sl_tensor_create(at->device, SL_MEMORY_ACTIVATIONS, SL_I32, &classes, &at->classes));
    for (int i = 0; i < ROWS; i++) {
        sl_tensor_f32(at->points)[2 * i] = cosf(6.2831853f * (float)i / ROWS);
        sl_tensor_f32(at->points)[2 * i + 1] = sinf(6.2831853f * (float)i / ROWS);
        sl_tensor_i32(at->classes)[i] = i * CLASSES / ROWS;
    }
    return SL_OK;
}

static void close_trainer(trainer *at)
{
    sl_tensor_destroy(&at->points);
    sl_tensor_destroy(&at->classes);
    sl_pipe_optimizer_destroy(&at->optimizer);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
    sl_device_destroy(&at->device);
}

static sl_status save(const trainer *at, const char *path, int step)
{
    char state[32];
    sl_checkpoint_part parts[2];
    sl_checkpoint_contents contents = {.parts = parts, .part_count = 2, .state = state};
    snprintf(state, sizeof state, "{\"step\": %d}", step);
    SL_TRY(sl_pipe_get_state(at->pipe, &parts[0]));
    SL_TRY(sl_pipe_optimizer_get_state(at->optimizer, &parts[1]));
    return sl_checkpoint_save(path, &contents);
}

static sl_status resume(const trainer *at, const char *path, double *step)
{
    sl_checkpoint_reader *from;
    sl_checkpoint_part model;
    sl_status status = sl_checkpoint_open(path, &from);
    if (status == SL_ERR_NOT_FOUND)
        return SL_OK; /* a first run */
    SL_TRY(status);
    status = sl_pipe_get_state(at->pipe, &model);
    if (status == SL_OK)
        status = sl_checkpoint_read(from, model.name, model.items, model.count);
    if (status == SL_OK)
        status = sl_pipe_optimizer_load(at->optimizer, from);
    if (status == SL_OK)
        status = sl_checkpoint_number(from, "step", step);
    sl_checkpoint_close(&from);
    return status;
}

static sl_status train(const trainer *at, const char *path, int steps)
{
    double start = 0, loss = 0;
    SL_TRY(resume(at, path, &start));
    for (int step = (int)start + 1; step <= steps; step++) {
        sl_pipe_batch batch = {.input = at->points, .targets = at->classes, .step = (uint64_t)step};
        sl_pipe_zero_grad(at->pipe);
        SL_TRY(sl_pipe_train(at->pipe, &batch, &loss));
        SL_TRY(sl_pipe_optimizer_step(at->optimizer, 0.01, 1, NULL));
        if (step % SAVE_EVERY == 0 || step == steps)
            SL_TRY(save(at, path, step));
    }
    printf("from step %d to %d: loss %.17g\n", (int)start, steps, loss);
    return SL_OK;
}

int main(int argc, char **argv)
{
    trainer at = {NULL};
    sl_status status = open_trainer(&at);
    if (status == SL_OK)
        status = train(&at, argc > 1 ? argv[1] : "classifier-checkpoint",
                       argc > 2 ? (int)strtol(argv[2], NULL, 10) : 200);
    if (status != SL_OK)
        fprintf(stderr, "classifier: %s\n", sl_error_text());
    close_trainer(&at);
    return status != SL_OK;
}
