/* The training loop of one replica. */
#ifndef SLI_TRAIN_TRAINER_H
#define SLI_TRAIN_TRAINER_H

#include "train/reports.h"
#include "train/shared.h"

/* Trains on devices [stages], as the rank of `group` (NULL: there is one replica) whose reporters
 * `reports` tells. */
sl_status sli_train_replica(const sli_shared *shared, sl_group *group, sl_device *const *devices,
                            const sli_reports *reports, sl_run_result *result);

#endif
