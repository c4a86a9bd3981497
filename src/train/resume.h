/* How a run goes on from a checkpoint. The first replica reads; the others get what it read. */
#ifndef SLI_TRAIN_RESUME_H
#define SLI_TRAIN_RESUME_H

#include "sluice/checkpoint.h"
#include "train/best.h"
#include "train/peers.h"
#include "train/position.h"
#include "train/reports.h"
#include "train/shared.h"
#include "train/update.h"

/* Opens the checkpoint that the options name: that one, or the newest whole one of a directory,
 * reporting those that were skipped. *out is NULL where there is none and none is needed. Errors:
 * SL_ERR_INVALID for other options than its own. */
sl_status sli_resume_open(const sli_shared *shared, const sli_reports *reports,
                          sl_checkpoint_reader **out);

/* The model's tensors, into a pipe of any partition. */
sl_status sli_resume_model(const sl_checkpoint_reader *from, const sl_pipe *pipe);

/* The optimizers' state, the best parameters and the position, on every replica; `from` is the
 * first one's. Without one everything stays as it is. The replicas' parameters must be equal
 * already. */
sl_status sli_resume_rest(const sl_checkpoint_reader *from, const sli_peers *peers,
                          sli_update *update, sli_best *best, sli_position *position);

#endif
