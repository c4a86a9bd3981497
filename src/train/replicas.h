/* What a replica and the others do together. A replica alone is all of them: every function then
 * gives its own numbers back. */
#ifndef SLI_TRAIN_REPLICAS_H
#define SLI_TRAIN_REPLICAS_H

#include "sluice/train.h"

typedef struct sli_replicas {
    sl_group *group; /* one rank a replica; borrowed; NULL: there is only one */
    sl_pipe *pipe;   /* borrowed */
    sl_ddp *ddp;     /* NULL: there is only one */
    int rank, count;
    sl_stage_memory *memory; /* [count * stages], by rank and stage; zeros until asked for */
} sli_replicas;

/* Tells the others the calling thread's error, so that they end with it whatever they wait for. To
 * be called before anything is destroyed that they share. */
void sli_replicas_abort(const sli_replicas *replicas, sl_status error);

/* Gives every replica the first one's parameters. */
sl_status sli_replicas_create(sl_group *group, sl_pipe *pipe, sli_replicas *out);
void sli_replicas_clear(sli_replicas *replicas);

/* sl_pipe_train with averaged gradients at the end; *loss is this replica's. */
sl_status sli_replicas_train(sli_replicas *replicas, const sl_pipe_batch *batch, double *loss);

/* *value becomes the mean of everybody's; values[0 … count - 1] the sums, in the order of ranks. */
sl_status sli_replicas_mean(const sli_replicas *replicas, double *value);
sl_status sli_replicas_sum(const sli_replicas *replicas, double *values, int64_t count);

/* Fills `memory` with what everybody's devices hold. */
sl_status sli_replicas_memory(const sli_replicas *replicas);

/* For an error that all replicas come to at the same place: true on the first, who is to report it.
 * The others wait for that, and have its error in *status. */
bool sli_replicas_speak(const sli_replicas *replicas, sl_status *status);

#endif
