/* Evaluation that replicas share. */
#ifndef SLI_TRAIN_EVALUATE_H
#define SLI_TRAIN_EVALUATE_H

#include "sluice/train.h"
#include "train/peers.h"

/* As sl_evaluate_tokens, called by all replicas: each scores every peers->count'th block, and all
 * get the same result, to the bit what one alone would get. `progress` hears of own blocks. */
sl_status sli_evaluate(const sli_peers *peers, const sl_tokens *tokens,
                       const sl_evaluate_options *options, sl_evaluation *out);

#endif
