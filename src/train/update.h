/* The end of a training step on all stages: gradient norm, clipping, optimizer. */
#ifndef SLI_TRAIN_UPDATE_H
#define SLI_TRAIN_UPDATE_H

#include "sluice/ddp.h"
#include "sluice/optim.h"

typedef struct sli_update sli_update;

/* Borrows the pipe. The optimizer's state is sharded over the replicas of `sharded` (borrowed;
 * NULL: not sharded); all of them must then call each function but the norm. */
sl_status sli_update_create(sl_pipe *pipe, const sl_optimizer_options *options,
                            const sl_ddp *sharded, sli_update **out);
void sli_update_destroy(sli_update **update);

/* The L2 norm of all gradients together, which has the same bits for every partition. */
sl_status sli_update_norm(sli_update *update, double *norm);

/* One optimizer step on every stage. Gradients are scaled so that `norm` becomes at most `clip` (0:
 * no clipping). */
sl_status sli_update_apply(sli_update *update, double lr, double norm, double clip);

/* ---- The optimizers' state, for checkpoints --------------------------------------------- */

/* A stage's optimizer with the state that this replica has: all of it, or its shard. */
sl_optimizer *sli_update_own(const sli_update *update, int stage);
bool sli_update_is_sharded(const sli_update *update);

/* Each stage's optimizer with the state of all its parameters, into whole[0 … stages - 1]. Where
 * the state is sharded they are copies, which the first replica has; the others get NULL.
 * sli_update_release frees them. */
sl_status sli_update_gather(sli_update *update, sl_optimizer **whole);
void sli_update_release(const sli_update *update, sl_optimizer **whole);

#endif
