/* ZeroRedundancyOptimizer: optimizer state sharded over data-parallel ranks (ZeRO stage 1).
 *
 * Counterpart of torch.distributed.optim.ZeroRedundancyOptimizer. Ranks that hold equal weights and
 * equal (averaged) gradients need not all keep the optimizer's state: each keeps a slice of it,
 * updates its slice of the weights, and the slices go around. Weights are the same bits as with
 * sl_optimizer; state takes 1 / ranks of the memory.
 *
 * Every bucket of the parameter set is cut into as many slices as there are ranks, of equal length
 * but for the last, whatever parameters begin or end there. (PyTorch gives whole parameters to
 * ranks, largest first; slices are balanced to a cache line and need no such rule.)
 *
 * Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models.
 */
#ifndef SLUICE_ZERO_H
#define SLUICE_ZERO_H

#include "sluice/group.h"
#include "sluice/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_zero sl_zero;

/* For the trained parameters of a set, one stage's or a module's; `group` has its replicas
 * (sl_ddp_group). Borrows both. Called by every rank; errors as sl_optimizer_create. */
sl_status sl_zero_create(const sl_optimizer_options *options, sl_parameter_set *set,
                         sl_group *group, sl_zero **out);
void sl_zero_destroy(sl_zero **zero); /* NULL is allowed */

/* sl_optimizer_step of this rank's slices; to be called by the thread that drives the set's device
 * (sl_pipe_run). Then, by every rank, the exchange that makes the weights whole again: it waits for
 * the other ranks, so stages that share a device must not call it in sl_pipe_run. */
sl_status sl_zero_update(sl_zero *zero, double lr, double grad_scale);
sl_status sl_zero_exchange(sl_zero *zero);

/* Both, one after the other. */
sl_status sl_zero_step(sl_zero *zero, double lr, double grad_scale);

/* consolidate_state_dict: rank `to` gets an optimizer with the whole state, as sl_optimizer would
 * have it at this point, for saving; the caller owns it. *whole is NULL on all others. Called by
 * every rank. */
sl_status sl_zero_consolidate(sl_zero *zero, int to, sl_optimizer **whole);

/* load_state_dict: this rank's slices from a whole optimizer of the same method over a set with the
 * same buckets. Errors: SL_ERR_INVALID for any other. */
sl_status sl_zero_load(sl_zero *zero, const sl_optimizer *whole);

#ifdef __cplusplus
}
#endif
#endif
