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

typedef struct sli_save_directory sli_save_directory;

/* Makes the directory where it is not there, keeps other runs out, and removes what saves that were
 * interrupted have left. A directory with checkpoints is another run's, unless `resume` (NULL:
 * none) is that directory or one of them. Errors: SL_ERR_INVALID where another run saves there or
 * has saved, or where "best" is something else; SL_ERR_IO where nothing can be written. */
sl_status sli_save_directory_create(const char *path, const char *resume, sli_save_directory **out);
void sli_save_directory_destroy(sli_save_directory **directory); /* NULL is allowed */

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
 * [*count], to be freed. A directory that is not there has none. Errors: SL_ERR_IO, SL_ERR_MEMORY.
 */
sl_status sli_save_directory_list(const char *path, int64_t **steps, size_t *count);

/* The same of what has a checkpoint's name but is none, as a file is. */
sl_status sli_save_directory_list_others(const char *path, int64_t **steps, size_t *count);

#endif
