/* A rank's watch: what it knows about which ranks live, from the hub (hub.h), and a thread that
 * reads the hub's messages. */
#ifndef SLI_COMM_MPI_HUB_WATCH_H
#define SLI_COMM_MPI_HUB_WATCH_H

#include "comm/group.h"
#include "comm/wire/wire.h"

#include <stdatomic.h>

typedef struct sli_watch sli_watch;

/* One group, as its handle in this process and the watch share it. */
typedef struct sli_member {
    struct sli_member *next;
    uint64_t id; /* the same in all its ranks, no other group's */
    int rank, size;
    const int *processes;          /* [size] each rank's process; borrowed */
    atomic_uint_fast64_t sequence; /* the newest operation begun */
    atomic_bool alarm;             /* a rank is dead or has left, or the group is broken: check */
    atomic_bool ready;             /* all ranks have joined */
    /* The watch's lock guards the rest. */
    uint64_t *last;              /* [size] the last operation of a rank that has left; borrowed */
    char cause[SLI_ERROR_BYTES]; /* the error because of which the first rank left; "": none */
    sli_error_copy broken;       /* SL_OK: the group works */
} sli_member;

sl_status sli_watch_create(const sli_wire_address *hub, int rank, int size, sli_watch **out);

/* Tells the hub that this process ends, `ready` to finalize MPI or not; `progress` is called while
 * the others are waited for. True if MPI can be finalized: all ranks are ready. */
bool sli_watch_end(sli_watch *watch, bool ready, void (*progress)(void *argument), void *argument);

/* After sli_watch_end. NULL is allowed. */
void sli_watch_destroy(sli_watch **watch);

/* Joins a group, for which this process has all that it needs. The member's id, rank, size,
 * processes and last are set; all but the content of `last` with their final values. */
void sli_watch_join(sli_watch *watch, sli_member *member);
void sli_watch_leave(sli_watch *watch, sli_member *member);

/* Instead of joining: this process, `rank` of the group of `size`, cannot take part. The others are
 * told this thread's error, which is returned. */
sl_status sli_watch_refuse_group(sli_watch *watch, uint64_t id, int rank, int size,
                                 sl_status error);
bool sli_watch_has_members(sli_watch *watch);

/* Fails if the group is broken, or breaks because `operation` needs a rank that is dead or has
 * left. NULL stands for the creation of the group. */
sl_status sli_watch_check(sli_watch *watch, sli_member *member, const sli_operation *operation);

/* Fails if the group is broken. */
sl_status sli_watch_status(sli_watch *watch, sli_member *member);

/* Breaks the group everywhere with this thread's error, unless it is broken; returns the error that
 * broke it. */
sl_status sli_watch_break(sli_watch *watch, sli_member *member, sl_status error);

/* The time limit of an operation is over: breaks the group, naming the ranks that have not come. */
sl_status sli_watch_break_late(sli_watch *watch, sli_member *member, const sli_operation *operation,
                               double seconds);

/* Why `rank` can neither send nor receive: "has left the group" (*has_left is set, which may be
 * NULL) or how it ended; NULL where it can. The text lives as long as the watch. */
const char *sli_watch_absence(sli_watch *watch, sli_member *member, int rank, bool *has_left);

#endif
