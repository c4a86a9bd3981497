/* What the launcher (launch_run.c, job.c) and the supervisors that mpirun starts instead of the
 * ranks' programs (rank.c) say to each other, and what a job's attempts give to the launcher. */
#ifndef SLI_LAUNCH_LAUNCH_H
#define SLI_LAUNCH_LAUNCH_H

#include "comm/wire/wire.h"
#include "sluice/app/launch.h"

#include <signal.h>

/* Tells a supervisor where its launcher listens. */
#define SLI_LAUNCHER_VARIABLE "SLUICE_LAUNCHER"
/* The rest of what mpirun passes on: torchrun's variables, and one that sl_launch_info_read asks
 * for. */
#define SLI_JOB_VARIABLE          "TORCHELASTIC_RUN_ID"
#define SLI_RESTARTS_VARIABLE     "TORCHELASTIC_RESTART_COUNT"
#define SLI_MAX_RESTARTS_VARIABLE "TORCHELASTIC_MAX_RESTARTS"
#define SLI_FIRST_SIZE_VARIABLE   "SLUICE_FIRST_WORLD_SIZE"

/* Tells a program the number of the socket to its supervisor. */
#define SLI_LINK_VARIABLE "SLUICE_LAUNCH_FD"
enum { SLI_PACKET_BYTES = 2000 }; /* the longest; a longer error is cut */

/* The kinds of messages over the wire (comm/wire/wire.h). A supervisor calls its launcher, by the
 * name of its host. The launcher hangs up when the job is over: a supervisor then ends a program
 * that still runs. */
enum {
    SLI_RANK_SAVING =
        SLI_WIRE_ALIVE + 1, /* the program starts to save, which must not be cut off */
    SLI_RANK_SAVED,         /* it has written it */
    SLI_RANK_JOINING,       /* it starts MPI, where it waits for all others */
    SLI_RANK_JOINED,        /* MPI has started, of all ranks */
    SLI_RANK_STEPS,         /* it has done `sequence` steps of its training */
    SLI_RANK_PROCESSES,     /* it asks for `number` processes, fewer than there are */
    SLI_RANK_ROLE,          /* what rank `number` does in the job: `text` */
    SLI_RANK_ERROR,         /* it ends with the error `text` */
    SLI_RANK_ENDED,         /* it has ended: `number` is its status from waitpid */
    SLI_RANK_NOT_STARTED,   /* it cannot be started: `number` is errno */
    SLI_LAUNCHER_SIGNAL,    /* from the launcher: signal the program with `number` */
    SLI_LAUNCH_KINDS
};

enum { SLI_NOT_STARTED = 127 }; /* a program's exit status, as a shell gives it */
/* A program's exit status that says that another attempt would end likewise: EX_CONFIG of
 * sysexits.h. */
enum { SLI_NOT_TO_RESTART = 78 };

/* A status from waitpid as a shell gives it: 128 + N where signal N has killed the process. */
int sli_shell_status(int status);

void sli_set_variable(const char *name, int number);

/* The time that failures have taken from a job so far (lost_time.c). */
typedef struct sli_lost_time {
    const sl_launch_options *options;
    int attempts;   /* with the one under way */
    double began;   /* when: the first attempt */
    int64_t steps;  /* the most that were done */
    double stepped; /* when */
    bool knows_steps;
    bool in_gap;           /* the job is not yet where it was before the last failure */
    double ended, resumed; /* when: the attempt that failed, the next one's training; 0: not yet */
    sl_launch_lost_time gap, total;
} sli_lost_time;

void sli_lost_time_begin(sli_lost_time *self, const sl_launch_options *options);

/* An attempt has ended since something happened at `failed` (core/clock.h): `is_failure`, or the
 * launcher has ended it itself. `host_lost`: a rank was lost with its host. */
void sli_lost_time_add_attempt(sli_lost_time *self, double failed, bool host_lost, bool is_failure);

/* The attempt's programs all run; so many steps are done. */
void sli_lost_time_all_started(sli_lost_time *self);
void sli_lost_time_add_steps(sli_lost_time *self, int64_t steps);

/* The job is over: reports what was lost, if it was ever started again. */
void sli_lost_time_end(sli_lost_time *self, bool failed);

/* The hosts in options->hosts, and which of them answer (hosts.c). Errors: SL_ERR_INVALID for a
 * line that makes no sense or a file without hosts, those of sli_io_error, SL_ERR_MEMORY. */
typedef struct sli_hosts sli_hosts;
sl_status sli_hosts_read(const sl_launch_options *options, sli_hosts **out);
void sli_hosts_destroy(sli_hosts **hosts); /* NULL is allowed */

/* Asks all hosts, writes the file for mpirun again, and warns of those that have stopped to answer.
 * Takes up to 5 s. Errors: SL_ERR_IO where none answers or no process can be started to ask. */
sl_status sli_hosts_probe_all(sli_hosts *self);

/* The file for mpirun with the hosts that answer, before the first probe all, and how many of the
 * job's processes they have room for. */
const char *sli_hosts_path(const sli_hosts *self);
int sli_hosts_processes(const sli_hosts *self);

/* Asks lost hosts again every 5 s, without waiting for them, where it is called often. The name of
 * one that answers, or NULL. */
const char *sli_hosts_poll_lost(sli_hosts *self);

/* The job's signals, blocked from its first attempt's start to its last's end (job_signals.c). */
typedef struct sli_signals {
    int fd;              /* signalfd */
    bool checks_readers; /* SIGPIPE was not ignored at the start */
    sigset_t mask_before;
    struct sigaction pipe_before;
} sli_signals;

/* Errors: SL_ERR_IO; signals are then as before. */
sl_status sli_signals_begin(sli_signals *self);
void sli_signals_end(sli_signals *self);

/* The next signal that waits, but for SIGCHLD, which only wakes the reader; 0: none does. */
int sli_signals_read(const sli_signals *self);

/* Whether one waits that ends the job. */
bool sli_signals_end_job(void);

/* Whether the reader of this process's outputs is gone. A program that writes there itself would
 * get SIGPIPE, but mpirun writes for the ranks and does not tell them. */
bool sli_signals_reader_is_gone(const sli_signals *self);

/* One attempt at a job. */
typedef struct sli_job {
    const sl_launch_options *options;
    const sli_signals *signals;
    const char *name;           /* of the job, the same in all attempts */
    const char *const *command; /* the ranks' program and its arguments, then NULL */
    sli_lost_time *lost;        /* is told of its steps */
    sli_hosts *hosts;           /* (optional) whose file mpirun gets; an elastic job also grows when
                                   they answer again */
    int processes, restarts;
    bool this_host;   /* all of them are on this host */
    bool may_restart; /* another attempt follows a failure */
} sli_job;

enum { SLI_JOB_REASON_BYTES = 512 };

/* How it ended. */
typedef struct sli_job_end {
    int exit_status;                   /* of the rank that failed, as a shell gives it; 0: none */
    bool is_final;                     /* another attempt makes no sense */
    bool grows;                        /* the launcher has ended it: a lost host answers */
    int fewer;                         /* processes that a rank asks for instead; 0: none does */
    int died;                          /* ranks that were killed, or lost with their host */
    bool host_lost;                    /* one of them was lost */
    double failed;                     /* when: the first failure (core/clock.h); 0: none */
    char reason[SLI_JOB_REASON_BYTES]; /* exit_status != 0: who failed, and how; or why it grows or
                                          shrinks */
} sli_job_end;

/* Runs the attempt until all its processes have ended, whether or not mpirun still lives. Errors:
 * why it cannot be started. */
sl_status sli_job_run(const sli_job *job, sli_job_end *out);

/* Open MPI's mpirun, which starts the supervisors of an attempt (mpirun.c). Errors:
 * SL_ERR_NOT_FOUND and SL_ERR_UNSUPPORTED where there is none or another one; of the start
 * SL_ERR_IO and SL_ERR_MEMORY. `launcher`: where the supervisors call. */
sl_status sli_mpirun_check(void);
sl_status sli_mpirun_start(const sli_job *job, const char *launcher, pid_t *out);

/* Whether mpirun may still run because the reader of the ranks' output is slow. */
bool sli_mpirun_output_waits(void);

/* For tests, which open several. */
void sli_launch_link_close(sl_launch_link **link);

#endif
