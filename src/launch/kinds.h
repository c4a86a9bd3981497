/* What `sluice launch` and the processes that it starts tell each other over the wire
 * (core/wire.h). A rank calls its launcher, by the name of its host; the launcher hangs up when the
 * job is over: a rank whose program still runs then ends it. */
#ifndef SLI_LAUNCH_KINDS_H
#define SLI_LAUNCH_KINDS_H

#include "core/wire.h"

/* The environment variable that tells a rank where its launcher listens. */
#define CLI_LAUNCHER_VARIABLE "SLUICE_LAUNCHER"

enum {
    CLI_RANK_SAVING = SLI_WIRE_ALIVE + 1, /* the program writes what must not be cut off … */
    CLI_RANK_SAVED,                       /* … or does so no longer */
    CLI_RANK_ERROR,                       /* it says that it ends with this error, text */
    CLI_RANK_EXIT,                        /* it has ended by itself with status `number`, */
    CLI_RANK_KILLED,                      /* … was killed by signal `number`, */
    CLI_RANK_NOT_STARTED,                 /* … or could not be started: errno is `number` */
    CLI_LAUNCHER_SIGNAL,                  /* launcher: send signal `number` to the program */
    CLI_LAUNCH_KINDS
};

#endif
