/* Beyond the public functions on weights: see sluice/train.h. */
#ifndef SLI_TRAIN_CHECKPOINT_WEIGHTS_H
#define SLI_TRAIN_CHECKPOINT_WEIGHTS_H

#include "sluice/train.h"

/* Refuses a file that says of its model what contradicts `model`, beyond the shapes. */
sl_status sli_weights_check_model(const char *path, const sl_model_options *model);

/* Fails as sl_weights_save would for a path that cannot be written or a disk without room; leaves
 * nothing behind. */
sl_status sli_weights_check_save(const sl_pipe *pipe, const char *path);

#endif
