/* Sending and receiving single messages over MPI. */
#ifndef SLI_COMM_MPI_MESSAGE_H
#define SLI_COMM_MPI_MESSAGE_H

#include "comm/mpi/call.h"

sl_status sli_mpi_send(sl_group *group, const sli_message *message);
sl_status sli_mpi_receive(sl_group *group, const sli_message *message);

/* Waits until what was sent has been taken, or cannot be any more. */
void sli_mpi_flush(sl_group *group);

#endif
