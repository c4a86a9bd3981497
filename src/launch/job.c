/* From the first failure on, or from a signal to end, a job has these stages:
 *
 *     RUNNING ──→ ENDING ──→ RELEASED ──→ TERMINATED ──→ KILLED
 *
 *     ENDING      the other ranks may end by themselves: those of a group notice within 5 s; the
 *                 grace begins again while one of them is saving, up to a limit
 *     RELEASED    all have, or the time is over: the launcher hangs up, which ends the rest
 *     TERMINATED  mpirun gets SIGTERM, for it has not ended; it may wait for a host that is gone,
 *                 or have locked itself up in its own end, as Open MPI's rarely does
 *     KILLED      and SIGKILL
 *
 * Each stage but the first has a time limit, so that every job that fails ends in bounded time;
 * time in which the launcher was suspended does not count (core/clock.h). A job that
 * succeeds goes from RUNNING to RELEASED when all its ranks have ended, and has more time there,
 * for what they have written may still be on its way; as long as nobody reads it, it waits.
 */
#define _GNU_SOURCE
#include "launch/job.h"

#include "cli/output.h"
#include "core/wire_listener.h"
#include "launch/kinds.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef enum stage { RUNNING, ENDING, RELEASED, TERMINATED, KILLED } stage;

static const double released_seconds = 8, released_success_seconds = 60, terminated_seconds = 5;

enum { MOST_ERRORS = 64, SIGNAL_STATUS = 128, NOT_FOUND_STATUS = 127 };

/* A rank that ends with an error may do so because another has died, and may be heard first. */
typedef enum failure { NO_FAILURE, ENDED, DIED } failure;

typedef struct rank {
    bool started, ended; /* its program; the end of its connection means nothing then */
    bool saving;         /* its program has said so */
    char host[64];       /* where it runs */
} rank;

typedef struct job {
    sli_wire_listener *listener;
    char address[SLI_WIRE_ADDRESS_BYTES]; /* for CLI_LAUNCHER_VARIABLE */
    int count, started, ended;
    rank *ranks;          /* [count] */
    int signals;          /* signalfd */
    bool ignores_readers; /* SIGPIPE was ignored at the start */
    sigset_t mask_before;
    pid_t mpirun;
    int mpirun_status;
    stage stage;
    double deadline;     /* of this stage */
    double ending_since; /* when the stage ENDING began */
    cli_job_limits limits;
    int signal;                /* that was forwarded to the programs; 0: none */
    failure failure;           /* what `end` tells of */
    char *errors[MOST_ERRORS]; /* shown, without their ranks; more are not remembered */
    int error_count;
    cli_job_end *end;
} job;

static double now(const job *in)
{
    return sli_wire_listener_seconds(in->listener);
}

/* ---- Stages ------------------------------------------------------------------------------- */

static double seconds_of(const job *in, stage next)
{
    if (next == RELEASED)
        return in->failure == NO_FAILURE ? released_success_seconds : released_seconds;
    return terminated_seconds;
}

static bool runs(const rank *one)
{
    return one->started && !one->ended;
}

static bool is_saving(const job *in)
{
    for (int r = 0; r < in->count; r++)
        if (runs(&in->ranks[r]) && in->ranks[r].saving)
            return true;
    return false;
}

/* The grace period starts when the job is to end, and restarts when a rank's save ends, at most
 * limits.save_seconds later. */
static void begin_grace(job *in)
{
    double last = in->ending_since + in->limits.save_seconds, from = now(in);
    if (in->stage != ENDING)
        return;
    if (is_saving(in) || from > last)
        from = last;
    if (from < in->ending_since)
        from = in->ending_since;
    in->deadline = from + in->limits.grace_seconds;
}

static void set_saving(job *in, rank *of, bool saving)
{
    bool changes = of->saving != saving;
    of->saving = saving;
    if (changes)
        begin_grace(in);
}

static void enter(job *in, stage next)
{
    in->stage = next;
    in->deadline = now(in) + seconds_of(in, next);
    if (next == ENDING) {
        in->ending_since = now(in);
        begin_grace(in);
    }
    if (next >= RELEASED)
        sli_wire_listener_hang_up(in->listener);
    if (next >= TERMINATED)
        kill(in->mpirun, next == KILLED ? SIGKILL : SIGTERM);
}

/* The first failure is the job's, whatever else follows from it, but a death comes before all. */
static void fail(job *in, failure kind, int status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    in->end->died += kind == DIED;
    if (kind > in->failure) {
        in->failure = kind;
        in->end->status = status;
        vsnprintf(in->end->why, sizeof in->end->why, format, values);
    }
    va_end(values);
    if (in->stage == RUNNING)
        enter(in, ENDING);
}

/* Before the launcher ends the programs that still run, for they `did not end`: what becomes of
 * them then is its doing, and no failure of theirs. */
static void tell_of_running(job *in, const char *did_not_end)
{
    int first = -1, others = -1;
    for (int r = 0; r < in->count; r++) {
        if (!runs(&in->ranks[r]))
            continue;
        others++;
        first = first < 0 ? r : first;
    }
    if (first < 0)
        return;
    char more[32] = "";
    if (others > 0)
        snprintf(more, sizeof more, " and %d other%s", others, others == 1 ? "" : "s");
    if (in->signal)
        fail(in, ENDED, SIGNAL_STATUS + in->signal, "stopped by signal %d (%s)", in->signal,
             strsignal(in->signal));
    size_t used = strlen(in->end->why);
    snprintf(in->end->why + used, sizeof in->end->why - used,
             "; rank %d on %s%s did not end %s, "
             "and %s ended",
             first, in->ranks[first].host, more, did_not_end, others ? "were" : "was");
}

static void release_if_all_have_ended(job *in)
{
    if (in->stage <= ENDING && in->ended == in->count)
        enter(in, RELEASED);
}

/* ---- Ranks -------------------------------------------------------------------------------- */

static void on_call(void *argument, int index, const char *host)
{
    job *in = argument;
    rank *from = &in->ranks[index];
    from->started = true;
    snprintf(from->host, sizeof from->host, "%s", host);
    in->started++;
}

/* Shows an error once, however many ranks end with it. A group's error has the rank in front where
 * it happened. */
static void show_error(job *in, int index, char *text)
{
    int number;
    char *rest = text + 5;
    if (strncmp(text, "rank ", 5) == 0 && cli_read_number(&rest, &number) &&
        strncmp(rest, ": ", 2) == 0) {
        index = number;
        text = rest + 2;
    }
    for (int i = 0; i < in->error_count; i++)
        if (strcmp(in->errors[i], text) == 0)
            return;
    if (in->error_count < MOST_ERRORS && (in->errors[in->error_count] = strdup(text)))
        in->error_count++;
    cli_complain("rank %d: %s", index, text);
}

static void take_end(job *in, int index, const sli_wire_message *message)
{
    rank *from = &in->ranks[index];
    int number = message->number;
    set_saving(in, from, false);
    from->ended = true;
    in->ended++;
    if (message->kind == CLI_RANK_EXIT && number != 0) {
        fail(in, ENDED, number, "rank %d on %s ended with exit status %d", index, from->host,
             number);
    } else if (message->kind == CLI_RANK_KILLED) {
        fail(in, DIED, SIGNAL_STATUS + number, "rank %d on %s was killed by signal %d (%s)", index,
             from->host, number, strsignal(number));
    } else if (message->kind == CLI_RANK_NOT_STARTED) {
        in->end->final |= in->failure == NO_FAILURE;
        fail(in, ENDED, NOT_FOUND_STATUS, "rank %d on %s: the program cannot be started: %s", index,
             from->host, strerror(number));
    }
    release_if_all_have_ended(in);
}

/* What a rank says of its program. */
static void on_message(void *argument, int index, const sli_wire_message *message)
{
    job *in = argument;
    char text[SLI_WIRE_TEXT_BYTES];
    if (in->ranks[index].ended)
        return;
    switch (message->kind) {
    case CLI_RANK_SAVING:
    case CLI_RANK_SAVED:
        set_saving(in, &in->ranks[index], message->kind == CLI_RANK_SAVING);
        break;
    case CLI_RANK_ERROR:
        memcpy(text, message->text, sizeof text);
        show_error(in, index, text);
        break;
    case CLI_RANK_EXIT:
    case CLI_RANK_KILLED:
    case CLI_RANK_NOT_STARTED:
        take_end(in, index, message);
        break;
    default:
        sli_wire_listener_refuse(in->listener, index);
    }
}

static void on_end(void *argument, int index, sli_wire_state why)
{
    job *in = argument;
    rank *from = &in->ranks[index];
    (void)why;
    if (from->ended)
        return;
    set_saving(in, from, false);
    from->ended = true;
    in->ended++;
    fail(in, DIED, 1, "rank %d on %s was lost", index, from->host);
    release_if_all_have_ended(in);
}

/* ---- Signals and mpirun ------------------------------------------------------------------- */

/* A terminal or a reader that is gone is told of more than once. */
static bool comes_again(int number)
{
    return number == SIGHUP || number == SIGPIPE;
}

/* The first signal goes to the programs, the next one is meant more seriously. */
static void forward(job *in, int number)
{
    if (in->stage != RUNNING) {
        if (comes_again(number))
            return;
        if (in->stage == ENDING && comes_again(in->signal)) {
            in->signal = number;
            return;
        }
        if (in->stage == ENDING)
            tell_of_running(in, "before the next signal");
        if (in->stage < KILLED)
            enter(in, in->stage + 1);
        return;
    }
    in->end->final = true;
    in->signal = number;
    for (int r = 0; r < in->count; r++)
        sli_wire_listener_send(in->listener, r,
                               &(sli_wire_message){.kind = CLI_LAUNCHER_SIGNAL, .number = number});
    if (in->started == in->count) {
        enter(in, ENDING);
        return;
    }
    fail(in, DIED, SIGNAL_STATUS + number, "stopped by signal %d (%s)", number, strsignal(number));
    enter(in, TERMINATED); /* nobody would tell those that are yet to start */
}

static bool mpirun_has_ended(job *in)
{
    struct signalfd_siginfo got;
    while (read(in->signals, &got, sizeof got) == sizeof got)
        if (got.ssi_signo != SIGCHLD)
            forward(in, (int)got.ssi_signo);
    return waitpid(in->mpirun, &in->mpirun_status, WNOHANG) == in->mpirun;
}

/* In the child: becomes mpirun, in a process group of its own, so that a terminal's Ctrl-C reaches
 * the programs only once, as this process forwards it. SIGPIPE is blocked: mpirun kills all ranks
 * at the tenth. */
static _Noreturn void become_mpirun(const job *in, char **command, pid_t parent)
{
    sigset_t mask = in->mask_before;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setenv(CLI_LAUNCHER_VARIABLE, in->address, 1);
    sigaddset(&mask, SIGPIPE);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    if (getppid() == parent)
        execvp(command[0], command);
    _exit(NOT_FOUND_STATUS);
}

/* A signal that was ignored when the launcher started stays so, though it would be read where it is
 * blocked. */
static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static sl_status start_mpirun(job *in, char **command)
{
    sigset_t blocked;
    pid_t self = getpid();
    sigemptyset(&blocked);
    static const int numbers[] = {SIGCHLD, SIGHUP, SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!is_ignored(numbers[i]))
            sigaddset(&blocked, numbers[i]);
    sigprocmask(SIG_BLOCK, &blocked, &in->mask_before);
    in->signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (in->signals < 0 || (in->mpirun = fork()) < 0)
        return sl_error(SL_ERR_IO, "mpirun cannot be started: %s", strerror(errno));
    if (in->mpirun == 0)
        become_mpirun(in, command, self);
    return SL_OK;
}

/* ---- The whole ---------------------------------------------------------------------------- */

static bool deadline_is_over(const job *in)
{
    return in->stage != RUNNING && in->stage != KILLED && now(in) >= in->deadline;
}

/* Whether mpirun may still be there for what a rank has written, which somebody reads slowly. */
static bool output_is_waiting(void)
{
    struct pollfd outputs[] = {{.fd = STDOUT_FILENO, .events = POLLOUT},
                               {.fd = STDERR_FILENO, .events = POLLOUT}};
    return poll(outputs, 2, 0) < 2;
}

static void pass_deadline(job *in)
{
    bool success = in->stage == RELEASED && in->failure == NO_FAILURE;
    if (success && output_is_waiting()) {
        enter(in, RELEASED);
        return;
    }
    if (in->stage == ENDING) {
        char within[96];
        int length = snprintf(within, sizeof within, "within %g s", in->limits.grace_seconds);
        if (is_saving(in))
            snprintf(within + length, sizeof within - (size_t)length, " and %g s of saving",
                     in->limits.save_seconds);
        tell_of_running(in, within);
    }
    if (success)
        cli_complain("warning: all processes have ended, and mpirun has not: it is ended");
    enter(in, in->stage + 1);
}

/* One of the outputs, to be polled for the end of its reader: what a program would notice that
 * writes there itself, mpirun keeps to itself. -1: it has none, or that is to be ignored. */
static struct pollfd reader_of(const job *in, int fd)
{
    struct stat what;
    bool counts = in->stage == RUNNING && !in->ignores_readers && fstat(fd, &what) == 0 &&
                  (S_ISFIFO(what.st_mode) || S_ISSOCK(what.st_mode));
    return (struct pollfd){.fd = counts ? fd : -1};
}

static void watch(job *in)
{
    while (!mpirun_has_ended(in)) {
        struct pollfd readers[] = {reader_of(in, STDOUT_FILENO), reader_of(in, STDERR_FILENO)};
        if (poll(readers, 2, 0) > 0)
            forward(in, SIGPIPE);
        (void)sli_wire_listener_turn(in->listener, in->signals, SLI_WIRE_TURN_SECONDS);
        if (deadline_is_over(in))
            pass_deadline(in);
    }
}

/* Mpirun's status counts only where no rank has failed, and not all have ended well. */
static void judge(job *in)
{
    for (int i = 0; i < in->count && sli_wire_listener_turn(in->listener, -1, 0); i++)
        continue;
    if (in->end->status != 0 || in->ended == in->count)
        return;
    int status = WIFEXITED(in->mpirun_status) ? WEXITSTATUS(in->mpirun_status)
                                              : SIGNAL_STATUS + WTERMSIG(in->mpirun_status);
    in->end->status = status != 0 ? status : 1;
    snprintf(in->end->why, sizeof in->end->why,
             "mpirun ended with status %d when %d of %d processes had started and %d had ended",
             status, in->started, in->count, in->ended);
}

static sl_status listen_for_ranks(job *in, bool this_host)
{
    sli_wire_address address;
    sli_wire_listener_options options = {.ranks = in->count,
                                         .kinds = CLI_LAUNCH_KINDS,
                                         .this_host = this_host,
                                         .owner = in,
                                         .called = on_call,
                                         .said = on_message,
                                         .ended = on_end};
    in->ranks = calloc((size_t)in->count, sizeof *in->ranks);
    if (!in->ranks)
        return sl_error(SL_ERR_MEMORY, "no memory for %d processes", in->count);
    SL_TRY(sli_wire_listen(&options, &address, &in->listener));
    sli_wire_address_print(&address, in->address);
    return SL_OK;
}

sl_status cli_job_run(char **command, int ranks, bool this_host, const cli_job_limits *limits,
                      cli_job_end *out)
{
    *out = (cli_job_end){0};
    job here = {.count = ranks, .signals = -1, .limits = *limits, .end = out};
    sl_status status = sl_error_context(listen_for_ranks(&here, this_host), "launch: ");
    if (status == SL_OK) {
        here.ignores_readers = is_ignored(SIGPIPE);
        signal(SIGPIPE, SIG_IGN); /* a closed stderr must not end the launcher before the ranks */
        status = start_mpirun(&here, command);
        if (status == SL_OK) {
            watch(&here);
            judge(&here);
        }
        sigprocmask(SIG_SETMASK, &here.mask_before, NULL);
        signal(SIGPIPE, here.ignores_readers ? SIG_IGN : SIG_DFL);
        if (here.signals >= 0)
            close(here.signals);
    }
    sli_wire_listener_destroy(&here.listener);
    for (int i = 0; i < here.error_count; i++)
        free(here.errors[i]);
    free(here.ranks);
    return status;
}
