/* An evaluation whose blocks are divided among the replicas. */
#ifndef SLI_TRAIN_EVALUATE_H
#define SLI_TRAIN_EVALUATE_H

#include "sluice/train.h"
#include "train/replica.h"

/* Sets *stop where an evaluation is to end before its end; the same on all replicas. */
typedef sl_status sli_evaluation_stop(void *context, bool *stop);

/* As sl_evaluate_tokens, called by all replicas: each scores every replica->count'th block, and all
 * get the same result, to the bit what one alone would get. `progress` is told of this replica's
 * blocks alone. Every replica calls `stop` (NULL: never stops), with options->context, before each
 * of its blocks, and those that have one block less do so once more. A stopped evaluation has no
 * result: *out is 0. */
sl_status sli_evaluate(const sli_replica *replica, const sl_tokens *tokens,
                       const sl_evaluate_options *options, sli_evaluation_stop *stop,
                       sl_evaluation *out);

#endif
