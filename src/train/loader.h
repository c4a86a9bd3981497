/* A loader gives blocks of token ids as the pipe's input and target tensors. */
#ifndef SLI_TRAIN_LOADER_H
#define SLI_TRAIN_LOADER_H

#include "sluice/pipe.h"
#include "sluice/text.h"

typedef struct sli_loader {
    sl_batches batches;
    sl_tensor *input_room, *target_room; /* [N, bptt], reused by every block */
    sl_tensor *input, *targets;          /* [N, T], views of the rooms */
} sli_loader;

/* The input is on the pipe's first device, the targets are on its last one. Cleared by
 * sli_loader_clear, also after an error. */
sl_status sli_loader_create(const sl_pipe *pipe, const sl_batches *batches, sli_loader *out);
void sli_loader_clear(sli_loader *loader);

/* Makes input and targets those of block `index`. */
sl_status sli_loader_load(sli_loader *loader, int64_t index);

#endif
