/* The messages between the launcher (run.c, job.c) and the supervisors that mpirun starts instead
 * of the ranks' programs (rank.c). */
#ifndef SLI_LAUNCH_LAUNCH_H
#define SLI_LAUNCH_LAUNCH_H

#include "core/wire.h"
#include "sluice/launch.h"

/* Tells a supervisor where its launcher listens. */
#define SLI_LAUNCHER_VARIABLE "SLUICE_LAUNCHER"
/* The rest of what mpirun passes on: torchrun's variables, and one that sl_launch_info_read asks
 * for. */
#define SLI_RESTARTS_VARIABLE     "TORCHELASTIC_RESTART_COUNT"
#define SLI_MAX_RESTARTS_VARIABLE "TORCHELASTIC_MAX_RESTARTS"
#define SLI_FIRST_SIZE_VARIABLE   "SLUICE_FIRST_WORLD_SIZE"

/* The kinds of messages over the wire (core/wire.h). A supervisor calls its launcher, by the name
 * of its host. The launcher hangs up when the job is over: a supervisor then ends a program that
 * still runs. */
enum {
    SLI_RANK_SAVING =
        SLI_WIRE_ALIVE + 1, /* the program starts to save, which must not be cut off */
    SLI_RANK_SAVED,         /* it has written it */
    SLI_RANK_ERROR,         /* it ends with the error `text` */
    SLI_RANK_ENDED,         /* it has ended: `number` is its status from waitpid */
    SLI_RANK_NOT_STARTED,   /* it cannot be started: `number` is errno */
    SLI_LAUNCHER_SIGNAL,    /* from the launcher: signal the program with `number` */
    SLI_LAUNCH_KINDS
};

enum { SLI_NOT_STARTED = 127 }; /* a program's exit status, as a shell gives it */

/* A status from waitpid as a shell gives it: 128 + N where signal N has killed the process. */
int sli_shell_status(int status);

void sli_set_variable(const char *name, int number);

/* One attempt at a job. */
typedef struct sli_job {
    const sl_launch_options *options;
    char *const *command; /* an mpirun that starts `processes` supervisors */
    int processes, restarts;
    bool this_host; /* all of them are on this host */
} sli_job;

enum { SLI_JOB_REASON_BYTES = 512 };

/* How it ended. */
typedef struct sli_job_end {
    int exit_status;                   /* of the rank that failed, as a shell gives it; 0: none */
    bool is_final;                     /* another attempt makes no sense */
    int died;                          /* ranks that were killed, or lost with their host */
    char reason[SLI_JOB_REASON_BYTES]; /* exit_status != 0: who failed, and how */
} sli_job_end;

/* Runs the attempt until all its processes have ended. Errors: why it cannot be started. */
sl_status sli_job_run(const sli_job *job, sli_job_end *out);

#endif
