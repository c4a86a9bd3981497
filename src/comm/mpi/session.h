/* What a process has once, because MPI is initialized once: MPI, the hub (on rank 0) and the watch.
 * Made by the first group, ended when the process exits. */
#ifndef SLI_COMM_MPI_SESSION_H
#define SLI_COMM_MPI_SESSION_H

#include "comm/mpi/transport.h"
#include "comm/mpi/watch.h"

typedef struct sli_session {
    const sli_transport *mpi;
    sli_communicator *world;
    int rank, size;
    sli_watch *watch;
    /* A failed operation left a receive that would not be cancelled: MPI may write to its buffer
     * the next time that it is called, so it is not called again. */
    atomic_bool unusable;
    atomic_uint_fast64_t groups_made;
} sli_session;

/* Makes it where there is none yet. */
sl_status sli_session_get(sli_session **out);

/* Numbers the groups of all processes, from 0. */
uint64_t sli_session_count_group(sli_session *session);

#endif
