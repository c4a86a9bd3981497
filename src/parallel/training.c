/* A training: the objects of a training loop, created in order and destroyed in reverse. */
#include "sluice/training.h"

#include "core/error.h"

#include <stdlib.h>

static sl_status create_pipe(const sl_training_options *options, sl_training *training)
{
    sl_pipe_options pipe = options->pipe;
    int count = training->devices ? sl_device_list_count(training->devices) : 0;
    int64_t stages = (int64_t)count * (pipe.virtual_stages ? pipe.virtual_stages : 1);
    sl_device *devices[count + 1];
    for (int i = 0; i < count; i++)
        devices[i] = sl_device_list_get(training->devices, i);
    if (count > 0) {
        pipe.devices = devices;
        pipe.stages = pipe.stages ? pipe.stages : (int)stages;
        if (pipe.stages != stages || pipe.group)
            return sl_error(SL_ERR_INVALID,
                            "sl_training_create: devices are named for all ranks of a pipe in one "
                            "process: %d devices do not fit %d stages%s",
                            count, pipe.stages, pipe.group ? " of a group" : "");
    }
    pipe.model = training->model;
    pipe.loss = training->loss;
    return sl_pipe_create(&pipe, &training->pipe);
}

static sl_status create_tensor(const sl_training_tensor *wanted, sl_device *device, sl_tensor **out)
{
    if (wanted->shape.dims == 0 || !device)
        return SL_OK;
    return sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, wanted->dtype, &wanted->shape, out);
}

static sl_status create_objects(const sl_training_options *options, sl_training *training)
{
    if (!options->create_model)
        return sl_error(SL_ERR_INVALID, "sl_training_create: create_model is NULL");
    if (options->devices)
        SL_TRY(sl_device_list_create(options->devices, &training->devices, NULL));
    SL_TRY(options->create_model(options->context, &training->model, &training->loss));
    SL_TRY(create_pipe(options, training));
    if (options->ddp.group) {
        sl_ddp_options ddp = options->ddp;
        ddp.pipe = training->pipe;
        SL_TRY(sl_ddp_create(&ddp, &training->ddp));
    }
    const sl_pipe_optimizer_options optimizer = {.pipe = training->pipe,
                                                 .optimizer = options->optimizer,
                                                 .zero = options->zero ? training->ddp : NULL};
    SL_TRY(sl_pipe_optimizer_create(&optimizer, &training->optimizer));
    int last = sl_pipe_stages(training->pipe) - 1;
    SL_TRY(create_tensor(&options->input, sl_pipe_device(training->pipe, 0), &training->input));
    return create_tensor(&options->targets, sl_pipe_device(training->pipe, last),
                         &training->targets);
}

sl_status sl_training_create(const sl_training_options *options, sl_training **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    sl_training *training = calloc(1, sizeof *training);
    if (!training)
        return sli_no_memory("sl_training_create", "the objects");
    sl_status status = create_objects(options, training);
    if (status != SL_OK)
        sl_training_destroy(&training);
    *out = training;
    return status;
}

void sl_training_destroy(sl_training **training)
{
    if (!training || !*training)
        return;
    sl_training *dead = *training;
    sl_tensor_destroy(&dead->input);
    sl_tensor_destroy(&dead->targets);
    sl_pipe_optimizer_destroy(&dead->optimizer);
    sl_ddp_destroy(&dead->ddp);
    sl_pipe_destroy(&dead->pipe);
    sl_loss_destroy(&dead->loss);
    sl_module_destroy(&dead->model);
    sl_device_list_destroy(&dead->devices);
    free(dead);
    *training = NULL;
}

sl_status sl_training_step(sl_training *training, const sl_pipe_batch *batches, double lr,
                           double clip, double *loss, double *norm)
{
    SLI_CHECK_NOT_NULL(training);
    SLI_CHECK_NOT_NULL(batches);
    SLI_CHECK_NOT_NULL(loss);
    int first = 0, count = 1;
    double sum = 0;
    if (training->ddp)
        sl_ddp_shards(training->ddp, &first, &count);
    for (int i = 0; i < count; i++) {
        sl_pipe_batch batch = batches[i];
        batch.same_weights = batch.same_weights || i > 0;
        sl_pipe_zero_grad(training->pipe);
        SL_TRY(training->ddp ? sl_ddp_train(training->ddp, &batch, loss)
                             : sl_pipe_train(training->pipe, &batch, loss));
        sum += *loss;
    }
    *loss = sum / count;
    return sl_pipe_optimizer_step(training->optimizer, lr, clip, norm);
}
