/* Evaluation that replicas share. */
#ifndef SLI_TRAIN_EVALUATE_H
#define SLI_TRAIN_EVALUATE_H

#include "sluice/train.h"
#include "train/replica.h"

/* Whether an evaluation is to end before its end. `ask` is called by all replicas, before each
 * one's next block and as often by those that have none left, and must tell all of them the same.
 */
typedef struct sli_evaluate_stop {
    sl_status (*ask)(void *context, bool *stop);
    void *context;
} sli_evaluate_stop;

/* As sl_evaluate_tokens, called by all replicas: each scores every replicas->count'th block, and
 * all get the same result, to the bit what one alone would get. `progress` hears of own blocks.
 * Once `stop` (NULL: nobody) wants the end there is no result: *out is 0. */
sl_status sli_evaluate(const sli_replica *replicas, const sl_tokens *tokens,
                       const sl_evaluate_options *options, const sli_evaluate_stop *stop,
                       sl_evaluation *out);

#endif
