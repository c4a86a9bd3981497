/* A training run, as the replicas of one process see it. */
#ifndef SLI_TRAIN_RUN_H
#define SLI_TRAIN_RUN_H

#include "sluice/checkpoint.h"
#include "train/checkpoint/best.h"
#include "train/reports.h"

/* What the replicas of one process have in common. They only read it, but for the copy of the best
 * parameters, which the first one writes. */
typedef struct sli_shared {
    sl_train_options options; /* completed by what the data say */
    sl_vocab *vocab;          /* that the initial weights were saved with, if any */
    sl_corpus *corpus;
    sl_batches batches; /* the training text, all shards side by side */
    int64_t batches_per_epoch;
    sl_device_list *devices; /* [replicas of the process * stages] */
    bool oversubscribed;
    sli_best *best;
} sli_shared;

/* Those of the host's replicas that are in this process. */
typedef struct sli_local_replicas {
    int first, count;
    bool own_cores; /* no other process of the run may use this one's cores */
} sli_local_replicas;

/* Checks the options, reads the text and creates the devices of the replicas in this process; the
 * text is not cut yet. Cleared by sli_shared_clear, also after an error. */
sl_status sli_shared_create(const sl_train_options *options, const sli_local_replicas *replicas,
                            sli_shared *out);
void sli_shared_clear(sli_shared *shared);

/* Cuts the text, the training's into `shards` shards, and so completes options and text. `lr` is
 * the learning rate where the options leave it open. */
sl_status sli_shared_cut(sli_shared *shared, int shards, double lr);

/* The training loop of one replica (trainer.c), on devices [stages], as its rank of `group` (NULL:
 * there is one replica). `from` is the checkpoint to go on from, which only the first replica is
 * given; NULL: none. */
sl_status sli_train_replica(const sli_shared *shared, sl_group *group, sl_device *const *devices,
                            const sl_checkpoint_reader *from, const sli_reports *reports,
                            sl_run_result *result);

/* SL_ERR_INVALID where `save` would overwrite a text in `data`. */
sl_status sli_check_save(const sl_train_options *options);

#endif
