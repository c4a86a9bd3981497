/* What a pipe's optimizer needs of a sharded one. */
#ifndef SLI_PARALLEL_DDP_ZERO_H
#define SLI_PARALLEL_DDP_ZERO_H

#include "sluice/zero.h"

/* As sl_zero_create. The ranks exchange weights over `device_group`, which is over `group` and for
 * the set's device; NULL: through the host's memory. */
sl_status sli_zero_create(const sl_optimizer_options *options, sl_parameter_set *set,
                          sl_group *group, sl_group *device_group, sl_zero **out);

/* The optimizer of a rank's shards, which lives as long as `zero`; and the second half of
 * sl_zero_step: every rank gets the other ranks' weights. */
sl_optimizer *sli_zero_optimizer(const sl_zero *zero);
sl_status sli_zero_exchange(sl_zero *zero);

/* Breaks the group with this thread's error, for a rank that fails before the exchange. Returns
 * `error`. */
sl_status sli_zero_abort(const sl_zero *zero, sl_status error);

#endif
