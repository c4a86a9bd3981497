/* The collective operations over MPI's point-to-point messages. */
#ifndef SLI_COMM_MPI_COLLECTIVE_H
#define SLI_COMM_MPI_COLLECTIVE_H

#include "comm/mpi/call.h"

/* Runs call->operation. */
sl_status sli_mpi_run(sli_call *call);

/* Those that combine data (reduction.c). */
sl_status sli_mpi_reduction(sli_call *call);

#endif
