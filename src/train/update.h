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

#endif
