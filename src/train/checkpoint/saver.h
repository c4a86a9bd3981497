/* Writes checkpoints behind a run's back: a thread writes a copy of the state while the run goes
 * on. One is written at a time. Belongs to the thread that drives the replica.
 *
 * Where the optimizers' state is sharded, every replica has a saver, and a save has two halves.
 *
 *     replica 0    |- what is not sharded, own slices -|         |- state.json, rename -|
 *     replica 1    |- own slices -|                         ^
 *     replica 2    |- own slices -----------------|         all know of each other's end here
 *
 * The savers do not know of one another: their replicas carry the reports
 * (train/checkpoint/checkpoints.h). */
#ifndef SLI_TRAIN_CHECKPOINT_SAVER_H
#define SLI_TRAIN_CHECKPOINT_SAVER_H

#include "sluice/train.h"
#include "train/checkpoint/shards.h"

typedef struct sli_saver sli_saver;

/* Strings, `metadata` (of the model's files) and the file's data are borrowed. */
typedef struct sli_saver_options {
    const char *directory;
    int keep;
    uint64_t shard_bytes;
    const sl_metadata *metadata;
    size_t metadata_count;
    sl_checkpoint_file file;                    /* the vocabulary */
    sli_shards *shards;                         /* borrowed; NULL: one saver writes all */
    void (*saving)(void *context, bool begins); /* as in sl_save_options */
    void *context;
    int rank, replicas;
} sli_saver_options;

sl_status sli_saver_create(const sli_saver_options *options, sli_saver **out);
void sli_saver_destroy(sli_saver **saver); /* waits; NULL is allowed */

/* The copy that will be written, to be filled while nothing is being written: by replica 0 all of
 * it, by the others the optimizer's slices alone. */
sli_snapshot *sli_saver_snapshot(sli_saver *saver);

typedef enum sli_saver_target {
    SLI_SAVE_STEP = 1, /* the whole copy, as the checkpoint of `step` */
    SLI_SAVE_BEST = 2  /* its model, as the best one */
} sli_saver_target;

/* Starts writing the copy to the targets, one or both; `id` is drawn for this save, and the same on
 * all replicas. A checkpoint of a sharded state is started by all of them, SLI_SAVE_BEST alone by
 * replica 0. */
sl_status sli_saver_start(sli_saver *saver, int targets, int64_t step, uint64_t id);

/* In place of it, where there is no copy: `reason` becomes the save's. */
void sli_saver_start_failed(sli_saver *saver, int targets, int64_t step, sl_status status,
                            const char *reason);

/* Whether a save has ended since the last call, with `wait` after waiting for it; *event then says
 * how. Its strings live until the next start. Not to be asked while sli_saver_is_shared. */
bool sli_saver_ended(sli_saver *saver, bool wait, sl_checkpoint_event *event);

/* ---- Between the halves ----------------------------------------------------------------- */

/* Whether this replica's first half was started, and the reports were not exchanged yet. */
bool sli_saver_is_shared(const sli_saver *saver);

/* Whether its first half has ended. */
bool sli_saver_wrote(const sli_saver *saver);

/* One report is so many bytes, the same on all replicas, a multiple of 8. It is made when the first
 * half has ended, for which it waits. */
size_t sli_saver_report_bytes(const sli_saver *saver);
void sli_saver_report(sli_saver *saver, void *to);

/* Replica 0: with everybody's reports, in the order of ranks, starts the second half, or ends the
 * save as failed. The others (NULL) are done. */
void sli_saver_complete(sli_saver *saver, const void *reports);

#endif
