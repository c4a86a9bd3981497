/* When a run's state is saved. Every replica calls these at the same places; the first one writes.
 */
#ifndef SLI_TRAIN_CHECKPOINT_CHECKPOINTS_H
#define SLI_TRAIN_CHECKPOINT_CHECKPOINTS_H

#include "train/checkpoint/best.h"
#include "train/checkpoint/run_state.h"
#include "train/replica.h"
#include "train/reports.h"
#include "train/run.h"
#include "train/update.h"

/* The run whose state it is; all borrowed. */
typedef struct sli_checkpoints_run {
    const sli_shared *shared;
    const sli_reports *reports;
    const sli_replica *replicas;
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

/* Between the blocks of a validation, whose begin is what is saved: a run that goes on from there
 * does it again. And between those of the test, before which the run's end was saved. */
sl_status sli_checkpoints_in_evaluation(sli_checkpoints *checkpoints, bool *stop);

/* Before the test changes parameters: a run of which only the test is left, and that came from
 * elsewhere, has not saved its end here. */
sl_status sli_checkpoints_before_test(sli_checkpoints *checkpoints);

/* Waits for the save under way, and reports it. */
sl_status sli_checkpoints_finish(sli_checkpoints *checkpoints);

#endif
