/* Training a layer of one's own, the RMSNorm of rms_norm.h, in a pipe like any other layer.
 *
 * Everything that holds for the library's layers holds for it: the program trains the same model
 * twice, uncut and cut with recomputation, and the losses must be the same bits. */
#include "rms_norm.h"

#include <sluice/sluice.h>

#include <stdio.h>

/* How far is a point from the origin? */
enum { ROWS = 64, WIDTH = 32, STEPS = 300, MAX_STAGES = 3 };

typedef struct trainer {
    sl_device_list *devices;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_tensor *points, *targets; /* f32 [ROWS, 2] and [ROWS, 1] */
} trainer;

static sl_status create_model(sl_module **out)
{
    sl_module *next;
    SL_TRY(sl_sequential_append(out, sl_linear_create(2, WIDTH, false, &next), &next));
    SL_TRY(sl_sequential_append(out, rms_norm_create(WIDTH, &next), &next));
    SL_TRY(sl_sequential_append(out, sl_activation_create(SL_ACTIVATION_RELU, &next), &next));
    SL_TRY(sl_sequential_append(out, sl_linear_create(WIDTH, WIDTH, false, &next), &next));
    SL_TRY(sl_sequential_append(out, rms_norm_create(WIDTH, &next), &next));
    return sl_sequential_append(out, sl_linear_create(WIDTH, 1, false, &next), &next);
}

static sl_status open_trainer(trainer *at, const char *names, sl_recompute recompute)
{
    SL_TRY(sl_device_list_create(names, &at->devices, NULL));
    SL_TRY(create_model(&at->model));
    SL_TRY(sl_mse_loss_create(&at->loss));
    int stages = sl_device_list_count(at->devices);
    sl_device *devices[MAX_STAGES];
    for (int s = 0; s < stages; s++)
        devices[s] = sl_device_list_get(at->devices, s);
    SL_TRY(sl_pipe_create(&(sl_pipe_options){.model = at->model,
                                             .loss = at->loss,
                                             .stages = stages,
                                             .devices = devices,
                                             .chunks = 4,
                                             .recompute = recompute,
                                             .seed = 1},
                          &at->pipe));
    SL_TRY(sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = at->pipe,
                                                                 .optimizer = {.momentum = 0.9f}},
                                    &at->optimizer));
    sl_shape points = sl_shape_2d(ROWS, 2), targets = sl_shape_2d(ROWS, 1);
    SL_TRY(sl_tensor_create(devices[0], SL_MEMORY_ACTIVATIONS, SL_F32, &points, &at->points));
    return sl_tensor_create(devices[0], SL_MEMORY_ACTIVATIONS, SL_F32, &targets, &at->targets);
}

static void close_trainer(trainer *at)
{
    sl_tensor_destroy(&at->points);
    sl_tensor_destroy(&at->targets);
    sl_pipe_optimizer_destroy(&at->optimizer);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
    sl_device_list_destroy(&at->devices);
}

static void write_points(float *points, float *targets)
{
    for (int row = 0; row < ROWS; row++) { /* a grid over [-1, 1) x [-1, 1) */
        int column = row % 8, line = row / 8;
        float x = (float)column / 4 - 1, y = (float)line / 4 - 1;
        points[2 * row] = x;
        points[2 * row + 1] = y;
        targets[row] = sqrtf(x * x + y * y);
    }
}

static sl_status run(trainer *at, const char *devices, sl_recompute recompute, double *losses)
{
    SL_TRY(open_trainer(at, devices, recompute));
    write_points(sl_tensor_f32(at->points), sl_tensor_f32(at->targets));
    for (int step = 0; step < STEPS; step++) {
        sl_pipe_batch batch = {.input = at->points, .targets = at->targets, .step = (uint64_t)step};
        sl_pipe_zero_grad(at->pipe);
        SL_TRY(sl_pipe_train(at->pipe, &batch, &losses[step]));
        SL_TRY(sl_pipe_optimizer_step(at->optimizer, 0.02, 0, NULL));
    }
    printf("%-18s %-12s loss %.6f in the first step, %.6f in the last\n", devices,
           sl_recompute_name(recompute), losses[0], losses[STEPS - 1]);
    return SL_OK;
}

static sl_status train(const char *devices, sl_recompute recompute, double *losses)
{
    trainer at = {0};
    sl_status status = run(&at, devices, recompute, losses);
    close_trainer(&at);
    return status;
}

/* Its backward is that of differences of its forward, and all that it says of itself is true. */
static sl_status check_layer(void)
{
    sl_module *norm;
    const sl_module_check_options tried = {.input = sl_shape_2d(3, 5),
                                           .precision = SL_PRECISION_BF16};
    SL_TRY(rms_norm_create(5, &norm));
    sl_status status = sl_module_check(norm, &tried);
    sl_module_destroy(&norm);
    return status;
}

static sl_status check(void)
{
    static double whole[STEPS], cut[STEPS];
    SL_TRY(check_layer());
    SL_TRY(train("cpu:0", SL_RECOMPUTE_NEVER, whole));
    SL_TRY(train("cpu:0,cpu:1,cpu:2", SL_RECOMPUTE_ALWAYS, cut));
    for (int step = 0; step < STEPS; step++)
        if (whole[step] != cut[step])
            return sl_error(SL_ERR_NUMERIC, "the losses depend on how the model is cut");
    if (!(whole[STEPS - 1] < whole[0] / 100))
        return sl_error(SL_ERR_NUMERIC, "the loss did not fall");
    return SL_OK;
}

int main(void)
{
    sl_status status = check();
    if (status != SL_OK)
        fprintf(stderr, "own_layer: %s\n", sl_error_text());
    return status != SL_OK;
}
