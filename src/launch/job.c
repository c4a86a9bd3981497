/* One attempt at a job: mpirun, and what the ranks' supervisors report. From the first failure or
 * signal on, a job has these phases:
 *
 *     RUNNING ──→ ENDING ──→ RELEASED ──→ TERMINATED ──→ KILLED
 *
 *     ENDING      the other ranks may end by themselves: those of a group notice within 5 s; the
 *                 grace starts again while one of them is saving, up to a limit, and is short where
 *                 all wait in the start of MPI for one that has ended
 *     RELEASED    all have ended, or the time is over: the launcher closes its side of the
 *                 connections, which ends the rest
 *     TERMINATED  mpirun has not ended and gets SIGTERM: it may wait for a lost host, or hang
 *                 while it ends, as Open MPI's rarely does
 *     KILLED      mpirun gets SIGKILL
 *
 * The attempt is over when mpirun has ended and every supervisor has closed its own side, which it
 * does when nothing of its rank runs. Each phase but the first has a time limit, so that every job
 * that fails ends in bounded time; time in which the launcher is suspended does not count
 * (core/clock.h). A job that succeeds goes from RUNNING to RELEASED when all its ranks have ended.
 * That phase is then longer, and is prolonged while the job's output waits to be read. */
#define _GNU_SOURCE
#include "comm/wire/wire_listener.h"
#include "core/clock.h"
#include "core/error.h"
#include "launch/launch.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef enum phase { RUNNING, ENDING, RELEASED, TERMINATED, KILLED } phase;

static const double release_seconds = 8, release_success_seconds = 60, terminate_seconds = 5;

/* For an error with which ranks may end that wait in the start of MPI. */
static const double wait_seconds = 1;

/* From an end that mpirun has chosen itself, for what ranks say or how they are lost: the cause. */
static const double settle_seconds = 3;

/* From the loss of a host until its programs have ended as well: its supervisors notice the loss up
 * to 4 s later (comm/wire/wire.c), and then give them 2 s (rank.c). */
static const double lost_seconds = 8;

enum { MAX_ERRORS = 64, SIGNAL_STATUS = 128, CONNECTION_LOST = -1 };

/* How ranks end. When one dies, others may fail because of it, or end by mpirun's SIGTERM, and may
 * be heard of first. So the job reports the highest of these. */
typedef enum failure {
    NO_FAILURE,
    RANK_FAILED,
    RANK_TERMINATED,
    RANK_DIED,
    MPIRUN_ENDED /* before the ranks: how they end is its doing */
} failure;

typedef struct rank_state {
    bool started, ended; /* the program; after its end its connection is ignored */
    bool saving;
    bool joining, joined; /* the program starts MPI, where it waits for all others; has done so */
    char host[160];       /* and the rank's role: "node1, stage 2" */
} rank_state;

typedef struct attempt {
    const sli_job *job;
    const sl_launch_options *options; /* the job's */
    sli_wire_listener *listener;
    char address[SLI_WIRE_ADDRESS_BYTES]; /* of the listener */
    int count, started, ended;
    rank_state *ranks; /* [count] */
    pid_t mpirun;
    int mpirun_status;
    bool mpirun_ended;
    double settled;    /* when its end, before the ranks', is a failure */
    double lost_until; /* programs on lost hosts may run */
    phase phase;
    double deadline;     /* of this phase */
    double ending_since; /* when the phase ENDING began */
    double grace_end;
    bool waits;               /* all that run wait in the start of MPI for one that has ended */
    bool has_saved;           /* a rank: it would go on from there */
    int signal;               /* the one that was forwarded to the programs; 0: none */
    failure failure;          /* which `end` describes */
    char *errors[MAX_ERRORS]; /* reported so far; more are not compared */
    int error_count;
    sli_job_end *end;
} attempt;

static double seconds_now(const attempt *self)
{
    return sli_wire_listener_seconds(self->listener);
}

/* ---- Phases ------------------------------------------------------------------------------- */

/* A rank that has ended saves nothing (end_rank). */
static bool is_saving(const attempt *self)
{
    for (int r = 0; r < self->count; r++)
        if (self->ranks[r].saving)
            return true;
    return false;
}

/* The grace starts when the job is to end, and again when a rank's save ends, but at most
 * save_seconds later. Who waits in the start of MPI saves nothing. */
static void update_grace(attempt *self)
{
    double last = self->ending_since + self->options->save_seconds, start = seconds_now(self);
    if (self->phase != ENDING || self->waits)
        return;
    if (is_saving(self) || start > last)
        start = last;
    self->grace_end = self->deadline = start + self->options->grace_seconds;
}

static void set_saving(attempt *self, rank_state *rank, bool saving)
{
    if (rank->saving == saving)
        return;
    rank->saving = saving;
    update_grace(self);
}

static void enter_phase(attempt *self, phase next)
{
    double seconds = terminate_seconds;
    if (next == RELEASED)
        seconds = self->failure == NO_FAILURE ? release_success_seconds : release_seconds;
    self->phase = next;
    self->deadline = seconds_now(self) + seconds;
    if (next == ENDING) {
        self->ending_since = seconds_now(self);
        update_grace(self);
    }
    if (next == RELEASED)
        sli_wire_listener_release(self->listener);
    if (next >= TERMINATED && !self->mpirun_ended)
        kill(self->mpirun, next == KILLED ? SIGKILL : SIGTERM);
}

/* The job reports its first failure of the highest kind. */
__attribute__((format(printf, 4, 5))) static void
record_failure(attempt *self, failure kind, int exit_status, const char *format, ...)
{
    va_list values;
    if (self->end->grows || self->failure == MPIRUN_ENDED)
        return; /* programs may not handle the signal that ends them */
    va_start(values, format);
    self->end->died += kind == RANK_TERMINATED || kind == RANK_DIED;
    if (kind > self->failure) {
        self->failure = kind;
        self->end->exit_status = exit_status;
        vsnprintf(self->end->reason, sizeof self->end->reason, format, values);
    }
    va_end(values);
    if (self->end->failed == 0)
        self->end->failed = sli_clock_seconds();
    if (self->phase == RUNNING)
        enter_phase(self, ENDING);
}

/* Adds to the reason which ranks still run. Called before the launcher ends them: their end then is
 * not a failure. `why` says why it does: they "did not end within 10 s". */
static void report_running_ranks(attempt *self, const char *why)
{
    int first = -1, others = 0;
    for (int r = self->count - 1; r >= 0; r--)
        if (self->ranks[r].started && !self->ranks[r].ended) {
            others += first >= 0;
            first = r;
        }
    if (first < 0)
        return;
    char more[32] = "";
    if (others > 0)
        snprintf(more, sizeof more, " and %d other%s", others, others == 1 ? "" : "s");
    if (self->signal)
        record_failure(self, RANK_FAILED, SIGNAL_STATUS + self->signal, "stopped by signal %d (%s)",
                       self->signal, strsignal(self->signal));
    size_t used = strlen(self->end->reason);
    snprintf(self->end->reason + used, sizeof self->end->reason - used,
             "; rank %d on %s%s %s, and %s ended", first, self->ranks[first].host, more, why,
             others ? "were" : "was");
}

/* A rank that ended before it had started MPI, if all that still run wait for it: MPI starts when
 * all have called it, and they notice nothing until then. Else -1. */
static int find_awaited_rank(const attempt *self)
{
    int awaited = -1;
    for (int r = 0; r < self->count; r++)
        if (!self->ranks[r].ended && !self->ranks[r].joining)
            return -1;
        else if (self->ranks[r].ended && !self->ranks[r].joined)
            awaited = r;
    return awaited;
}

/* The grace is short where nothing can come of it. */
static void check_waiting_ranks(attempt *self)
{
    int awaited = self->ended < self->count ? find_awaited_rank(self) : -1;
    double soon = seconds_now(self) + wait_seconds;
    if (awaited >= 0 && self->phase == RUNNING)
        record_failure(self, RANK_FAILED, 1, "rank %d on %s ended before it had started MPI",
                       awaited, self->ranks[awaited].host);
    if (self->phase == ENDING && self->waits != (awaited >= 0))
        self->deadline = awaited >= 0 && soon < self->grace_end ? soon : self->grace_end;
    self->waits = awaited >= 0;
}

/* ---- Ranks -------------------------------------------------------------------------------- */

static void on_call(void *owner, int index, const char *host)
{
    attempt *self = owner;
    self->ranks[index].started = true;
    snprintf(self->ranks[index].host, sizeof self->ranks[index].host, "%.63s", host);
    self->started++;
    if (self->started == self->count)
        sli_lost_time_all_started(self->job->lost);
}

/* Reports an error once, however many ranks end with it. A group's error begins with the rank where
 * it happened: "rank 2: …". */
static void report_error(attempt *self, int rank, const char *text)
{
    char *end;
    long number = strncmp(text, "rank ", 5) == 0 ? strtol(text + 5, &end, 10) : -1;
    if (number >= 0 && number <= INT_MAX && strncmp(end, ": ", 2) == 0) {
        rank = (int)number;
        text = end + 2;
    }
    for (int i = 0; i < self->error_count; i++)
        if (strcmp(self->errors[i], text) == 0)
            return;
    if (self->error_count < MAX_ERRORS && (self->errors[self->error_count] = strdup(text)))
        self->error_count++;
    sl_launch_event event = {.kind = SL_LAUNCH_RANK_ERROR, .rank = rank, .text = text};
    self->options->report(self->options->context, &event);
}

/* How a rank ended: a kind of message and its number, or CONNECTION_LOST before one came. */
static void end_rank(attempt *self, int index, int kind, int number)
{
    rank_state *rank = &self->ranks[index];
    set_saving(self, rank, false);
    rank->ended = true;
    self->ended++;
    if (kind == CONNECTION_LOST) {
        self->end->host_lost = true;
        record_failure(self, RANK_DIED, 1, "rank %d on %s was lost", index, rank->host);
    } else if (kind == SLI_RANK_NOT_STARTED) {
        self->end->is_final |= self->failure == NO_FAILURE;
        record_failure(self, RANK_FAILED, SLI_NOT_STARTED,
                       "rank %d on %s: %.256s cannot be started: %s", index, rank->host,
                       *self->job->command, strerror(number));
    } else if (WIFSIGNALED(number)) {
        record_failure(self, WTERMSIG(number) == SIGTERM ? RANK_TERMINATED : RANK_DIED,
                       sli_shell_status(number), "rank %d on %s was killed by signal %d (%s)",
                       index, rank->host, WTERMSIG(number), strsignal(WTERMSIG(number)));
    } else if (number != 0) {
        self->end->is_final |=
            self->failure == NO_FAILURE && sli_shell_status(number) == SLI_NOT_TO_RESTART;
        record_failure(self, RANK_FAILED, sli_shell_status(number),
                       "rank %d on %s ended with exit status %d", index, rank->host,
                       sli_shell_status(number));
    }
    if (self->phase <= ENDING && self->ended == self->count)
        enter_phase(self, RELEASED);
    check_waiting_ranks(self);
}

static void add_role(rank_state *rank, const char *role)
{
    char *shown = sl_escape_text(role, false);
    size_t used = strlen(rank->host);
    snprintf(rank->host + used, sizeof rank->host - used, ", %s", shown ? shown : "");
    free(shown);
}

static void ask_for_fewer(attempt *self, int rank, int processes)
{
    int least = self->options->least_processes;
    if (processes < 1 || processes >= self->count || self->failure != NO_FAILURE)
        return;
    if (least == 0 || processes < least) {
        self->end->is_final = true;
        record_failure(self, RANK_FAILED, 1,
                       "rank %d asked to restart with %d process%s, but the job needs at least %d",
                       rank, processes, processes == 1 ? "" : "es", least ? least : self->count);
        return;
    }
    self->end->fewer = processes;
    self->end->failed = sli_clock_seconds();
    snprintf(self->end->reason, sizeof self->end->reason, "rank %d needs fewer processes", rank);
}

static void on_message(void *owner, int index, const sli_wire_message *message)
{
    attempt *self = owner;
    if (self->ranks[index].ended || self->phase >= RELEASED)
        return;
    switch (message->kind) {
    case SLI_RANK_SAVING:
    case SLI_RANK_SAVED:
        self->has_saved |= message->kind == SLI_RANK_SAVED;
        set_saving(self, &self->ranks[index], message->kind == SLI_RANK_SAVING);
        break;
    case SLI_RANK_JOINING:
    case SLI_RANK_JOINED:
        self->ranks[index].joining = message->kind == SLI_RANK_JOINING;
        self->ranks[index].joined = message->kind == SLI_RANK_JOINED;
        check_waiting_ranks(self);
        break;
    case SLI_RANK_STEPS:
        if (message->sequence > INT64_MAX)
            sli_wire_listener_refuse(self->listener, index);
        else
            sli_lost_time_add_steps(self->job->lost, (int64_t)message->sequence);
        break;
    case SLI_RANK_ROLE:
        if (message->number >= 0 && message->number < self->count)
            add_role(&self->ranks[message->number], message->text);
        break;
    case SLI_RANK_PROCESSES:
        ask_for_fewer(self, index, message->number);
        break;
    case SLI_RANK_ERROR: /* with which it ends, and waits for no other */
        self->ranks[index].joining = false;
        check_waiting_ranks(self);
        report_error(self, index, message->text);
        break;
    case SLI_RANK_ENDED:
    case SLI_RANK_NOT_STARTED:
        end_rank(self, index, message->kind, message->number);
        break;
    default:
        sli_wire_listener_refuse(self->listener, index);
    }
}

static void on_connection_end(void *owner, int index, sli_wire_state why)
{
    attempt *self = owner;
    if (why != SLI_WIRE_CLOSED) /* its supervisor may still run, and know nothing of this */
        self->lost_until = seconds_now(self) + lost_seconds;
    if (!self->ranks[index].ended && self->phase < RELEASED)
        end_rank(self, index, CONNECTION_LOST, 0);
}

/* ---- Signals ------------------------------------------------------------------------------ */

/* A closed terminal, or an output without a reader, is signalled more than once. */
static bool may_repeat(int number)
{
    return number == SIGHUP || number == SIGPIPE;
}

/* To the first `count` ranks. */
static void signal_ranks(attempt *self, int count, int number)
{
    sli_wire_message message = {.kind = SLI_LAUNCHER_SIGNAL, .number = number};
    for (int r = 0; r < count && self->phase < RELEASED; r++)
        sli_wire_listener_send(self->listener, r, &message);
}

/* Ctrl-Z. The programs are suspended with the launcher, and go on with it. */
static void suspend_job(attempt *self)
{
    signal_ranks(self, self->count, SIGTSTP);
    raise(SIGSTOP);
    signal_ranks(self, self->count, SIGCONT);
}

static void forward_signal(attempt *self, int number)
{
    self->signal = number;
    signal_ranks(self, self->count, number);
    if (self->started == self->count) {
        enter_phase(self, ENDING);
        return;
    }
    record_failure(self, RANK_DIED, SIGNAL_STATUS + number, "stopped by signal %d (%s)", number,
                   strsignal(number));
    enter_phase(self, TERMINATED); /* ranks that are yet to start would not get the signal */
}

/* A signal ends the grace. */
static void report_ranks_cut_off(attempt *self, int number)
{
    char why[96] = "did not end before the next signal";
    if (!self->signal)
        snprintf(why, sizeof why, "did not end before signal %d (%s)", number, strsignal(number));
    report_running_ranks(self, why);
}

/* Those with which a program is asked for something else than its end: rank 0 does it for all. */
static bool is_request(int number)
{
    return number == SIGUSR1 || number == SIGUSR2;
}

/* Any signal but a request and Ctrl-Z makes this attempt the last one. A job's first one goes to
 * the programs, if none has failed, and each other one ends a phase. */
static void handle_signal(attempt *self, int number)
{
    if (is_request(number)) {
        signal_ranks(self, 1, number);
        return;
    }
    if (number == SIGTSTP) {
        suspend_job(self);
        return;
    }
    self->end->is_final = true;
    if (self->phase == RUNNING) {
        forward_signal(self, number);
    } else if (self->phase == ENDING && self->end->grows) {
        /* The programs have had SIGTERM from grow_job: that is as if this had been forwarded. */
        self->end->grows = false;
        self->signal = number;
    } else if (may_repeat(number)) {
        return;
    } else if (self->phase == ENDING && may_repeat(self->signal)) {
        /* The terminal's, or the output's, was not the user's: this is the user's first. */
        self->signal = number;
    } else {
        if (self->phase == ENDING)
            report_ranks_cut_off(self, number);
        if (self->phase < KILLED)
            enter_phase(self, self->phase + 1);
    }
}

static void read_signals(attempt *self)
{
    int number;
    if (self->phase == RUNNING && sli_signals_reader_is_gone(self->job->signals))
        handle_signal(self, SIGPIPE);
    while ((number = sli_signals_read(self->job->signals)))
        handle_signal(self, number);
}

/* ---- mpirun ------------------------------------------------------------------------------- */

static void end_phase(attempt *self)
{
    static const char late[] = "all processes have ended, and mpirun has not: it is ended";
    bool success = self->phase == RELEASED && self->failure == NO_FAILURE;
    if (success && sli_mpirun_output_waits()) {
        enter_phase(self, RELEASED);
        return;
    }
    if (self->phase == ENDING) {
        char why[96];
        int length =
            snprintf(why, sizeof why, "did not end within %g s", self->options->grace_seconds);
        if (is_saving(self))
            snprintf(why + length, sizeof why - (size_t)length, " and %g s of saving",
                     self->options->save_seconds);
        report_running_ranks(self, self->waits ? "waited in the start of MPI" : why);
    }
    if (success)
        self->options->report(self->options->context,
                              &(sl_launch_event){.kind = SL_LAUNCH_WARNING, .text = late});
    enter_phase(self, self->phase + 1);
}

/* Ends a job that can go on with more processes, as SIGTERM does: programs save. One that has saved
 * nothing would lose what it has done. */
static void grow_job(attempt *self)
{
    bool may_grow = self->job->hosts && self->options->least_processes > 0 && self->has_saved;
    const char *name = may_grow ? sli_hosts_poll_lost(self->job->hosts) : NULL;
    if (!name)
        return;
    snprintf(self->end->reason, sizeof self->end->reason, "host %s answers again", name);
    self->end->failed = sli_clock_seconds();
    self->end->grows = true;
    signal_ranks(self, self->count, SIGTERM);
    enter_phase(self, ENDING);
}

/* mpirun's own status matters only where no rank has failed and not all have ended well. It is
 * started with --quiet, so it does not say what it dislikes about a list of hosts. */
static void check_mpirun_status(attempt *self)
{
    if (self->end->exit_status != 0 || self->end->grows || self->ended == self->count)
        return;
    int status = sli_shell_status(self->mpirun_status);
    if (WIFSIGNALED(self->mpirun_status)) {
        record_failure(self, MPIRUN_ENDED, status, "mpirun was killed by signal %d (%s)",
                       WTERMSIG(self->mpirun_status), strsignal(WTERMSIG(self->mpirun_status)));
        return;
    }
    const char *root = geteuid() == 0 ? " --allow-run-as-root" : "";
    char hint[SLI_JOB_REASON_BYTES] = "";
    if (self->started == 0 && self->options->hosts)
        snprintf(hint, sizeof hint, ": mpirun%s --hostfile %s hostname shows why", root,
                 self->options->hosts);
    record_failure(self, MPIRUN_ENDED, status != 0 ? status : 1,
                   "mpirun ended with status %d when %d of %d processes had started and %d had "
                   "ended%s",
                   status, self->started, self->count, self->ended, hint);
}

static void reap_mpirun(attempt *self)
{
    if (self->mpirun_ended || waitpid(self->mpirun, &self->mpirun_status, WNOHANG) != self->mpirun)
        return;
    self->mpirun_ended = true;
    self->settled = seconds_now(self) + (WIFSIGNALED(self->mpirun_status) ? 0 : settle_seconds);
}

/* mpirun has ended, and ranks still run: the programs get SIGTERM, as nothing else may tell
 * them, and the time of a failure. */
static void end_orphans(attempt *self)
{
    check_mpirun_status(self);
    signal_ranks(self, self->count, SIGTERM);
}

/* Nothing of the attempt runs any more; the time of lost hosts matters to the next one alone. */
static bool is_over(const attempt *self)
{
    bool again = (self->job->may_restart || self->end->grows) && !self->end->is_final;
    bool waits = again && seconds_now(self) < self->lost_until;
    return self->mpirun_ended && !waits && sli_wire_listener_connected(self->listener) == 0;
}

/* Not even SIGKILL has ended all: they are stopped, or wait for a disk. */
static bool give_up(attempt *self)
{
    static const char stuck[] = "not all processes of the job can be ended";
    if (self->phase != KILLED || seconds_now(self) < self->deadline)
        return false;
    self->end->is_final = true;
    self->options->report(self->options->context,
                          &(sl_launch_event){.kind = SL_LAUNCH_WARNING, .text = stuck});
    return true;
}

static void supervise_job(attempt *self)
{
    while (read_signals(self), reap_mpirun(self), !is_over(self) && !give_up(self)) {
        (void)sli_wire_listener_turn(self->listener, self->job->signals->fd, SLI_WIRE_TURN_SECONDS);
        if (self->phase != RUNNING && self->phase != KILLED && seconds_now(self) >= self->deadline)
            end_phase(self);
        if (self->phase == RUNNING && self->mpirun_ended && seconds_now(self) >= self->settled)
            end_orphans(self);
        if (self->phase == RUNNING)
            grow_job(self);
    }
    /* What the ranks have sent is still to be read. */
    for (int i = 0; i < self->count && sli_wire_listener_turn(self->listener, -1, 0); i++)
        continue;
}

static sl_status listen_for_ranks(attempt *self)
{
    sli_wire_address address;
    sli_wire_listener_options options = {.ranks = self->count,
                                         .kinds = SLI_LAUNCH_KINDS,
                                         .this_host = self->job->this_host,
                                         .owner = self,
                                         .called = on_call,
                                         .said = on_message,
                                         .ended = on_connection_end};
    self->ranks = calloc((size_t)self->count, sizeof *self->ranks);
    if (!self->ranks)
        return sli_no_memory(NULL, "%d processes", self->count);
    SL_TRY(sli_wire_listen(&options, &address, &self->listener));
    sli_wire_address_print(&address, self->address);
    return SL_OK;
}

sl_status sli_job_run(const sli_job *job, sli_job_end *out)
{
    *out = (sli_job_end){0};
    attempt self = {.job = job, .options = job->options, .count = job->processes, .end = out};
    sl_status status;
    SL_TRY_OR_FAIL(listen_for_ranks(&self));
    SL_TRY_OR_FAIL(sli_mpirun_start(job, self.address, &self.mpirun));
    supervise_job(&self);
    check_mpirun_status(&self);

fail:
    sli_wire_listener_destroy(&self.listener);
    for (int i = 0; i < self.error_count; i++)
        free(self.errors[i]);
    free(self.ranks);
    return status;
}
