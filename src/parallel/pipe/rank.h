/* A pipeline rank: a thread that drives one device, with the stages that are placed on it. */
#ifndef SLI_PARALLEL_PIPE_RANK_H
#define SLI_PARALLEL_PIPE_RANK_H

#include "core/threads.h"
#include "parallel/pipe/stage.h"

typedef struct sli_rank {
    int index;
    int group_rank;     /* its process's */
    sl_device *device;  /* NULL: it is in another process */
    sli_worker *worker; /* likewise */
    sli_stage *stages;  /* all of the pipe's */
    const int *own;     /* [own_count] indexes of its own, ascending */
    int own_count;
    void (*fn)(struct sli_rank *rank, void *arg); /* what its worker runs */
    void *arg;

    /* Held while the rank works with its device, because other ranks of the pipe may have the same
     * one. No rank waits for another while it holds the lock; of other locks only a channel's, the
     * failure's and the device's own are taken below it. */
    pthread_mutex_t *device_lock;
} sli_rank;

/* The interpreter (interpreter.c): runs the rank's row of the table of a step; `arg` is the
 * sli_step. Errors end the step for all ranks and are found in its failure. */
void sli_rank_run(sli_rank *rank, void *arg);

#endif
