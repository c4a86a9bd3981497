/* What the time of a rank's steps goes to. */
#ifndef SLI_TRAIN_LOOP_RANK_TIMES_H
#define SLI_TRAIN_LOOP_RANK_TIMES_H

#include "sluice/app/train.h"

/* Adds a step to the times of a replica's pipeline ranks [count], those of this process. Sets
 * step->waiting_seconds. */
void sli_rank_times_add(const sl_stage_info *stages, sl_step_info *step, sl_rank_stats *ranks,
                        int count);

/* The one that has computed longest; NULL: none has taken a step. */
const sl_rank_stats *sli_rank_times_find_slowest(const sl_rank_stats *ranks, int count);

#endif
