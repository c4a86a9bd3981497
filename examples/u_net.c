/* Training a model with skip connections, the U-Net of u_net.h, in a pipe.
 *
 * A stashed tensor goes straight from the stage that stashes it to the stage that pops it, and its
 * gradient straight back. The program trains the same model uncut and cut in two ways, and the
 * losses must be the same bits. The task: to take the noise out of waves. */
#include "u_net.h"
#include "exit_code.h"

#include <sluice/training.h>

#include <math.h>
#include <stdio.h>

enum { ROWS = 64, WIDTH = 32, STEPS = 400 };

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    (void)context;
    SL_TRY(u_net_create(WIDTH, model));
    return sl_mse_loss_create(loss);
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

static sl_status run(sl_training *training, double *losses)
{
    sl_pipe_batch batch = {.input = training->input, .targets = training->targets};
    write_waves(sl_tensor_f32(training->input), sl_tensor_f32(training->targets));
    for (; batch.step < STEPS; batch.step++)
        SL_TRY(sl_training_step(training, &batch, 0.005, 0, &losses[batch.step], NULL));
    return SL_OK;
}

static sl_status train(const char *devices, const char *schedule, double *losses)
{
    sl_training_tensor waves = {SL_F32, sl_shape_2d(ROWS, WIDTH)};
    sl_training_options options = {.create_model = create_model,
                                   .devices = devices,
                                   .pipe = {.chunks = 4, .schedule = schedule, .seed = 1},
                                   .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                                   .input = waves,
                                   .targets = waves};
    sl_training *training;
    SL_TRY(sl_training_create(&options, &training));
    sl_status status = run(training, losses);
    sl_training_destroy(&training);
    if (status == SL_OK)
        printf("%-18s %-6s loss %.6f in the first step, %.6f in the last\n", devices, schedule,
               losses[0], losses[STEPS - 1]);
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
    return exit_code("u_net", check());
}
