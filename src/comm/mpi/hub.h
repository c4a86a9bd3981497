/* The hub: a thread of rank 0 that every rank's watch is connected to. See hub.c. */
#ifndef SLI_COMM_MPI_HUB_H
#define SLI_COMM_MPI_HUB_H

#include "comm/mpi/note.h"

typedef struct sli_hub sli_hub;

/* How often each side says that it is there, and after which silence the other is given up: well
 * within the 5 s in which survivors must know, and longer than a busy machine forgets a thread. */
#define SLI_ALIVE_SECONDS  0.5
#define SLI_SILENT_SECONDS 4.0

/* Starts the hub for `size` ranks; *address is for sli_hub_call. */
sl_status sli_hub_create(int size, sli_hub_address *address, sli_hub **out);

/* Waits until the hub's work is done, which it is after END. NULL is allowed. */
void sli_hub_destroy(sli_hub **hub);

#endif
