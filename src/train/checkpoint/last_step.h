/* The last step that a run has finished, in the file `progress` of the directory that it saves to:
 * a run that goes on from a checkpoint there says by it how many steps were lost. Nothing else
 * depends on it, so errors are ignored, and it is not synced: it outlives a process, not a power
 * cut. A user's file or link of that name stays as it is. */
#ifndef SLI_TRAIN_CHECKPOINT_LAST_STEP_H
#define SLI_TRAIN_CHECKPOINT_LAST_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* The zero value metadata nothing. */
typedef struct sli_last_step {
    bool is_open;
    int descriptor;
} sli_last_step;

sli_last_step sli_last_step_open(const char *directory);
void sli_last_step_close(sli_last_step *file);

/* Replaces the number, in one system call. */
void sli_last_step_note(const sli_last_step *file, int64_t step);

/* 0 where there is none. */
int64_t sli_last_step_read(const char *directory);

#endif
