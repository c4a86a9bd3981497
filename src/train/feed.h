/* Blocks of token ids as the pipe's input and target tensors. */
#ifndef SLI_TRAIN_FEED_H
#define SLI_TRAIN_FEED_H

#include "sluice/pipe.h"
#include "sluice/text.h"

typedef struct sli_feed {
    const sl_batches *batches;           /* borrowed */
    sl_tensor *input_room, *target_room; /* [N, bptt], reused by every block */
    sl_tensor *input, *targets;          /* [N, T], views of the rooms */
} sli_feed;

sl_status sli_feed_create(const sl_pipe *pipe, const sl_batches *batches, sli_feed *out);
void sli_feed_clear(sli_feed *feed);

/* Makes input and targets those of block `index`. */
sl_status sli_feed_load(sli_feed *feed, int64_t index);

#endif
