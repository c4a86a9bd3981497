/* Beyond the public functions on sharded optimizers: see sluice/zero.h. */
#ifndef SLI_PARALLEL_ZERO_H
#define SLI_PARALLEL_ZERO_H

#include "sluice/zero.h"

/* The optimizer of this rank's shards; it lives as long as `zero`. */
sl_optimizer *sli_zero_optimizer(const sl_zero *zero);

#endif
