/* When a run's state is saved. Every replica calls these at the same places; the first one writes.
 */
#ifndef SLI_TRAIN_CHECKPOINTS_H
#define SLI_TRAIN_CHECKPOINTS_H

#include "train/best.h"
#include "train/peers.h"
#include "train/position.h"
#include "train/reports.h"
#include "train/shared.h"
#include "train/update.h"

/* The run whose state it is; all borrowed. */
typedef struct sli_checkpoints_run {
    const sli_shared *shared;
    const sli_reports *reports;
    const sli_peers *peers;
    sli_update *update;
    const sli_best *best;
    const sli_position *position;
} sli_checkpoints_run;

typedef struct sli_checkpoints sli_checkpoints;

/* Finds out that nothing could be written before hours have gone into the run. */
sl_status sli_checkpoints_create(const sli_checkpoints_run *run, sli_checkpoints **out);
void sli_checkpoints_destroy(sli_checkpoints **checkpoints); /* waits; NULL is allowed */

/* After a step, and after a validation, which was the best so far or not: saves what is due and
 * reports what has ended. *stop: the run is to end here, and its state is saved. */
sl_status sli_checkpoints_after_step(sli_checkpoints *checkpoints, bool *stop);
sl_status sli_checkpoints_after_epoch(sli_checkpoints *checkpoints, bool best, bool *stop);

/* Waits for the save under way, and reports it. */
sl_status sli_checkpoints_finish(sli_checkpoints *checkpoints);

#endif
