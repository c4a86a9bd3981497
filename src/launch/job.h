/* One attempt of `sluice launch` at a job: mpirun, and what the ranks say (launch_kinds.h). */
#ifndef SLI_LAUNCH_JOB_H
#define SLI_LAUNCH_JOB_H

#include "sluice/status.h"

#include <stdbool.h>

enum { CLI_JOB_WHY_BYTES = 512 };

/* How an attempt ended. */
typedef struct cli_job_end {
    int status;                  /* as a shell gives it, of the rank that failed; 0: none */
    bool final;                  /* another attempt would make no sense */
    int died;                    /* ranks that were killed, or lost with their host */
    char why[CLI_JOB_WHY_BYTES]; /* for status other than 0: who failed, and how */
} cli_job_end;

/* After a failure or a signal, the programs have `grace_seconds` to end. These begin again as long
 * as a program is saving, but not when `save_seconds` have passed. */
typedef struct cli_job_limits {
    double grace_seconds, save_seconds;
} cli_job_limits;

/* Runs `command`, an mpirun that starts `ranks` processes of `sluice launch-rank`, all on this host
 * or not, until nothing of it is left. Called by a process of one thread. Errors: what keeps it
 * from being started. */
sl_status cli_job_run(char **command, int ranks, bool this_host, const cli_job_limits *limits,
                      cli_job_end *out);

#endif
