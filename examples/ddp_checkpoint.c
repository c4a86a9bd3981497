/* Checkpoints under DistributedDataParallel: rank 0 saves model and optimizer, all wait for it, and
 * each loads what it needs and trains on. The optimizer's state is sharded over the ranks (ZeRO).
 *
 *   ddp_checkpoint [DIRECTORY]        default: toy-checkpoint; `sluice checkpoint show` lists it
 *
 * One rank writes, because all have the same weights; the others wait at the barrier. The device
 * map says where each tensor goes when it is loaded, as torch.load's map_location. */
#include "toy_model.h"

#include <stdio.h>

enum { RANKS = 2 };

typedef struct replica {
    sl_device *device; /* this rank's */
    sl_module *module;
    sl_loss *loss;
    sl_pipe *pipe;            /* of one stage */
    const sl_tensor *weights; /* of its first bucket */
    sl_ddp *ddp;
    sl_pipe_optimizer *optimizer;
} replica;

static sl_status open_replica(sl_group *group, sl_device_list *devices, replica *at)
{
    at->device = sl_device_list_get(devices, sl_group_rank(group));
    SL_TRY(toy_model_create(&at->module));
    SL_TRY(sl_mse_loss_create(&at->loss));
    sl_pipe_options options = {
        .model = at->module, .loss = at->loss, .stages = 1, .devices = &at->device, .seed = 7};
    SL_TRY(sl_pipe_create(&options, &at->pipe));
    at->weights = sl_parameter_set_bucket_values(sl_pipe_parameters(at->pipe, 0), 0);
    SL_TRY(sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = at->pipe}, &at->ddp));
    return sl_pipe_optimizer_create(
        &(sl_pipe_optimizer_options){.pipe = at->pipe,
                                     .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                                     .zero = at->ddp},
        &at->optimizer);
}

static void close_replica(replica *at)
{
    sl_pipe_optimizer_destroy(&at->optimizer);
    sl_ddp_destroy(&at->ddp);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->module);
}

/* ---- Saving and loading ---- */

/* Every rank calls it, since the optimizer's state is gathered. */
static sl_status save(const replica *at, const char *path, int rank)
{
    sl_checkpoint_part parts[2];
    SL_TRY(sl_pipe_get_state(at->pipe, &parts[0]));
    SL_TRY(sl_pipe_optimizer_get_state(at->optimizer, &parts[1]));
    if (rank > 0)
        return SL_OK;
    return sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = parts, .part_count = 2});
}

/* The device map: every tensor goes to this rank's device. */
static sl_device *own_device(void *context, const char *name)
{
    (void)name;
    return ((const replica *)context)->device;
}

/* A part's tensors come in the order in which they were saved: the parameters'. */
static sl_status load(replica *at, const char *path, int rank)
{
    sl_checkpoint_reader *reader;
    sl_checkpoint_tensor *loaded = NULL;
    size_t count = 0;
    SL_TRY(sl_checkpoint_open(path, &reader));
    sl_status status = sl_checkpoint_load(reader, "model", own_device, at, &loaded, &count);
    for (size_t i = 0; i < count && status == SL_OK; i++) {
        const sl_parameter *to = sl_parameter_set_get(sl_pipe_parameters(at->pipe, 0), (int)i);
        printf("[RANK %d]: loaded %s to %s\n", rank, loaded[i].name,
               sl_device_name(sl_tensor_device(loaded[i].tensor)));
        status = sl_tensor_copy(sl_parameter_value(to), loaded[i].tensor);
    }
    sl_checkpoint_tensors_destroy(&loaded, count);
    if (status == SL_OK)
        status = sl_pipe_optimizer_load(at->optimizer, reader);
    sl_checkpoint_close(&reader);
    return status;
}

/* ---- Training ---- */

static sl_status train_step(const replica *at)
{
    sl_tensor *input = NULL, *labels = NULL;
    double loss;
    sl_status status = toy_rows(at->device, TOY_IN, 1, &input);
    if (status == SL_OK)
        status = toy_rows(at->device, TOY_OUT, 100, &labels);
    sl_pipe_zero_grad(at->pipe);
    if (status == SL_OK)
        status = sl_ddp_train(at->ddp, &(sl_pipe_batch){.input = input, .targets = labels}, &loss);
    if (status == SL_OK)
        status = sl_pipe_optimizer_step(at->optimizer, 0.001, 0, NULL);
    sl_tensor_destroy(&input);
    sl_tensor_destroy(&labels);
    return status;
}

/* The step after loading is, to the bit, the one after saving. */
static sl_status save_load_and_train(sl_group *group, replica *at, const char *path)
{
    int rank = sl_group_rank(group);
    const float *weight = sl_tensor_f32(at->weights);
    float saved, later;
    SL_TRY(train_step(at)); /* gives the optimizer a state */
    SL_TRY(save(at, path, rank));
    SL_TRY(sl_group_barrier(group, NULL)); /* now it is there */
    saved = *weight;
    SL_TRY(train_step(at));
    later = *weight;
    SL_TRY(load(at, path, rank));
    SL_TRY(train_step(at));
    printf("[RANK %d]: first weight saved %.9g, a step later %.9g, from the checkpoint %.9g\n",
           rank, (double)saved, (double)later, (double)*weight);
    return SL_OK;
}

static sl_status demo_checkpoint(sl_group *group, void *path)
{
    replica at = {0};
    sl_device_list *devices;
    SL_TRY(sl_device_list_create("cpu:0,cpu:1", &devices, NULL)); /* one for each rank */
    sl_status status = open_replica(group, devices, &at);
    if (status == SL_OK)
        status = save_load_and_train(group, &at, path);
    close_replica(&at);
    sl_device_list_destroy(&devices);
    return status;
}

int main(int argc, char **argv)
{
    sl_status status =
        sl_spawn(demo_checkpoint, argc > 1 ? argv[1] : "toy-checkpoint", RANKS, NULL);
    if (status != SL_OK)
        fprintf(stderr, "ddp_checkpoint: %s\n", sl_error_text());
    return status != SL_OK;
}
