/* Checkpoints under DistributedDataParallel: rank 0 saves, all wait for it, and each loads to its
 * own device and trains on.
 *
 *   ddp_checkpoint [DIRECTORY]        default: toy-checkpoint; `sluice checkpoint show` lists it
 *
 * One rank writes, because all have the same weights; the barrier keeps the others from reading a
 * checkpoint that is not there yet. The device map says to which device each tensor goes. */
#include "toy_model.h"

#include <stdio.h>

enum { RANKS = 2, MAX_PARAMETERS = 8 };

typedef struct replica {
    sl_device *device; /* this rank's */
    sl_module *module;
    sl_loss *loss;
    sl_pipe *pipe; /* of one stage */
    sl_parameter_set *parameters;
    const float *first_weight;
    sl_optimizer *optimizer;
    sl_ddp *ddp;
} replica;

static sl_status open_replica(sl_group *group, sl_device_list *devices, replica *at)
{
    at->device = sl_device_list_get(devices, sl_group_rank(group));
    SL_TRY(toy_model_create(&at->module));
    SL_TRY(sl_mse_loss_create(&at->loss));
    sl_pipe_options options = {
        .model = at->module, .loss = at->loss, .stages = 1, .devices = &at->device, .seed = 7};
    SL_TRY(sl_pipe_create(&options, &at->pipe));
    at->parameters = sl_pipe_parameters(at->pipe, 0);
    at->first_weight = sl_tensor_f32(sl_parameter_set_bucket_values(at->parameters, 0));
    SL_TRY(sl_optimizer_create(&(sl_optimizer_options){0}, at->parameters, &at->optimizer));
    return sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = at->pipe}, &at->ddp);
}

static void close_replica(replica *at)
{
    sl_ddp_destroy(&at->ddp);
    sl_optimizer_destroy(&at->optimizer);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->module);
}

/* ---- Saving and loading ---- */

/* The parameters under their names, where they lie: CPU devices' memory is host memory. */
static sl_status save(const replica *at, const char *path)
{
    sl_safetensors_item items[MAX_PARAMETERS];
    sl_checkpoint_part model = {.name = "model", .items = items};
    for (; model.count < (size_t)sl_parameter_set_count(at->parameters); model.count++) {
        const sl_parameter *parameter = sl_parameter_set_get(at->parameters, (int)model.count);
        items[model.count] = (sl_safetensors_item){sl_parameter_name(parameter), SL_F32,
                                                   *sl_parameter_shape(parameter),
                                                   sl_tensor_data(sl_parameter_value(parameter))};
    }
    return sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = &model, .part_count = 1});
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
        const sl_parameter *to = sl_parameter_set_get(at->parameters, (int)i);
        printf("[RANK %d]: loaded %s to %s\n", rank, loaded[i].name,
               sl_device_name(sl_tensor_device(loaded[i].tensor)));
        status = sl_tensor_copy(sl_parameter_value(to), loaded[i].tensor);
    }
    sl_checkpoint_tensors_destroy(&loaded, count);
    sl_checkpoint_close(&reader);
    return status;
}

/* ---- The step after it ---- */

static sl_status update(int stage, void *arg)
{
    (void)stage;
    return sl_optimizer_step(((const replica *)arg)->optimizer, 0.001, 1);
}

static sl_status train_step(replica *at, int rank, double *loss)
{
    sl_tensor *input = NULL, *labels = NULL;
    sl_status status = toy_rows(at->device, TOY_IN, 1 + (uint32_t)rank, &input);
    if (status == SL_OK)
        status = toy_rows(at->device, TOY_OUT, 100 + (uint32_t)rank, &labels);
    sl_pipe_zero_grad(at->pipe);
    if (status == SL_OK)
        status = sl_ddp_train(at->ddp, &(sl_pipe_batch){.input = input, .targets = labels}, loss);
    if (status == SL_OK)
        status = sl_pipe_run(at->pipe, update, at);
    sl_tensor_destroy(&input);
    sl_tensor_destroy(&labels);
    return status;
}

static sl_status save_load_and_train(sl_group *group, replica *at, const char *path)
{
    int rank = sl_group_rank(group);
    double loss, saved = *at->first_weight;
    if (rank == 0)
        SL_TRY(save(at, path));
    SL_TRY(sl_group_barrier(group, NULL)); /* now it is there */
    SL_TRY(sl_tensor_zero(sl_parameter_set_bucket_values(at->parameters, 0)));
    SL_TRY(load(at, path, rank));
    printf("[RANK %d]: first weight saved %.9g loaded %.9g\n", rank, saved, *at->first_weight);
    SL_TRY(train_step(at, rank, &loss));
    printf("[RANK %d]: loss %.6f first weight then %.9g\n", rank, loss, *at->first_weight);
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
