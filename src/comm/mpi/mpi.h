/* The backend `mpi`: see mpi.c. */
#ifndef SLI_COMM_MPI_MPI_H
#define SLI_COMM_MPI_MPI_H

#include "comm/group.h"

/* This process's handle of a new group of all processes. */
sl_status sli_mpi_create(const sl_group_options *options, sl_group **out);

#endif
