/* A model over two devices, in two replicas: model parallelism inside, data parallelism outside.
 *
 * A pipe of one chunk is a model whose first layers live on one device and whose last live on
 * another. Under DistributedDataParallel, each of its stages averages its gradients with the same
 * stage of the other replica. */
#include "toy_model.h"

#include <stdio.h>

enum { RANKS = 2, STAGES = 2, STEPS = 5 };

typedef struct replica {
    sl_device *devices[STAGES]; /* this rank's */
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_ddp *ddp;
    sl_pipe_optimizer *optimizer;
} replica;

/* net1, a linear layer and ReLU, on the first device; net2, a linear layer, on the second. */
static sl_status open_replica(sl_group *group, sl_device_list *devices, replica *at)
{
    for (int s = 0; s < STAGES; s++)
        at->devices[s] = sl_device_list_get(devices, sl_group_rank(group) * STAGES + s);
    SL_TRY(toy_model_create(&at->model));
    SL_TRY(sl_mse_loss_create(&at->loss));
    sl_pipe_options options = {.model = at->model,
                               .loss = at->loss,
                               .stages = STAGES,
                               .devices = at->devices,
                               .balance = (const int[]){2, 1},
                               .recompute = SL_RECOMPUTE_NEVER};
    SL_TRY(sl_pipe_create(&options, &at->pipe));
    SL_TRY(
        sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = at->pipe}, &at->optimizer));
    return sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = at->pipe}, &at->ddp);
}

static void close_replica(replica *at)
{
    sl_ddp_destroy(&at->ddp);
    sl_pipe_optimizer_destroy(&at->optimizer);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
}

/* ---- Training ---- */

static sl_status print_sizes(replica *at, int rank, const sl_tensor *input)
{
    char in[SL_SHAPE_TEXT_BYTES], out[SL_SHAPE_TEXT_BYTES];
    sl_tensor *output;
    SL_TRY(sl_pipe_forward(at->pipe, &(sl_pipe_batch){.input = input}, &output));
    printf("[RANK %d]: input size %s output size %s\n", rank,
           sl_shape_text(sl_tensor_shape(input), in), sl_shape_text(sl_tensor_shape(output), out));
    sl_tensor_destroy(&output);
    return SL_OK;
}

static sl_status train(replica *at, int rank)
{
    sl_tensor *input = NULL, *labels = NULL;
    sl_status status = toy_rows(at->devices[0], TOY_IN, 1 + (uint32_t)rank, &input);
    if (status == SL_OK)
        status = toy_rows(at->devices[0], TOY_OUT, 100 + (uint32_t)rank, &labels);
    for (uint64_t step = 0; step < STEPS && status == SL_OK; step++) {
        double loss = 0;
        sl_pipe_batch batch = {.input = input,
                               .targets = labels,
                               .step = step,
                               .first_sample = rank * TOY_ROWS};
        sl_pipe_zero_grad(at->pipe);
        status = sl_ddp_train(at->ddp, &batch, &loss);
        if (status == SL_OK)
            status = sl_pipe_optimizer_step(at->optimizer, 0.1, 0, NULL);
        if (status == SL_OK)
            printf("[RANK %d]: step %d, loss %.6f\n", rank, (int)step, loss);
    }
    if (status == SL_OK)
        status = print_sizes(at, rank, input);
    sl_tensor_destroy(&input);
    sl_tensor_destroy(&labels);
    return status;
}

static sl_status demo_model_parallel(sl_group *group, void *devices)
{
    replica at = {0};
    int rank = sl_group_rank(group);
    sl_status status = open_replica(group, devices, &at);
    if (status == SL_OK)
        status = train(&at, rank);
    for (int s = 0; s < STAGES && status == SL_OK; s++) {
        const sl_tensor *weights =
            sl_parameter_set_bucket_values(sl_pipe_parameters(at.pipe, s), 0);
        printf("[RANK %d]: stage %d on %s, first weight %.9g\n", rank, s,
               sl_device_name(at.devices[s]), (double)sl_tensor_f32(weights)[0]);
    }
    close_replica(&at);
    return status;
}

int main(void)
{
    sl_device_list *devices;
    sl_status status = sl_device_list_create("cpu:0,cpu:1,cpu:2,cpu:3", &devices, NULL);
    if (status == SL_OK)
        status = sl_spawn(demo_model_parallel, devices, RANKS, NULL);
    if (status != SL_OK)
        fprintf(stderr, "ddp_model_parallel: %s\n", sl_error_text());
    sl_device_list_destroy(&devices);
    return status != SL_OK;
}
