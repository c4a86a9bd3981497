/* A model over two devices, in two replicas: model parallelism inside, data parallelism outside.
 *
 * A pipe of one chunk is a model whose first layers live on one device and whose last live on
 * another. Under DistributedDataParallel, each of its parts averages its gradients with the same
 * part of the other replica. */
#include <sluice/sluice.h>

#include <stdio.h>

enum { RANKS = 2, STAGES = 2, ROWS = 20, STEPS = 5 };

typedef struct replica {
    sl_device *devices[STAGES]; /* this rank's */
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_ddp *ddp;
    sl_optimizer *optimizers[STAGES];
} replica;

/* net1 = Linear(10, 10) and ReLU on the first device, net2 = Linear(10, 5) on the second. */
static sl_status open_replica(sl_group *group, sl_device_list *devices, replica *at)
{
    sl_module *layers[3];
    for (int s = 0; s < STAGES; s++)
        at->devices[s] = sl_device_list_get(devices, sl_group_rank(group) * STAGES + s);
    SL_TRY(sl_linear_create(10, 10, false, &layers[0]));
    SL_TRY(sl_activation_create(SL_ACTIVATION_RELU, &layers[1]));
    SL_TRY(sl_linear_create(10, 5, false, &layers[2]));
    SL_TRY(sl_sequential_create(layers, 3, &at->model));
    SL_TRY(sl_mse_loss_create(&at->loss));
    sl_pipe_options options = {.model = at->model,
                               .loss = at->loss,
                               .stages = STAGES,
                               .devices = at->devices,
                               .balance = (const int[]){2, 1},
                               .checkpoint = SL_CHECKPOINT_NEVER};
    SL_TRY(sl_pipe_create(&options, &at->pipe));
    for (int s = 0; s < STAGES; s++)
        SL_TRY(sl_optimizer_create(&(sl_optimizer_options){.kind = SL_OPTIMIZER_SGD},
                                   sl_pipe_parameters(at->pipe, s), &at->optimizers[s]));
    return sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = at->pipe}, &at->ddp);
}

static void close_replica(replica *at)
{
    sl_ddp_destroy(&at->ddp);
    for (int s = 0; s < STAGES; s++)
        sl_optimizer_destroy(&at->optimizers[s]);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
}

/* ---- Training ---- */

static sl_status random_rows(sl_device *device, int64_t width, uint32_t seed, sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(ROWS, width);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    for (int64_t i = 0; i < ROWS * width; i++) {
        seed = seed * 1664525u + 1013904223u;
        sl_tensor_f32(*out)[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return SL_OK;
}

static sl_status update_stage(int stage, void *arg)
{
    const replica *at = arg;
    return sl_optimizer_step(at->optimizers[stage], 0.1, 1);
}

static sl_status train(replica *at, int rank)
{
    sl_tensor *input = NULL, *labels = NULL;
    sl_status status = random_rows(at->devices[0], 10, 1 + (uint32_t)rank, &input);
    if (status == SL_OK)
        status = random_rows(at->devices[0], 5, 100 + (uint32_t)rank, &labels);
    for (uint64_t step = 0; step < STEPS && status == SL_OK; step++) {
        double loss = 0;
        sl_pipe_batch batch = {.input = input,
                               .targets = labels,
                               .step = step,
                               .first_sample = rank * ROWS};
        sl_pipe_zero_grad(at->pipe);
        status = sl_ddp_train(at->ddp, &batch, &loss);
        if (status == SL_OK)
            status = sl_pipe_run(at->pipe, update_stage, at);
        if (status == SL_OK)
            printf("[RANK %d]: step %d, loss %.6f\n", rank, (int)step, loss);
    }
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
        printf("[RANK %d]: part %d on %s, first weight %.9g\n", rank, s,
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
