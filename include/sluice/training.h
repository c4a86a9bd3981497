/* What a training loop works with: model, loss, pipe, DDP and optimizer, made by one call and freed
 * by one call.
 *
 *     sl_training_create(&options, &training);
 *     for (each batch) {
 *         fill training->input and training->targets
 *         sl_training_step(training, &batch, lr, clip, &loss, &norm);
 *     }
 *     sl_training_destroy(&training);
 *
 * Nothing is hidden: these functions call those of sluice/pipe.h, ddp.h and pipe_optimizer.h, which
 * a program can call itself instead.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_TRAINING_H
#define SLUICE_TRAINING_H

#include "sluice/pipe_optimizer.h"

SL_API_BEGIN

/* What is loaded for each batch. */
typedef struct sl_training_tensor {
    sl_dtype dtype;
    sl_shape shape; /* without dimensions: there is no tensor */
} sl_training_tensor;

typedef struct sl_training_options {
    /* Makes the model, a sequential, and its loss; the training owns both. `context` is the
     * function's own. What it has set is freed also when it returns an error. */
    sl_status (*create_model)(void *context, sl_module **model, sl_loss **loss);
    void *context;
    /* (optional) Names of devices, one for each pipeline rank (sl_device_list_create), which the
     * training owns, in place of pipe.devices; for a pipe without a group. */
    const char *devices;
    sl_pipe_options pipe; /* model and loss are filled in; and with `devices`, where `stages` is 0,
                             as many stages as the devices have */
    /* Without a group there is one replica, and no DDP. `pipe` is filled in. */
    sl_ddp_options ddp;
    sl_optimizer_options optimizer;
    bool zero;                         /* the optimizer's state is sharded over the replicas */
    sl_training_tensor input, targets; /* (optional) */
} sl_training_options;

/* To be read, not changed. */
typedef struct sl_training {
    sl_device_list *devices; /* NULL: the caller has them */
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_ddp *ddp; /* NULL: one replica */
    sl_pipe_optimizer *optimizer;
    /* On the devices of the first and the last stage; NULL where these are on other ranks of the
     * pipe's group, or the options have none. Their memory is not set. */
    sl_tensor *input, *targets;
} sl_training;

/* Every rank of the groups calls this function and all below. Errors: those of `create_model`, and
 * of what it calls; SL_ERR_INVALID for devices that the stages do not fit. */
sl_status sl_training_create(const sl_training_options *options, sl_training **out);
void sl_training_destroy(sl_training **training);

/* One step: sets the gradients to zero, trains on the batch, exchanges the gradients of replicas,
 * and updates the parameters (sl_pipe_optimizer_step has `clip` and `norm`, which may be NULL).
 * `batches` is one batch, or one for each of this rank's shards (sl_ddp_shards). *loss is the mean
 * of their losses. Errors: as sl_pipe_train, sl_ddp_train and sl_pipe_optimizer_step. */
sl_status sl_training_step(sl_training *training, const sl_pipe_batch *batches, double lr,
                           double clip, double *loss, double *norm);

SL_API_END

#endif
