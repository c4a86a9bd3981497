/* What checkpoints.c, which copies a run's state, and saver.c, which writes the copy, share. */
#ifndef SLI_TRAIN_CHECKPOINT_SAVER_H
#define SLI_TRAIN_CHECKPOINT_SAVER_H

#include "core/error.h"
#include "io/checkpoint/format.h"
#include "train/checkpoint/checkpoints.h"
#include "train/checkpoint/weights.h"

#include <pthread.h>
#include <stdatomic.h>

/* What the first replica must know of another's shard. */
typedef struct sli_shard_report {
    sli_checkpoint_written file;
    sli_error_copy error;
} sli_shard_report;

struct sli_checkpoints {
    const sli_run *run;
    const sl_save_options *options; /* the run's */
    bool writes;                    /* the first replica where there is a directory, or all */
    sl_group *group; /* of all replicas' savers, each of which writes its shard of the optimizers'
                        state; NULL: the first one writes all of it */
    uint64_t number; /* drawn for this run; counts its saves; each save's own, the same on all */
    bool end_saved;  /* or saving it has begun */

    /* The first replica's, where there is a directory. */
    int directory; /* as long as it is open, no other run saves there; -1: none */
    sli_model_metadata metadata;
    char *vocab;
    size_t vocab_bytes;

    /* The copy, filled while nothing is being written: by the first replica all of it, by the
     * others the optimizer alone. */
    sli_tensor_copy model, optimizer, best; /* `best` without items: there is none */
    char *state;                            /* of sli_run_state_print */
    double copy_seconds;

    /* The save under way, or the last one. */
    bool under_way;  /* from the start until the end was reported */
    bool has_thread; /* that was not joined */
    pthread_t thread;
    int targets;
    int64_t step;
    char *path; /* of the checkpoint, or of the best model where there is only that */

    /* The thread's, until `done` is true. */
    sli_shard_report own, *all; /* all [replicas]: the first replica's */
    double write_seconds;
    sli_error_copy error;
    atomic_bool done;
};

typedef enum sli_save_target {
    SLI_SAVE_STEP = 1, /* the whole copy, as the checkpoint of `step` */
    SLI_SAVE_BEST = 2  /* its model, as the best one; by the first replica alone */
} sli_save_target;

/* Starts a thread that writes the copy to of->targets, one or both, while the run goes on.
 * Where `copied` is an error, there is no copy: with this thread's error text it becomes the
 * save's. One save is written at a time. */
void sli_saver_start(sli_checkpoints *of, sl_status copied);

/* Joins the thread, if any. */
void sli_saver_wait(sli_checkpoints *of);

#endif
