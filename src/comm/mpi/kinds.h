/* What ranks and the hub tell each other beside MPI: the kinds of the wire's messages
 * (core/wire.h). `rank` and `size` are of the group `group`, where there is one. */
#ifndef SLI_COMM_MPI_KINDS_H
#define SLI_COMM_MPI_KINDS_H

#include "core/wire.h"

enum {
    SLI_HUB_JOIN = SLI_WIRE_ALIVE + 1, /* this process is ready to be `rank` of the group */
    SLI_HUB_REFUSE, /* it will not be `rank` of it: `number` is the status, text the error */
    SLI_HUB_READY,  /* hub: all ranks have joined */
    SLI_HUB_LEFT,   /* `rank` of the group has left after operation `sequence` */
    SLI_HUB_BREAK,  /* the group is broken: `number` is the status, text the error */
    SLI_HUB_LATE, /* operation `sequence`, text, is past the limit of `seconds`: who is missing? */
    SLI_HUB_ASK,  /* hub: where in the group are you? */
    SLI_HUB_AT,   /* `rank` of the group has begun operation `sequence` */
    SLI_HUB_DEAD, /* hub: process `rank` of all `size` is no more; text says what happened */
    SLI_HUB_BYE,  /* this process ends; `number` is 0 where it is ready to finalize MPI */
    SLI_HUB_END,  /* hub: all that live have said BYE; `number` is 0 if all are ready */
    SLI_HUB_KINDS
};

/* What a received message must say besides what the wire has checked, for its kind: a status is an
 * error, a group has a size, DEAD names one of `processes`. The same on both sides. */
bool sli_hub_message_is_sound(const sli_wire_message *message, int processes);

#endif
