/* Training a model with skip connections, the U-Net of u_net.h, in a pipe.
 *
 * A stashed tensor goes straight from the stage that stashes it to the stage that pops it, and its
 * gradient straight back. The program trains the same model uncut and cut in two ways, and the
 * losses must be the same bits. The task: to take the noise out of waves. */
#include "u_net.h"

#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>

enum { ROWS = 64, WIDTH = 32, STEPS = 400, MAX_STAGES = 4 };

typedef struct trainer {
    sl_device_list *devices;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_tensor *noisy, *clean; /* f32 [ROWS, WIDTH] */
} trainer;

static sl_status open_trainer(trainer *at, const char *names, const char *schedule)
{
    SL_TRY(sl_device_list_create(names, &at->devices, NULL));
    SL_TRY(u_net_create(WIDTH, &at->model));
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
                                             .schedule = schedule,
                                             .seed = 1},
                          &at->pipe));
    SL_TRY(sl_pipe_optimizer_create(
        &(sl_pipe_optimizer_options){.pipe = at->pipe, .optimizer = {.kind = SL_OPTIMIZER_ADAMW}},
        &at->optimizer));
    sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    SL_TRY(sl_tensor_create(devices[0], SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &at->noisy));
    return sl_tensor_create(devices[0], SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &at->clean);
}

static void close_trainer(trainer *at)
{
    sl_tensor_destroy(&at->noisy);
    sl_tensor_destroy(&at->clean);
    sl_pipe_optimizer_destroy(&at->optimizer);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
    sl_device_list_destroy(&at->devices);
}

/* Waves of different lengths and phases, with noise of up to 0.5. */
static void write_waves(float *noisy, float *clean)
{
    unsigned noise = 1;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        int row = i / WIDTH, column = i % WIDTH;
        noise = noise * 1664525u + 1013904223u;
        clean[i] = sinf(0.1f * (float)(1 + row % 8) * (float)column + (float)row);
        noisy[i] = clean[i] + (float)(noise >> 8) / (float)(1 << 24) - 0.5f;
    }
}

static sl_status run(trainer *at, const char *devices, const char *schedule, double *losses)
{
    SL_TRY(open_trainer(at, devices, schedule));
    write_waves(sl_tensor_f32(at->noisy), sl_tensor_f32(at->clean));
    for (int step = 0; step < STEPS; step++) {
        sl_pipe_batch batch = {.input = at->noisy, .targets = at->clean, .step = (uint64_t)step};
        sl_pipe_zero_grad(at->pipe);
        SL_TRY(sl_pipe_train(at->pipe, &batch, &losses[step]));
        SL_TRY(sl_pipe_optimizer_step(at->optimizer, 0.005, 0, NULL));
    }
    printf("%-18s %-6s loss %.6f in the first step, %.6f in the last\n", devices, schedule,
           losses[0], losses[STEPS - 1]);
    return SL_OK;
}

static sl_status train(const char *devices, const char *schedule, double *losses)
{
    trainer at = {0};
    sl_status status = run(&at, devices, schedule, losses);
    close_trainer(&at);
    return status;
}

static sl_status check(void)
{
    static double whole[STEPS], cut[STEPS];
    SL_TRY(train("cpu:0", "gpipe", whole));
    const char *const schedules[] = {"1f1b", "zb-h1"};
    for (int i = 0; i < 2; i++) {
        SL_TRY(train("cpu:0,cpu:1,cpu:2", schedules[i], cut));
        for (int step = 0; step < STEPS; step++)
            if (whole[step] != cut[step])
                return sl_error(SL_ERR_NUMERIC, "the losses depend on how the model is cut");
    }
    if (!(whole[STEPS - 1] < whole[0] / 10))
        return sl_error(SL_ERR_NUMERIC, "the loss did not fall");
    return SL_OK;
}

int main(void)
{
    sl_status status = check();
    if (status != SL_OK)
        fprintf(stderr, "u_net: %s\n", sl_error_text());
    return status != SL_OK;
}
