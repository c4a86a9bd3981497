/* What the hub knows about groups: which ranks have joined and left, which operation each has
 * begun, and whether a group is broken. Used by the hub's thread alone. */
#ifndef SLI_COMM_MPI_HUB_GROUPS_H
#define SLI_COMM_MPI_HUB_GROUPS_H

#include "comm/mpi/hub.h"

typedef struct sli_hub_group sli_hub_group;

typedef struct sli_hub_groups {
    sli_hub_group *first;
    sli_hub_group *spare; /* for the next group that there is no memory for; NULL: used */
    int processes;
    double now; /* on the hub's clock, which sets it before each call */
    /* Sends a message to a process; does nothing where it is dead. */
    void (*send)(void *hub, int process, const sli_wire_message *message);
    void *hub;
} sli_hub_groups;

/* `send`, `hub` and `processes` are filled in. */
sl_status sli_hub_groups_create(sli_hub_groups *groups);

/* Handles a message about a group from `process`. False where no rank would send it. */
bool sli_hub_groups_handle(sli_hub_groups *groups, int process, const sli_wire_message *message);

/* `process` sends nothing any more. */
void sli_hub_groups_mark_dead(sli_hub_groups *groups, int process);

/* Breaks the groups that have waited for answers long enough. */
void sli_hub_groups_check_times(sli_hub_groups *groups);

void sli_hub_groups_free(sli_hub_groups *groups);

#endif
