/* Writes checkpoints behind a run's back: a thread writes a copy of the state while the run goes
 * on. One is written at a time. Belongs to the thread that drives the replica. */
#ifndef SLI_TRAIN_CHECKPOINT_SAVER_H
#define SLI_TRAIN_CHECKPOINT_SAVER_H

#include "sluice/checkpoint.h"
#include "sluice/train.h"
#include "train/checkpoint/tensors.h"

typedef struct sli_saver sli_saver;

/* Pointers are borrowed, but for the group. */
typedef struct sli_saver_options {
    const sl_save_options *save;
    const sl_metadata *metadata; /* [metadata_count], of the model's files */
    size_t metadata_count;
    sl_checkpoint_file file; /* the vocabulary */
    sl_group *group;         /* of the savers of all replicas, each of which writes its shard of the
                                optimizer; taken, also after an error; NULL: one saver writes all */
} sli_saver_options;

sl_status sli_saver_create(const sli_saver_options *options, sli_saver **out);

/* Waits for a saver that writes alone, and gives up what several write. NULL is allowed. */
void sli_saver_destroy(sli_saver **saver);

typedef struct sli_snapshot {
    sli_tensor_copy model, optimizer, best; /* `best` without items: there is none */
    char *state;                            /* of sli_run_state_print */
} sli_snapshot;

/* The copy that will be written, to be filled while nothing is being written: by the first replica
 * all of it, by the others the optimizer alone. */
sli_snapshot *sli_saver_snapshot(sli_saver *saver);

typedef enum sli_saver_target {
    SLI_SAVE_STEP = 1, /* the whole copy, as the checkpoint of `step` */
    SLI_SAVE_BEST = 2  /* its model, as the best one; by the first replica alone */
} sli_saver_target;

/* Starts writing the copy to the targets, one or both; `id` is drawn for this save, and the same on
 * all replicas. Where `copied` is an error, there is no copy: with this thread's error text it
 * becomes the save's. */
void sli_saver_start(sli_saver *saver, int targets, int64_t step, uint64_t id, sl_status copied);

/* Whether a save has ended since the last call, with `wait` after waiting for it; *event then says
 * how. Its strings live until the next start. */
bool sli_saver_ended(sli_saver *saver, bool wait, sl_checkpoint_event *event);

/* Why the last one failed. */
const char *sli_saver_reason(const sli_saver *saver);

#endif
