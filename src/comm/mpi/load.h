/* Finds and opens the plugin that calls MPI. */
#ifndef SLI_COMM_MPI_LOAD_H
#define SLI_COMM_MPI_LOAD_H

#include "comm/mpi/transport.h"
#include "sluice/status.h"

/* Errors: SL_ERR_UNSUPPORTED where this build has no plugin, or no MPI is installed. */
sl_status sli_transport_load(const sli_transport **out);

#endif
