/* Blocks of token ids as the pipe's input and target tensors. */
#ifndef SLI_TRAIN_LOADER_H
#define SLI_TRAIN_LOADER_H

#include "sluice/pipe.h"
#include "sluice/text.h"

typedef struct sli_loader {
    const sl_batches *batches;           /* borrowed */
    sl_tensor *input_room, *target_room; /* [N, bptt], reused by every block */
    sl_tensor *input, *targets;          /* [N, T], views of the rooms */
} sli_loader;

sl_status sli_loader_create(const sl_pipe *pipe, const sl_batches *batches, sli_loader *out);
void sli_loader_clear(sli_loader *loader);

/* Makes input and targets those of block `index`. */
sl_status sli_loader_load(sli_loader *loader, int64_t index);

#endif
