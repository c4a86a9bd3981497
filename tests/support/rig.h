/* What most tests of training need on each rank: a model, its pipe, DDP and optimizer. */
#ifndef TESTS_SUPPORT_RIG_H
#define TESTS_SUPPORT_RIG_H

#include "sluice/training.h"

enum { RIG_MAX_RANKS = 8, RIG_WIDTH = 8 };

typedef struct rig {
    sl_device *devices[RIG_MAX_RANKS]; /* of one thread, of this rank's own pipeline ranks */
    sl_training *training;
    /* The training's. */
    sl_module *model;
    sl_pipe *pipe;
    sl_ddp *ddp;
    sl_pipe_optimizer *optimizer;
} rig;

/* Takes the model and the loss (NULL: the mean squared error). The options lack them and the
 * devices. SCOPED(rig) destroys it, also where it was not opened. */
sl_status rig_open(sl_module *model, sl_loss *loss, const sl_training_options *options, rig *out);
void rig_destroy(rig *dead);

/* `count` linear layers of RIG_WIDTH. */
sl_module *rig_linears(int count);

/* Forward and backward, with DDP if there is one, of random rows of RIG_WIDTH that are the same on
 * every rank; no update. */
sl_status rig_train(const rig *trained, double *loss);

#endif
