/* What the replicas of one process share: options, text and devices, which they only read, and the
 * copy of the best parameters. */
#ifndef SLI_TRAIN_SHARED_H
#define SLI_TRAIN_SHARED_H

#include "sluice/train.h"
#include "train/checkpoint/best.h"

typedef struct sli_shared {
    sl_train_options options; /* completed by what the data say */
    sl_vocab *vocab;          /* that the initial weights were saved with, if any */
    sl_corpus *corpus;
    sl_batches batches; /* the training text, all shards side by side */
    int64_t batches_per_epoch;
    sl_device_list *devices; /* [replicas of the process * stages] */
    bool oversubscribed;
    sli_best *best;
    double best_possible_perplexity; /* 0 where the text is no synthetic corpus */
} sli_shared;

/* Which of the host's replicas are in this process. */
typedef struct sli_place {
    int first, count;
    bool bound; /* this process has cores that the other replicas have not */
} sli_place;

/* Checks the options, reads the text and creates the devices of the replicas in this process; the
 * text is not cut yet. Cleared by sli_shared_clear, also after an error. */
sl_status sli_shared_create(const sl_train_options *options, const sli_place *place,
                            sli_shared *out);
/* Cuts the text, the training's into `shards` shards; `lr` is the learning rate where the options
 * leave it open. What options and text then say is complete. */
sl_status sli_shared_cut(sli_shared *shared, int shards, double lr);
void sli_shared_clear(sli_shared *shared);

#endif
