/* Checkpoints under DistributedDataParallel: rank 0 saves model and optimizer, all wait for it, and
 * each loads what it needs and trains on. The optimizer's state is sharded over the ranks (ZeRO).
 *
 *   ddp_checkpoint [DIRECTORY]        default: toy-checkpoint; `sluice checkpoint show` lists it
 *
 * One rank writes, because all have the same weights; the others wait at the barrier. The device
 * map says where each tensor goes when it is loaded, as torch.load's map_location. */
#include "exit_code.h"
#include "toy_model.h"

#include <stdio.h>

enum { RANKS = 2 };

/* ---- Saving and loading ---- */

/* Every rank calls it, since the optimizer's state is gathered. */
static sl_status save(const sl_training *training, const char *path, int rank)
{
    sl_checkpoint_part parts[2];
    SL_TRY(sl_pipe_get_state(training->pipe, &parts[0]));
    SL_TRY(sl_pipe_optimizer_get_state(training->optimizer, &parts[1]));
    if (rank > 0)
        return SL_OK;
    return sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = parts,
                                                              .part_count = 2,
                                                              .state = "{\"step\": 1}"});
}

/* The device map: every tensor goes to this rank's device. */
static sl_device *own_device(void *device, const char *name)
{
    (void)name;
    return device;
}

/* By a device map a part's tensors come by themselves. A pipe's own devices are a map too, for its
 * parameters and its optimizer's state. */
static sl_status load(sl_training *training, const char *path, int rank)
{
    sl_checkpoint_reader *reader;
    sl_checkpoint_tensor *loaded = NULL;
    size_t count = 0;
    double step;
    SL_TRY(sl_checkpoint_open(path, &reader));
    sl_status status = sl_checkpoint_load(reader, "model", own_device,
                                          sl_pipe_device(training->pipe, 0), &loaded, &count);
    for (size_t i = 0; i < count; i++)
        printf("[RANK %d]: loaded %s to %s\n", rank, loaded[i].name,
               sl_device_name(sl_tensor_device(loaded[i].tensor)));
    sl_checkpoint_tensors_destroy(&loaded, count);
    if (status == SL_OK)
        status = sl_pipe_load(training->pipe, reader);
    if (status == SL_OK)
        status = sl_pipe_optimizer_load(training->optimizer, reader);
    if (status == SL_OK)
        status = sl_checkpoint_number(reader, "step", &step);
    if (status == SL_OK && step != 1)
        status = sl_error(SL_ERR_INTERNAL, "the checkpoint is of step %g", step);
    sl_checkpoint_close(&reader);
    return status;
}

/* ---- Training ---- */

static sl_status train_step(sl_training *training)
{
    double loss;
    toy_fill(training->input, 1);
    toy_fill(training->targets, 100);
    return sl_training_step(training,
                            &(sl_pipe_batch){.input = training->input,
                                             .targets = training->targets},
                            0.001, 0, &loss, NULL);
}

/* The step after loading is, to the bit, the one after saving. */
static sl_status save_load_and_train(sl_group *group, sl_training *training, const char *path)
{
    int rank = sl_group_rank(group);
    const float *weight =
        sl_tensor_f32(sl_parameter_set_bucket_values(sl_pipe_parameters(training->pipe, 0), 0));
    float saved, later;
    SL_TRY(train_step(training)); /* gives the optimizer a state */
    SL_TRY(save(training, path, rank));
    SL_TRY(sl_group_barrier(group, NULL)); /* now it is there */
    saved = *weight;
    SL_TRY(train_step(training));
    later = *weight;
    SL_TRY(load(training, path, rank));
    SL_TRY(train_step(training));
    printf("[RANK %d]: first weight saved %.9g, a step later %.9g, from the checkpoint %.9g\n",
           rank, (double)saved, (double)later, (double)*weight);
    return SL_OK;
}

static sl_status demo_checkpoint(sl_group *group, void *path)
{
    sl_device_list *devices; /* one for each rank */
    SL_TRY(sl_device_list_create("cpu:0,cpu:1", &devices, NULL));
    sl_device *own = sl_device_list_get(devices, sl_group_rank(group));
    sl_training_options options = {.create_model = toy_create,
                                   .pipe = {.stages = 1, .devices = &own, .seed = 7},
                                   .ddp = {.group = group},
                                   .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                                   .zero = true,
                                   .input = {SL_F32, sl_shape_2d(TOY_ROWS, TOY_IN)},
                                   .targets = {SL_F32, sl_shape_2d(TOY_ROWS, TOY_OUT)}};
    sl_training *training;
    sl_status status = sl_training_create(&options, &training);
    if (status == SL_OK)
        status = save_load_and_train(group, training, path);
    sl_training_destroy(&training);
    sl_device_list_destroy(&devices);
    return status;
}

int main(int argc, char **argv)
{
    char *path = argc > 1 ? argv[1] : "toy-checkpoint";
    return exit_code("ddp_checkpoint", sl_spawn(demo_checkpoint, path, RANKS, NULL));
}
