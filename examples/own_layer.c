/* Training a layer of one's own, the RMSNorm of rms_norm.h, in a pipe like any other layer.
 *
 * Everything that holds for the library's layers holds for it: the program trains the same model
 * twice, uncut and cut with recomputation, and the losses must be the same bits. */
#include "exit_code.h"
#include "rms_norm.h"

#include <sluice/sluice.h>

#include <stdio.h>

/* How far is a point from the origin? */
enum { ROWS = 64, WIDTH = 32, STEPS = 300, MOST_PARAMETERS = 16 };

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    sl_module *next;
    (void)context;
    SL_TRY(sl_sequential_append(model, sl_linear_create(2, WIDTH, false, &next), &next));
    SL_TRY(sl_sequential_append(model, rms_norm_create(WIDTH, &next), &next));
    SL_TRY(sl_sequential_append(model, sl_activation_create(SL_ACTIVATION_RELU, &next), &next));
    SL_TRY(sl_sequential_append(model, sl_linear_create(WIDTH, WIDTH, false, &next), &next));
    SL_TRY(sl_sequential_append(model, rms_norm_create(WIDTH, &next), &next));
    SL_TRY(sl_sequential_append(model, sl_linear_create(WIDTH, 1, false, &next), &next));
    return sl_mse_loss_create(loss);
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

static sl_status run(sl_training *training, double *losses)
{
    sl_pipe_batch batch = {.input = training->input, .targets = training->targets};
    write_points(sl_tensor_f32(training->input), sl_tensor_f32(training->targets));
    for (; batch.step < STEPS; batch.step++)
        SL_TRY(sl_training_step(training, &batch, 0.02, 0, &losses[batch.step], NULL));
    return SL_OK;
}

/* All parameters go to a file that PyTorch can open, and come back from it. */
static sl_status save_and_load(const sl_pipe *pipe, const char *path)
{
    sl_safetensors_item items[MOST_PARAMETERS];
    size_t count = 0;
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set) && count < MOST_PARAMETERS; i++) {
            const sl_parameter *parameter = sl_parameter_set_get(set, i);
            if (sl_parameter_get_kind(parameter) == SL_PARAMETER_TRAINED)
                items[count++] =
                    (sl_safetensors_item){sl_parameter_name(parameter), SL_F32,
                                          *sl_parameter_shape(parameter),
                                          sl_tensor_data(sl_parameter_value(parameter))};
        }
    }
    sl_status status = sl_safetensors_save(path, items, count, NULL, 0);
    if (status == SL_OK)
        status = sl_safetensors_load(path, items, count);
    remove(path);
    return status;
}

static sl_status train(const char *devices, sl_recompute recompute, double *losses)
{
    sl_training_options options = {.create_model = create_model,
                                   .devices = devices,
                                   .pipe = {.chunks = 4, .recompute = recompute, .seed = 1},
                                   .optimizer = {.momentum = 0.9f},
                                   .input = {SL_F32, sl_shape_2d(ROWS, 2)},
                                   .targets = {SL_F32, sl_shape_2d(ROWS, 1)}};
    sl_training *training;
    SL_TRY(sl_training_create(&options, &training));
    sl_status status = run(training, losses);
    if (status == SL_OK)
        status = save_and_load(training->pipe, "own_layer.safetensors");
    sl_training_destroy(&training);
    if (status == SL_OK)
        printf("%-18s %-12s loss %.6f in the first step, %.6f in the last\n", devices,
               sl_recompute_name(recompute), losses[0], losses[STEPS - 1]);
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
    return exit_code("own_layer", check());
}
