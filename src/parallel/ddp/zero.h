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
#ifndef SLI_PARALLEL_DDP_ZERO_H
#define SLI_PARALLEL_DDP_ZERO_H

#include "sluice/group.h"
#include "sluice/optim.h"

typedef struct sli_zero sli_zero;

/* For the trained parameters of a set, a stage's or a module's. `group` is the group of its
 * replicas (sl_ddp_group), of the backend `local` or `mpi`. The ranks exchange weights over
 * `device_group`, which is over `group` and for the set's device; NULL: through the host's memory.
 * Borrows all. Called by every rank. Errors: as sl_optimizer_create. */
sl_status sli_zero_create(const sl_optimizer_options *options, sl_parameter_set *set,
                          sl_group *group, sl_group *device_group, sli_zero **out);
void sli_zero_destroy(sli_zero **zero);

/* The optimizer of this rank's shards, which lives as long as `zero`. */
sl_optimizer *sli_zero_optimizer(const sli_zero *zero);

/* After every rank's step of that optimizer: each gets the other ranks' weights. Every rank calls
 * it, on the thread that drives the set's device; it waits for the others. */
sl_status sli_zero_exchange(sli_zero *zero);

/* Breaks the group with this thread's error, for a rank that fails before the exchange. Returns
 * `error`. */
sl_status sli_zero_abort(const sli_zero *zero, sl_status error);

/* consolidate_state_dict: on rank `root`, *whole becomes an optimizer with the state that
 * sl_optimizer would have at this point; the caller owns it. On all other ranks it is NULL. Called
 * by every rank. If rank `root` cannot create it, every rank gets that error. */
sl_status sli_zero_consolidate(sli_zero *zero, int root, sl_optimizer **whole);

#endif
