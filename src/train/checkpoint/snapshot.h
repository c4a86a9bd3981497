/* A copy of a run's state in host memory, from which a checkpoint can be written while the run goes
 * on. Its memory is kept from one copy to the next. */
#ifndef SLI_TRAIN_CHECKPOINT_SNAPSHOT_H
#define SLI_TRAIN_CHECKPOINT_SNAPSHOT_H

#include "train/checkpoint/tensors.h"

typedef struct sli_copied {
    sl_safetensors_item *items; /* [count] with names and data of their own */
    size_t count;
    char *memory; /* their data */
    size_t memory_bytes;
} sli_copied;

typedef struct sli_snapshot {
    sli_copied model, optimizer, best; /* without items: not copied */
    char *state;                       /* of sli_run_state_print */
} sli_snapshot;

/* Copies tensors, each stage's on its own worker. */
sl_status sli_copied_take(sl_pipe *pipe, const sli_tensors *from, sli_copied *to);
void sli_copied_forget(sli_copied *copied); /* the items; their memory stays */

void sli_snapshot_clear(sli_snapshot *snapshot);

#endif
