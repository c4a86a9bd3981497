/* Pipes whose stages are on the ranks of a group, for tests over threads and over processes. */
#ifndef TESTS_SUPPORT_LAYOUTS_H
#define TESTS_SUPPORT_LAYOUTS_H

#include "sluice/pipe_optimizer.h"

enum { LAYOUT_MAX_RANKS = 8 };

/* One rank's pipe, with devices, model and loss of its own. */
typedef struct layout_pipe {
    sl_device *devices[LAYOUT_MAX_RANKS]; /* of its own pipeline ranks */
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_group *replicas; /* the ranks with the same stages; NULL: the pipe is no replica */
    sl_ddp *ddp;        /* likewise */
    sl_pipe_optimizer *optimizer;
} layout_pipe;

/* Takes the model and the loss. */
sl_status layout_open(sl_module *model, sl_loss *loss, sl_pipe_options options, layout_pipe *out);
void layout_pipe_destroy(layout_pipe *pipe);

/* Makes the pipe one of several replicas. Takes the group of the ranks with the same stages. */
sl_status layout_join(layout_pipe *at, sl_group **replicas, int shards);

/* Draws a model, its precision, batches, replicas, a table and a placement on the ranks of the
 * group, all from the seed; trains, evaluates and runs forward; and compares losses, norms,
 * outputs, gradients, weights and the optimizer's state with those of one replica of one stage in
 * the same precision: they must have the same bits. */
sl_status layout_check(sl_group *group, unsigned seed);

/* A model of linear layers and its step on random rows of width 8, which every rank makes. */
sl_module *layout_linears(int count);
sl_status layout_step(const layout_pipe *at, double *loss);

#endif
