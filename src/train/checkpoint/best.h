/* A real copy of the parameters that did best in validation, one for all replicas of the process:
 * their parameters are equal, bit for bit. It lies on the first one's devices, stage by stage.
 *
 * Only the first replica writes it, in keep. The others read it, in restore, and must have heard
 * from the first one, in an operation of their group, since it was kept. */
#ifndef SLI_TRAIN_CHECKPOINT_BEST_H
#define SLI_TRAIN_CHECKPOINT_BEST_H

#include "sluice/pipe.h"

typedef struct sli_best sli_best;

/* `device` is that of the first replica's stage 0, which tells it from the others; `shared`: there
 * are others in this process. */
sl_status sli_best_create(const sl_device *device, int stages, bool shared, sli_best **out);
void sli_best_destroy(sli_best **best);

bool sli_best_is_shared(const sli_best *best);

/* Copies the trained parameters of the first replica's pipe, and does nothing for another's; the
 * memory is taken at the first call. */
sl_status sli_best_keep(sli_best *best, sl_pipe *pipe);

/* The copy of a stage's bucket, which lies as the bucket does. There must be a kept one. */
sl_tensor *sli_best_bucket(const sli_best *best, int stage, int bucket);

/* Copies them back, to any replica's pipe. Without a kept copy it does nothing. */
sl_status sli_best_restore(const sli_best *best, sl_pipe *pipe);

#endif
