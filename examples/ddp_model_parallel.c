/* A model over two devices, in two replicas: model parallelism inside, data parallelism outside.
 *
 * A pipe of one chunk is a model whose first layers live on one device and whose last live on
 * another. Under DistributedDataParallel, each of its stages averages its gradients with the same
 * stage of the other replica. */
#include "exit_code.h"
#include "toy_model.h"

#include <stdio.h>

enum { RANKS = 2, STAGES = 2, STEPS = 5 };

/* ---- Training ---- */

static sl_status print_sizes(const sl_training *training, int rank)
{
    char in[SL_SHAPE_TEXT_BYTES], out[SL_SHAPE_TEXT_BYTES];
    sl_tensor *output;
    SL_TRY(sl_pipe_forward(training->pipe, &(sl_pipe_batch){.input = training->input}, &output));
    printf("[RANK %d]: input size %s output size %s\n", rank,
           sl_shape_text(sl_tensor_shape(training->input), in),
           sl_shape_text(sl_tensor_shape(output), out));
    sl_tensor_destroy(&output);
    return SL_OK;
}

static sl_status train(sl_training *training, int rank)
{
    sl_pipe_batch batch = {.input = training->input,
                           .targets = training->targets,
                           .first_sample = rank * TOY_ROWS};
    toy_fill(training->input, 1 + (uint32_t)rank);
    toy_fill(training->targets, 100 + (uint32_t)rank);
    for (; batch.step < STEPS; batch.step++) {
        double loss;
        SL_TRY(sl_training_step(training, &batch, 0.1, 0, &loss, NULL));
        printf("[RANK %d]: step %d, loss %.6f\n", rank, (int)batch.step, loss);
    }
    SL_TRY(print_sizes(training, rank));
    for (int s = 0; s < STAGES; s++) {
        sl_parameter_set *parameters = sl_pipe_parameters(training->pipe, s);
        printf("[RANK %d]: stage %d on %s, first weight %.9g\n", rank, s,
               sl_device_name(sl_pipe_device(training->pipe, s)),
               (double)sl_tensor_f32(sl_parameter_set_bucket_values(parameters, 0))[0]);
    }
    return SL_OK;
}

/* net1, a linear layer and ReLU, on the rank's first device; net2, a linear layer, on the second.
 */
static sl_status demo_model_parallel(sl_group *group, void *list)
{
    int rank = sl_group_rank(group);
    sl_device *devices[STAGES];
    for (int s = 0; s < STAGES; s++)
        devices[s] = sl_device_list_get(list, rank * STAGES + s);
    sl_training_options options = {.create_model = toy_create,
                                   .pipe = {.stages = STAGES,
                                            .devices = devices,
                                            .balance = (const int[]){2, 1},
                                            .recompute = SL_RECOMPUTE_NEVER},
                                   .ddp = {.group = group},
                                   .input = {SL_F32, sl_shape_2d(TOY_ROWS, TOY_IN)},
                                   .targets = {SL_F32, sl_shape_2d(TOY_ROWS, TOY_OUT)}};
    sl_training *training;
    SL_TRY(sl_training_create(&options, &training));
    sl_status status = train(training, rank);
    sl_training_destroy(&training);
    return status;
}

int main(void)
{
    sl_device_list *devices;
    sl_status status = sl_device_list_create("cpu:0,cpu:1,cpu:2,cpu:3", &devices, NULL);
    if (status == SL_OK)
        status = sl_spawn(demo_model_parallel, devices, RANKS, NULL);
    sl_device_list_destroy(&devices);
    return exit_code("ddp_model_parallel", status);
}
