/* A pipe's optimizers one by one, for a run's checkpoints. */
#ifndef SLI_PARALLEL_PIPE_OPTIMIZER_H
#define SLI_PARALLEL_PIPE_OPTIMIZER_H

#include "sluice/pipe_optimizer.h"
#include "sluice/zero.h"

bool sli_pipe_optimizer_is_sharded(const sl_pipe_optimizer *optimizer);

/* A stage's optimizer with the state that this rank has, all of it or its shard. */
sl_optimizer *sli_pipe_optimizer_own(const sl_pipe_optimizer *optimizer, int stage);

/* Makes each stage's optimizer with the state of all its parameters: where the state is sharded, a
 * copy on rank 0, which lives until the next call. Every rank calls it. */
sl_status sli_pipe_optimizer_gather(sl_pipe_optimizer *optimizer);
/* Of a stage; NULL on the ranks that have no copy. */
sl_optimizer *sli_pipe_optimizer_whole(const sl_pipe_optimizer *optimizer, int stage);
void sli_pipe_optimizer_release(sl_pipe_optimizer *optimizer); /* the copies */

/* The optimizer of a rank's shards, which lives as long as `zero`; and the second half of
 * sl_zero_step: every rank gets the other ranks' weights. */
sl_optimizer *sli_zero_optimizer(const sl_zero *zero);
sl_status sli_zero_exchange(sl_zero *zero);

/* Breaks the group with this thread's error, for a rank that fails before the exchange. Returns
 * `error`. */
sl_status sli_zero_abort(const sl_zero *zero, sl_status error);

#endif
