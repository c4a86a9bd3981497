/* What a process has once, because MPI is initialized once: MPI, the hub (on rank 0) and the watch.
 * Made by the first group, ended when the process exits. */
#ifndef SLI_COMM_MPI_PROCESS_H
#define SLI_COMM_MPI_PROCESS_H

#include "comm/mpi/hub.h"
#include "comm/mpi/hub_watch.h"
#include "comm/mpi/transport.h"

typedef struct sli_mpi_process {
    const sli_transport *mpi;
    sli_communicator world;
    bool started, finalizes; /* MPI, and whether it is ours to finalize */
    int rank, size;
    sli_hub *hub; /* NULL but on rank 0 */
    sli_watch *watch;
    _Atomic double sends_until; /* the newest deadline of abandoned sends (call.c) */
    /* A failed operation left a receive that would not be cancelled: MPI may write to its buffer
     * the next time that it is called, so it is not called again. */
    atomic_bool unusable;
    atomic_uint_fast64_t groups_made;
} sli_mpi_process;

/* Makes it where there is none yet. */
sl_status sli_mpi_process_get(sli_mpi_process **out);

#endif
