/* How a run goes on from a checkpoint. The first replica reads; the others get what it read. */
#ifndef SLI_TRAIN_CHECKPOINT_RESUME_H
#define SLI_TRAIN_CHECKPOINT_RESUME_H

#include "sluice/checkpoint.h"
#include "train/checkpoint/best.h"
#include "train/checkpoint/run_state.h"
#include "train/replica.h"
#include "train/reports.h"
#include "train/run.h"
#include "train/update.h"

/* A checkpoint that a run goes on from; without a reader: none. */
typedef struct sli_resume {
    sl_checkpoint_reader *reader;
    char *path;
    int64_t last_step; /* that a run in this directory had done; 0: not known, or a single one */
} sli_resume;

/* Opens the checkpoint that the options name: that one, or the newest whole one of a directory,
 * reporting those that were skipped because they are damaged or have lost files. There is none
 * where none is needed and none was ever saved. Cleared by sli_resume_clear, also after an error.
 * Errors: SL_ERR_NOT_FOUND where none is whole; any other that reading met, as SL_ERR_IO. */
sl_status sli_resume_open(const sl_save_options *options, const sli_reports *reports,
                          sli_resume *out);
void sli_resume_clear(sli_resume *from);

/* What its run has decided. There must be a checkpoint. */
sl_status sli_resume_recorded(const sli_resume *from, sli_recorded *out);

/* Reports that the run goes on from it. Errors: SL_ERR_INVALID for other options than its own. */
sl_status sli_resume_check(const sli_resume *from, const sli_shared *shared,
                           const sli_reports *reports);

/* The model's tensors, into a pipe of any partition. */
sl_status sli_resume_model(const sl_checkpoint_reader *from, const sl_pipe *pipe);

/* The optimizers' state, the best parameters and the position, on every replica; `from` is the
 * first one's. Without one everything stays as it is. The replicas' parameters must be equal
 * already. */
sl_status sli_resume_rest(const sl_checkpoint_reader *from, const sli_replica *replicas,
                          sli_update *update, sli_best *best, sli_position *position);

#endif
