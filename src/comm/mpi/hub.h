/* The hub: a thread of rank 0 that every rank's watch (hub_watch.h) is connected to, and what they
 * tell each other beside MPI. See hub.c. */
#ifndef SLI_COMM_MPI_HUB_H
#define SLI_COMM_MPI_HUB_H

#include "comm/wire/wire.h"

/* The kinds of messages (comm/wire/wire.h). `rank` and `size` are of the group `group`, where there
 * is one. */
enum {
    SLI_HUB_JOIN = SLI_WIRE_ALIVE + 1, /* this process is ready to be `rank` of the group */
    SLI_HUB_REFUSE,     /* it will not be `rank` of it: `number` is the status, text the error */
    SLI_HUB_READY,      /* hub: all ranks have joined */
    SLI_HUB_LEFT,       /* `rank` of the group has left after operation `sequence`; text: the error
                           because of which it left, or "". The hub passes on a group's first error */
    SLI_HUB_RANKS_LEFT, /* hub: ranks that have left, and after which operations: runs (below) */
    SLI_HUB_BREAK, /* the group is broken: `number` is the status, text the error; `sequence` is 1
                      where the error is about `rank` of the group, else 0 */
    SLI_HUB_LATE,  /* operation `sequence`, text, is past the limit of `seconds`: who is missing? */
    SLI_HUB_ASK,   /* hub: which operation have you begun? */
    SLI_HUB_AT,    /* `rank` of the group has begun operation `sequence` */
    SLI_HUB_DEAD,  /* hub: process `rank` of all `size` is dead or lost; text says why */
    SLI_HUB_BYE,   /* this process ends; `number` is 0 where it is ready to finalize MPI */
    SLI_HUB_ENDED, /* hub: processes, of all `size`, that have said BYE: runs of sequence 0 */
    SLI_HUB_END,   /* hub: all that live have said BYE; `number` is 0 if all are ready */
    SLI_HUB_KINDS
};

/* What a received message must say besides what the wire has checked, for its kind: a status is an
 * error, a group has a size, DEAD names one of `processes`. The same on both sides. */
bool sli_hub_message_is_valid(const sli_wire_message *message, int processes);

/* Ranks that follow one another and have the same sequence. A message's text has as many as find
 * room, each as "FIRST LAST SEQUENCE ". */
typedef struct sli_hub_run {
    int first, last;
    uint64_t sequence;
} sli_hub_run;

/* Adds a run to the text of a message; false: there is no room. */
bool sli_hub_run_write(const sli_hub_run *run, sli_wire_message *message);

/* Reads a run of a message's ranks and moves *text behind it; false where there is none. */
bool sli_hub_run_read(const char **text, int size, sli_hub_run *out);

/* After so long a silence the other side counts as lost: well within the 5 s in which survivors
 * must know, and longer than a thread waits for a core on a busy machine. */
#define SLI_SILENT_SECONDS 4.0

typedef struct sli_hub sli_hub;

/* Starts the hub for `size` ranks, which are all on this host or not; *address is for
 * sli_watch_create. */
sl_status sli_hub_create(int size, bool this_host, sli_wire_address *address, sli_hub **out);

/* Ends the hub's work before all ranks have said BYE. NULL is allowed. */
void sli_hub_stop(sli_hub *hub);

/* Waits until the hub's work is done. NULL is allowed. */
void sli_hub_destroy(sli_hub **hub);

/* ---- Groups: the hub's thread alone uses these ------------------------------------------- */

/* What the hub knows about groups: which ranks have joined and left, which operation each has
 * begun, and whether a group is broken. */
typedef struct sli_hub_group sli_hub_group;

typedef struct sli_hub_groups {
    sli_hub_group *first;
    sli_hub_group *spare; /* used when there is no memory for a new group; NULL: used */
    int processes;
    double now;     /* on the hub's clock, which sets it before each call */
    double tell_at; /* when the others are told of those that have left; 0: none have */
    /* Sends a message to a process; does nothing where it is dead. */
    void (*send)(void *hub, int process, const sli_wire_message *message);
    void *hub;
} sli_hub_groups;

/* `send`, `hub` and `processes` are filled in. */
sl_status sli_hub_groups_create(sli_hub_groups *groups);

/* Handles a message about a group from `process`. False where no rank would send it. */
bool sli_hub_groups_handle(sli_hub_groups *groups, int process, const sli_wire_message *message);

/* `process` is dead or lost, and sends no more messages. */
void sli_hub_groups_mark_dead(sli_hub_groups *groups, int process);

/* Has the others told soon, by sli_hub_groups_tell at `tell_at`, that a process has left. */
void sli_hub_groups_tell_soon(sli_hub_groups *groups);

/* Tells each group which of its ranks have left and have not been told of. */
void sli_hub_groups_tell(sli_hub_groups *groups);

/* Breaks the groups that have waited for answers long enough. */
void sli_hub_groups_check_times(sli_hub_groups *groups);

void sli_hub_groups_free(sli_hub_groups *groups);

#endif
