/* Launching: which rank a process was started as, and starting a program as many ranks.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_APP_LAUNCH_H
#define SLUICE_APP_LAUNCH_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

SL_API_BEGIN

typedef struct sl_launch_info {
    bool launched;        /* by a launcher; otherwise rank 0 of 1 */
    int rank;             /* of all processes: 0 to world_size - 1 */
    int local_rank;       /* of those on this machine: 0 to local_world_size - 1 */
    int world_size;       /* processes of the job */
    int local_world_size; /* those of them on this machine */
    int restarts;         /* how often the launcher has started the job again */
    int first_world_size; /* processes that it is to have, of which an attempt may have fewer;
                             world_size where it is not set */
    char job[128];        /* the launcher's name of it, the same in all attempts; empty: none */
} sl_launch_info;

/* Reads a process's rank from its environment, from the first of these lines whose rank or size is
 * set:
 *
 *   torchrun, sluice launch  RANK WORLD_SIZE; LOCAL_RANK LOCAL_WORLD_SIZE
 *   Open MPI's mpirun        OMPI_COMM_WORLD_RANK …_SIZE; …_LOCAL_RANK …_LOCAL_SIZE
 *   MPICH's mpiexec (Hydra)  PMI_RANK PMI_SIZE; MPI_LOCALRANKID MPI_LOCALNRANKS
 *   srun                     SLURM_PROCID SLURM_STEP_NUM_TASKS; SLURM_LOCALID, and the step's
 *                            SLURM_STEP_TASKS_PER_NODE at SLURM_NODEID. Not in a batch script or
 *                            an interactive shell, which are not ranks
 *
 * TORCHELASTIC_RUN_ID gives `job`, unless it is torchrun's default "none".
 * TORCHELASTIC_RESTART_COUNT, which torchrun and sluice launch set, gives `restarts`;
 * SLUICE_FIRST_WORLD_SIZE, which sluice launch may set, gives first_world_size. A variable that is
 * empty counts as not set. Where the last two variables of a line are not set, all ranks count as
 * being on this machine. No other thread may change the environment meanwhile. Errors:
 * SL_ERR_INVALID for a variable that is missing beside the others, is no number, or contradicts
 * another, which the sentence names; `*out` is then rank 0 of 1. */
sl_status sl_launch_info_read(sl_launch_info *out);

/* ---- Starting and supervising ranks ------------------------------------------------------- */

typedef enum sl_launch_event_kind {
    SL_LAUNCH_RANK_ERROR,     /* `rank` ends with the error `text`, as its program has sent it:
                                 sl_escape_text makes it safe to print */
    SL_LAUNCH_ATTEMPT_FAILED, /* for the `attempt`th time, from 1: `text` says which rank failed,
                                 and how */
    SL_LAUNCH_RESIZED,        /* the job is started again, without a failure: `text` says which
                                 lost host answers, or that the programs need fewer processes */
    SL_LAUNCH_CAUGHT_UP,      /* the job has done the steps again that it had done before its last
                                 failure, or had nothing to repeat: `lost` */
    SL_LAUNCH_ENDED,          /* a job that was started again: `lost` in all, of `seconds` since
                                 its start */
    SL_LAUNCH_WARNING         /* `text`: a host that does not answer, or mpirun that does not end */
} sl_launch_event_kind;

/* The time from the last step before a failure until as many steps are done again. */
typedef struct sl_launch_lost_time {
    int failures;
    double notice_seconds;  /* from the failure until all processes have ended */
    double restart_seconds; /* until training begins; where programs do not tell their steps, until
                               all of them run */
    double repeat_seconds;  /* the step that was interrupted, and steps that are done again */
    int64_t repeated_steps;
} sl_launch_lost_time;

/* Something to show while a job runs. */
typedef struct sl_launch_event {
    sl_launch_event_kind kind;
    int rank;           /* of RANK_ERROR */
    int attempt;        /* of ATTEMPT_FAILED */
    int next_processes; /* of ATTEMPT_FAILED, RESIZED: the next attempt's; 0: there is none */
    const sl_launch_lost_time *lost; /* of CAUGHT_UP, ENDED */
    double seconds;   /* CAUGHT_UP: all that was lost; ENDED: since the job's start */
    bool knows_steps; /* of CAUGHT_UP, ENDED: programs tell their steps (sl_launch_link_steps) */
    const char *text; /* valid during the call, as `lost` */
} sl_launch_event;

typedef void (*sl_launch_report)(void *context, const sl_launch_event *event);

enum { SL_LAUNCH_MAX_PROCESSES = 4096 };

/* All texts are borrowed until sl_launch_run returns. */
typedef struct sl_launch_options {
    int processes;       /* the most that an attempt has */
    int least_processes; /* 0: every attempt has `processes`. Else the fewest that an attempt may
                            have: it has one process less for each that was killed in an earlier
                            attempt; with `hosts`, as many as there are slots on hosts that the
                            agent reaches within 5 s. When a lost host answers again, and a rank has
                            saved since the attempt began, the programs get SIGTERM and the job is
                            started again */
    int max_restarts;    /* how often a job that fails is started again */
    /* After a failure or a signal the other programs have `grace_seconds` to end by themselves, and
     * are then killed; 0: at once. The time starts again while one of them is saving, for
     * save_seconds at most, and is 1 s at most where all wait in the start of MPI for one that has
     * ended (sl_launch_link_joining). */
    double grace_seconds, save_seconds;
    const char *hosts;          /* (optional) a file as for mpirun --hostfile; NULL: this host */
    const char *agent;          /* (optional) a program and its first arguments, cut at blanks, that
                                   starts a command on a host: the host and the command follow.
                                   Without ":"; NULL: ssh */
    const char *const *exports; /* [export_count] "NAME" or "NAME=VALUE": environment variables for
                                   processes on other hosts */
    int export_count;
    const char *const *supervisor; /* a command, then NULL, that calls sl_launch_run_rank with the
                                      words that follow: the program `sluice` and "launch-rank", or
                                      one of yours */
    sl_launch_report report;       /* called on the thread that runs sl_launch_run; NULL: none */
    void *context;
} sl_launch_options;

/* torchrun: runs `command` (the program and its arguments, then NULL) as options->processes
 * processes, through Open MPI's mpirun, until all have ended. Each has torchrun's variables in its
 * environment:
 * RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RESTART_COUNT and
 * TORCHELASTIC_MAX_RESTARTS.
 *
 * *exit_status is 0, or that of the rank which made the last attempt fail: 128 and the signal's
 * number for one that was killed, 127 where the program cannot be started. An error that several
 * ranks end with is reported once. SIGHUP, SIGINT and SIGTERM go to the programs, and so does
 * SIGPIPE when the reader of this process's standard output has closed it; a second signal ends
 * programs that ignore the first. SIGUSR1 and SIGUSR2 go to rank 0's program. SIGTSTP suspends the
 * programs, and then this process.
 *
 * The process must have one thread. The function handles the process's signals and uses its
 * standard output while it runs. Errors: SL_ERR_INVALID for options or a command that make no
 * sense, or a line of the file `hosts`; SL_ERR_NOT_FOUND without an mpirun, or where that file
 * does not exist; SL_ERR_UNSUPPORTED for another MPI's; SL_ERR_IO, for example where no host
 * answers. *exit_status is then 0, or that of the last attempt. */
sl_status sl_launch_run(const sl_launch_options *options, const char *const *command,
                        int *exit_status);

/* Called by the program options->supervisor, which must have one thread and do nothing else. Runs
 * `command` as this process's rank, and tells the launcher how it ended. Part of this is done by a
 * fork of the process, in which the function does not return. The process must then exit with
 * *exit_status. Errors: SL_ERR_INVALID where it was not started by sl_launch_run, SL_ERR_IO
 * where the launcher cannot be reached. *exit_status is then 127. */
sl_status sl_launch_run_rank(const char *const *command, int *exit_status);

/* ---- Telling the launcher ----------------------------------------------------------------- */

/* A program's connection to its supervisor, a Unix socket whose number is in the environment
 * variable SLUICE_LAUNCH_FD. Each message is a packet of text: "saving", "saved", "joining",
 * "joined", "steps N", "processes N", "role RANK TEXT", "error TEXT". */
typedef struct sl_launch_link sl_launch_link;

/* NULL where there is no supervisor. Removes the variable from the environment, and closes the
 * socket in programs that this one starts. To be called once, before any other file is opened; the
 * connection lasts as long as the process. */
sl_launch_link *sl_launch_link_open(void);

/* A save begins or has ended; several may be under way. Programs are not ended while they save
 * (save_seconds). Safe on any thread and in signal handlers. NULL: does nothing. */
void sl_launch_link_saving(sl_launch_link *link, bool begins);

/* Tells the launcher that the program starts MPI, or has started it; `sluice` calls this around
 * sl_group_create_mpi. A program waits there for those of all other ranks, and notices nothing: if
 * a rank ends before, and all that run wait for it, the launcher ends them 1 s later. NULL: does
 * nothing. */
void sl_launch_link_joining(sl_launch_link *link, bool begins);

/* Tells the launcher how many steps of the training are done: by one rank, when training begins or
 * goes on, and after each step. The launcher can then say what a failure has cost. NULL: does
 * nothing. */
void sl_launch_link_steps(sl_launch_link *link, int64_t steps);

/* Tells the launcher what a rank does in the job, such as "stage 1", to name it where it fails; of
 * several calls for a rank all count. NULL: does nothing. */
void sl_launch_link_role(sl_launch_link *link, int rank, const char *role);

/* Asks the launcher for another attempt with `processes` processes, fewer than this one has. All
 * ranks must then end with success; if one fails, the request is dropped. Call it on one rank,
 * before any has failed; a number that is not smaller is ignored. The job fails if the number is
 * below least_processes, or if least_processes is 0. link may be NULL. */
void sl_launch_link_processes(sl_launch_link *link, int processes);

/* Tells the launcher the error that this program ends with; the launcher reports it. False if it
 * was not told, as for NULL. */
bool sl_launch_link_error(sl_launch_link *link, const char *text);

SL_API_END

#endif
