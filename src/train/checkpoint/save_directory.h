/* The directory that a run's checkpoints lie in:
 *
 *   DIR/step-00000020/   DIR/step-00000040/   …   after so many steps; the newest is the last
 *   DIR/best/                                     the best model alone
 *
 * One run at a time saves to it. */
#ifndef SLI_TRAIN_CHECKPOINT_SAVE_DIRECTORY_H
#define SLI_TRAIN_CHECKPOINT_SAVE_DIRECTORY_H

#include "sluice/train.h"
#include "train/replica.h"

/* Makes the directory where it is not there, keeps other runs out as long as *descriptor is open,
 * and removes what saves that were interrupted have left. A directory with checkpoints is another
 * run's, unless `resume` (NULL: none) is that directory or one of them. Errors, without an open
 * descriptor: SL_ERR_INVALID where another run saves there or has saved, or where "best" is
 * something else; SL_ERR_IO where nothing can be written. */
sl_status sli_save_directory_open(const char *path, const char *resume, int *descriptor);

/* Whether all replicas see the same directory, as on one machine or a shared file system; called by
 * every replica, the first of which must have created it, with a number that is drawn for this run.
 */
sl_status sli_save_directory_is_shared(const char *path, const sli_replica *replicas,
                                       uint64_t number, bool *out);

/* "DIR/step-00000040" and "DIR/best", malloc'ed. */
sl_status sli_save_directory_step(const char *path, int64_t step, char **out);
sl_status sli_save_directory_best(const char *path, char **out);

/* Removes checkpoints of steps before `step` until, it included, at most `keep` (0: all) stay. Of a
 * link its target stays; a checkpoint in which a directory lies stays as it is. */
sl_status sli_save_directory_prune(const char *path, int64_t step, int keep);

/* The steps of the checkpoints in a directory (directories, or links to them), newest first: *steps
 * [*count], to be freed; with `others`, of what has a checkpoint's name but is none, as a file is.
 * A directory that is not there has none. Errors: SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_save_directory_list(const char *path, bool others, int64_t **steps, size_t *count);

/* ---- DIR/progress: the last step that a run has done ------------------------------------ */

/* By it a run that goes on says how many steps were lost. Nothing else depends on it, so errors are
 * ignored, and it is not synced: it outlives a process, not a power cut. A user's file or link of
 * that name stays as it is. The zero value records nothing. */
typedef struct sli_last_step {
    bool is_open;
    int descriptor;
} sli_last_step;

sli_last_step sli_last_step_open(const char *directory);
void sli_last_step_close(sli_last_step *file);

/* Replaces the number, in one system call. */
void sli_last_step_write(const sli_last_step *file, int64_t step);

/* 0 where there is none. */
int64_t sli_last_step_read(const char *directory);

#endif
