/* The end of a training step on all stages: gradient norm, clipping, optimizer. */
#ifndef SLI_TRAIN_UPDATE_H
#define SLI_TRAIN_UPDATE_H

#include "sluice/ddp.h"
#include "sluice/optim.h"

typedef struct sli_update sli_update;

/* Borrows the pipe. `sharded` (borrowed; NULL: no sharding) are the replicas over which the
 * optimizer's state is sharded; every function but the norm then takes all of them. */
sl_status sli_update_create(sl_pipe *pipe, const sl_optimizer_options *options,
                            const sl_ddp *sharded, sli_update **out);
void sli_update_destroy(sli_update **update);

/* The L2 norm of all gradients together: the same bits for every partition. */
sl_status sli_update_norm(sli_update *update, double *norm);

/* One optimizer step on every stage, gradients scaled so that `norm` becomes at most `clip`
 * (0: no clipping). */
sl_status sli_update_apply(sli_update *update, double lr, double norm, double clip);

/* ---- The optimizers' state, for checkpoints --------------------------------------------- */

/* A stage's optimizer with what this replica has of its state: all of it, or its slices. */
sl_optimizer *sli_update_own(const sli_update *update, int stage);
bool sli_update_is_sharded(const sli_update *update);

/* Each stage's optimizer with the state of all its parameters, into whole[0 … stages - 1]. Where
 * the state is sharded they are copies of their own, which only the first replica has, the others
 * having NULL. To be given back by sli_update_release. */
sl_status sli_update_gather(sli_update *update, sl_optimizer **whole);
void sli_update_release(const sli_update *update, sl_optimizer **whole);

#endif
