/* Writes checkpoints behind a run's back: a thread writes a copy of the state while the run goes
 * on. One is written at a time. Belongs to the thread that drives the run. */
#ifndef SLI_TRAIN_SAVER_H
#define SLI_TRAIN_SAVER_H

#include "sluice/checkpoint.h"
#include "sluice/train.h"
#include "train/snapshot.h"

typedef struct sli_saver sli_saver;

/* `notes` (of the model's files) and `files` are borrowed. */
typedef struct sli_saver_options {
    const char *directory;
    int keep;
    uint64_t shard_bytes;
    const sl_safetensors_note *notes;
    size_t note_count;
    sl_checkpoint_file file; /* the vocabulary */
} sli_saver_options;

sl_status sli_saver_create(const sli_saver_options *options, sli_saver **out);
void sli_saver_destroy(sli_saver **saver); /* waits; NULL is allowed */

/* The copy that will be written, to be filled while nothing is being written. */
sli_snapshot *sli_saver_snapshot(sli_saver *saver);

typedef enum sli_saver_target {
    SLI_SAVE_STEP = 1, /* the whole copy, as the checkpoint of `step` */
    SLI_SAVE_BEST = 2  /* its model, as the best one */
} sli_saver_target;

/* Starts writing the copy to the targets, one or both. */
sl_status sli_saver_start(sli_saver *saver, int targets, int64_t step);

/* Whether a save has ended since the last call, with `wait` after waiting for it; *event then says
 * how. Its strings live until the next sli_saver_start. */
bool sli_saver_ended(sli_saver *saver, bool wait, sl_checkpoint_event *event);

#endif
