/* ZeroRedundancyOptimizer: optimizer state sharded over data-parallel ranks (ZeRO stage 1).
 *
 * Counterpart of torch.distributed.optim.ZeroRedundancyOptimizer. Ranks that have equal weights and
 * equal (averaged) gradients need not all keep the optimizer's state. Each keeps one shard of it
 * and updates the same shard of the weights; then the ranks exchange their shards. Weights are
 * bit-identical to sl_optimizer's; the state takes 1 / ranks of the memory.
 *
 * Every bucket of the parameter set is cut into one shard for each rank, of equal length but for
 * the last, regardless of where parameters begin. (PyTorch gives whole parameters to ranks, largest
 * first; shards are balanced to a cache line without such a rule.)
 *
 * Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models.
 */
#ifndef SLUICE_ZERO_H
#define SLUICE_ZERO_H

#include "sluice/group.h"
#include "sluice/optim.h"

SL_API_BEGIN

typedef struct sl_zero sl_zero;

/* For the trained parameters of a set, a stage's or a module's. `group` is the group of its
 * replicas (sl_ddp_group), of the backend `local` or `mpi`. Borrows both. Called by every rank.
 * Errors: as sl_optimizer_create; SL_ERR_INVALID for a group of the backend `nccl`. */
sl_status sl_zero_create(const sl_optimizer_options *options, sl_parameter_set *set,
                         sl_group *group, sl_zero **out);
void sl_zero_destroy(sl_zero **zero);

/* sl_optimizer_step for this rank's shards, after which every rank gets the other ranks' weights.
 * Every rank calls it, on the thread that drives the set's device; it waits for the others. A rank
 * that fails breaks the group. (Over a pipe: sl_pipe_optimizer_step.) */
sl_status sl_zero_step(sl_zero *zero, double lr, double grad_scale);

/* consolidate_state_dict: on rank `root`, *whole becomes an optimizer with the state that
 * sl_optimizer would have at this point; the caller owns it. On all other ranks it is NULL. Called
 * by every rank. If rank `root` cannot create it, every rank gets that error. */
sl_status sl_zero_consolidate(sl_zero *zero, int root, sl_optimizer **whole);

/* load_state_dict: loads this rank's shards from an unsharded optimizer of the same kind, of a set
 * with the same buckets. Errors: SL_ERR_INVALID for any other. */
sl_status sl_zero_load(sl_zero *zero, const sl_optimizer *whole);

SL_API_END

#endif
