/* The training loop of one replica. */
#ifndef SLI_TRAIN_TRAINER_H
#define SLI_TRAIN_TRAINER_H

#include "sluice/checkpoint.h"
#include "train/reports.h"
#include "train/shared.h"

/* Trains on devices [stages], as the rank of `group` (NULL: there is one replica) whose reporters
 * `reports` tells. `from` is the checkpoint to go on from, which is given to the first replica
 * alone; NULL: there is none. */
sl_status sli_train_replica(const sli_shared *shared, sl_group *group, sl_device *const *devices,
                            const sl_checkpoint_reader *from, const sli_reports *reports,
                            sl_run_result *result);

#endif
