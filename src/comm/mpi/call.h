/* One call of a group over MPI: its messages under way, and waiting for them.
 *
 * Messages stand in numbered slots. Waiting polls: it fails when the time limit passes, when a rank
 * that is needed has died or left and when the group is broken. A call that fails cancels its
 * messages before it returns, since its buffers are the caller's again. */
#ifndef SLI_COMM_MPI_CALL_H
#define SLI_COMM_MPI_CALL_H

#include "comm/group.h"
#include "comm/mpi/process.h"
#include "core/clock.h"

#include <pthread.h>

enum { SLI_TAG_DATA, SLI_TAG_RESULT, SLI_TAG_CHECK, SLI_TAG_USERS };

/* A copy of a message, until MPI has sent it. */
typedef struct sli_outgoing {
    struct sli_outgoing *next;
    sli_request request;
    int receiver;
    _Alignas(16) char data[];
} sli_outgoing;

/* A group's handle in this process: sl_group.state. */
typedef struct sli_mpi_group {
    sli_mpi_process *process;
    sli_communicator comm; /* all zeros: not made */
    sli_member member;
    int *processes;
    uint64_t *last;  /* the member's */
    uint64_t splits; /* so far */
    /* Used by one collective operation at a time. */
    sli_request *slots;
    int slot_count;
    void *scratch;
    size_t scratch_bytes;
    pthread_mutex_t lock; /* guards all below */
    sli_outgoing *outgoing;
} sli_mpi_group;

typedef struct sli_call {
    sl_group *group;
    sli_mpi_group *state;
    const sli_operation *operation; /* NULL: the group is being made */
    sli_running_clock waited;       /* begins when there is time for it */
    int idle;                       /* polls since something last happened */
} sli_call;

sli_call sli_call_begin(sl_group *group, const sli_operation *operation);

/* Makes room for messages in slots 0 … count - 1. Once in a call, before its first message. */
sl_status sli_call_reserve(sli_call *call, int count);

/* Memory that is valid until the next call of this function for the group. */
sl_status sli_call_scratch(const sli_call *call, size_t bytes, void **out);

/* Start a message in a free slot. */
sl_status sli_call_send(sli_call *call, int slot, const void *data, size_t bytes, int to, int tag);
sl_status sli_call_receive(sli_call *call, int slot, void *data, size_t bytes, int from, int tag);

/* Wait until the message in a slot, or all below `count`, are done, which frees the slots. */
sl_status sli_call_wait(sli_call *call, int slot);
sl_status sli_call_wait_all(sli_call *call, int count);

/* To be called whenever a poll finds nothing: pauses a little, and fails when waiting is over. */
sl_status sli_call_pause(sli_call *call);

/* Whether the time limit is over. It begins with the first question, and does not count while the
 * process is suspended. */
bool sli_call_is_late(sli_call *call);

/* Ends what a failed call has under way. */
void sli_call_cancel(sli_call *call);

/* Breaks the group because an MPI function gave `code`. */
sl_status sli_call_mpi_error(const sli_call *call, int code);

/* Ends requests whose buffers are needed for other things. A send that does not end is dropped: no
 * rank of a broken group receives it. A receive that does not end makes MPI unusable. False: some
 * buffer may still be in use. */
bool sli_requests_end(sli_mpi_process *process, sli_request *requests, int count);

/* Runs call->operation (collective.c); those that combine data (reduction.c). */
sl_status sli_mpi_run(sli_call *call);
sl_status sli_mpi_reduce(sli_call *call);

/* Single messages (message.c). */
sl_status sli_mpi_send(sl_group *group, const sli_message *message);
sl_status sli_mpi_receive(sl_group *group, const sli_message *message);

sl_status sli_mpi_start(sl_group *group, const sli_message *message, bool receives,
                        sli_transfer *out);
sl_status sli_mpi_progress(sl_group *group, sli_transfer *transfer);
bool sli_mpi_cancel(sl_group *group, sli_transfer *transfer);
const char *sli_mpi_absence(sl_group *group, int rank, bool *has_left);
sl_status sli_mpi_status(sl_group *group);

/* Waits until every message that was sent is received, or can never be. */
void sli_mpi_flush(sl_group *group);

#endif
