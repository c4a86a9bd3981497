/* What the hub knows about groups: who has joined, left and come how far, and whether a group is
 * broken. Used by the hub's thread alone. */
#ifndef SLI_COMM_MPI_HUB_GROUPS_H
#define SLI_COMM_MPI_HUB_GROUPS_H

#include "comm/mpi/kinds.h"

typedef struct sli_hub_group sli_hub_group;

typedef struct sli_hub_groups {
    sli_hub_group *first;
    sli_hub_group *spare; /* for the next group that there is no memory for; NULL: used */
    int processes;
    double now; /* on the hub's clock, which sets it before each call */
    /* Sends a message to a process; does nothing where it is dead. */
    void (*tell)(void *hub, int process, const sli_wire_message *message);
    void *hub;
} sli_hub_groups;

/* `tell`, `hub` and `processes` are filled in. */
sl_status sli_hub_groups_create(sli_hub_groups *groups);

/* A message about a group has come from `process`. False where no rank would send it. */
bool sli_hub_groups_take(sli_hub_groups *groups, int process, const sli_wire_message *message);

/* `process` will say nothing any more. */
void sli_hub_groups_lose(sli_hub_groups *groups, int process);

/* Ends what has waited for answers long enough. */
void sli_hub_groups_tick(sli_hub_groups *groups);

void sli_hub_groups_free(sli_hub_groups *groups);

#endif
