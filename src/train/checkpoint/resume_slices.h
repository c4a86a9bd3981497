/* A sharded optimizer's state from a checkpoint that every replica sees: each reads its own slices.
 */
#ifndef SLI_TRAIN_CHECKPOINT_RESUME_SLICES_H
#define SLI_TRAIN_CHECKPOINT_RESUME_SLICES_H

#include "sluice/checkpoint.h"
#include "train/replica.h"
#include "train/update.h"

/* Called by every replica; `from` is the first one's. *done is false on all where one of them
 * cannot open that checkpoint, as on another machine's disk: nothing was read then. */
sl_status sli_resume_slices(const sl_checkpoint_reader *from, const sli_replica *replicas,
                            const sli_update *update, bool *done);

#endif
