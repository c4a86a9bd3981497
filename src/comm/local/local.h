/* The ranks of a group of threads, as the files of the backend `local` see them. */
#ifndef SLI_COMM_LOCAL_LOCAL_H
#define SLI_COMM_LOCAL_LOCAL_H

#include "comm/group.h"
#include "core/clock.h"

#include <pthread.h>

/* A message that was sent and is not received yet. */
typedef struct sli_queued_message {
    struct sli_queued_message *next;
    int sender, receiver, tag;
    int64_t count;
    sl_dtype dtype;
    char data[];
} sli_queued_message;

/* A transfer whose other end has not been started; each rank owns its own. */
typedef struct sli_local_transfer {
    struct sli_local_transfer *next;
    int rank; /* whose it is; the other end is its message's */
    bool receives, done;
    sli_message message;
} sli_local_transfer;

typedef struct sli_rank_slot {
    sli_operation operation; /* valid from arrival to departure */
    bool arrived, left;
    int color;          /* of a split */
    sl_group *subgroup; /* this rank's handle of the group that a split makes */
} sli_rank_slot;

typedef struct sli_world {
    int size;
    double timeout_seconds;
    bool check;
    pthread_mutex_t lock; /* guards all below; slots' operations are read without it between the
                             meetings, when no rank writes them */
    pthread_cond_t changed;
    int here; /* handles not destroyed yet */
    int arrived, departed;
    uint64_t meetings;             /* completed arrivals and departures */
    sli_error_copy broken;         /* SL_OK: the group works */
    sli_queued_message *queue;     /* sent and not yet received, oldest first */
    sli_local_transfer *transfers; /* likewise, by start */
    int *job_ranks;                /* [size] behind the slots; constant once ranks have handles */
    sli_rank_slot slots[];
} sli_world;

/* With the lock held: waits a while for something to change; false where the group's time limit is
 * over. `waited`, zeroed, counts the time of one wait, in which the process was not suspended. */
bool sli_local_wait(sli_world *world, sli_running_clock *waited);

/* Point to point (local_messages.c). */
sl_status sli_local_send(sl_group *group, const sli_message *message);
sl_status sli_local_receive(sl_group *group, const sli_message *message);
sl_status sli_local_start(sl_group *group, const sli_message *message, bool receives,
                          sli_transfer *out);
sl_status sli_local_progress(sl_group *group, sli_transfer *transfer);
bool sli_local_cancel(sl_group *group, sli_transfer *transfer);
const char *sli_local_absence(sl_group *group, int rank, bool *has_left);
sl_status sli_local_status(sl_group *group);

#endif
