/* The hub: a thread of rank 0 that every rank's watch is connected to. See hub.c. */
#ifndef SLI_COMM_MPI_HUB_H
#define SLI_COMM_MPI_HUB_H

#include "core/wire.h"

typedef struct sli_hub sli_hub;

/* After which silence the other side is given up: well within the 5 s in which survivors must know,
 * and longer than a busy machine forgets a thread. */
#define SLI_SILENT_SECONDS 4.0

/* Starts the hub for `size` ranks, which are all on this host or not; *address is for
 * sli_watch_create. */
sl_status sli_hub_create(int size, bool this_host, sli_wire_address *address, sli_hub **out);

/* Ends the hub's work, which else is done after END. NULL is allowed. */
void sli_hub_stop(sli_hub *hub);

/* Waits until the hub's work is done. NULL is allowed. */
void sli_hub_destroy(sli_hub **hub);

#endif
