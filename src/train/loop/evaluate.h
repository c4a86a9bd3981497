/* Evaluation by all replicas of a run. */
#ifndef SLI_TRAIN_LOOP_EVALUATE_H
#define SLI_TRAIN_LOOP_EVALUATE_H

#include "sluice/app/inference.h"
#include "train/loop/replica.h"
#include "train/loop/rows_task.h"

/* Sets *stop where an evaluation is to end before its end; the same on all ranks. */
typedef sl_status sli_evaluation_stop(void *context, bool *stop);

/* Batches first … first + count - 1 of a split. */
typedef struct sli_batch_range {
    sl_split split;
    int64_t first, count;
} sli_batch_range;

/* As sl_evaluate_tokens, of some batches of a task, whose rows (NULL: it has none of its own) may
 * be packed, at most options->max_batches, called by all ranks: each replica scores every
 * replica->count'th one, and all get the same result, to the bit what one alone would get.
 * `progress` is told of this replica's batches alone, on its first rank. Every rank calls `stop`
 * (NULL: never stops), with options->context, before each of its batches, and those that have one
 * batch less do so once more. A stopped evaluation has no result: *out is 0. */
sl_status sli_evaluate(const sli_replica *replica, const sl_train_task *task,
                       const sli_rows_task *rows, sli_batch_range range,
                       const sl_evaluate_options *options, sli_evaluation_stop *stop,
                       sl_evaluation *out);

#endif
