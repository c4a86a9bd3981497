/* A real copy of the parameters that did best in validation, on each stage's own device. */
#ifndef SLI_TRAIN_BEST_H
#define SLI_TRAIN_BEST_H

#include "sluice/pipe.h"

typedef struct sli_best sli_best;

sl_status sli_best_create(sl_pipe *pipe, sli_best **out);
void sli_best_destroy(sli_best **best);

/* Copies the pipe's trained parameters; the memory is taken at the first call. */
sl_status sli_best_keep(sli_best *best);

bool sli_best_kept(const sli_best *best);

/* The copy of a stage's bucket, which lies as the bucket does. There must be a kept one. */
sl_tensor *sli_best_bucket(const sli_best *best, int stage, int bucket);

/* Copies them back. Without a kept copy it does nothing. */
sl_status sli_best_restore(sli_best *best);

#endif
