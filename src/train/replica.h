/* One replica of a run: model, loss and pipe, and what it does together with the other replicas.
 * A replica that is alone gets its own numbers back from each of these functions. */
#ifndef SLI_TRAIN_REPLICA_H
#define SLI_TRAIN_REPLICA_H

#include "sluice/train.h"

typedef struct sli_replica {
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_group *group; /* one rank a replica; borrowed; NULL: there is only one replica */
    sl_ddp *ddp;     /* since sli_replica_join; NULL: there is only one replica */
    int rank, count;
    sl_stage_memory *memory; /* [count * stages], by rank and stage */
} sli_replica;

/* Makes model, loss and pipe. `options` are checked, and options->model.ntokens is known. `devices`
 * [stages] are borrowed. `values` = false leaves the parameters undefined; else they are random, or
 * those of options->init. Cleared by sli_replica_clear, also after an error. */
sl_status sli_replica_create(const sl_train_options *options, sl_group *group,
                             sl_device *const *devices, bool values, sli_replica *out);
void sli_replica_clear(sli_replica *replica);

/* Gives every replica the first one's parameters, and averages their gradients from then on. */
sl_status sli_replica_join(sli_replica *replica);

/* Ends the other replicas with the calling thread's error, whatever they wait for. Called before
 * anything that they share is destroyed. */
void sli_replica_abort(const sli_replica *replica, sl_status error);

/* sl_pipe_train, with averaged gradients at its end; *loss is this replica's. */
sl_status sli_replica_train(sli_replica *replica, const sl_pipe_batch *batch, double *loss);

/* *value becomes the mean over all replicas; values[0 … count - 1] the sums, in the order of ranks.
 */
sl_status sli_replica_mean(const sli_replica *replica, double *value);
sl_status sli_replica_sum(const sli_replica *replica, double *values, int64_t count);

/* Fills `memory` with what the devices of all replicas hold. */
sl_status sli_replica_gather_memory(const sli_replica *replica);

/* For an error that all replicas find at the same point: true on the first, which reports it. The
 * others wait for that, and have its error in *status. */
bool sli_replica_reports_error(const sli_replica *replica, sl_status *status);

#endif
