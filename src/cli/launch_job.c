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
 * Each stage but the first has a time limit, so that every job that fails ends in bounded time. One
 * that succeeds goes from RUNNING to RELEASED when all its ranks have ended, and has more time
 * there, for what they have written may still be on its way; as long as nobody reads it, it waits.
 */
#define _GNU_SOURCE
#include "cli/launch_job.h"

#include "cli/arguments.h"
#include "cli/launch_line.h"

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
#include <time.h>
#include <unistd.h>

typedef enum stage { RUNNING, ENDING, RELEASED, TERMINATED, KILLED } stage;

static const double released_seconds = 8, released_success_seconds = 60, terminated_seconds = 5;

enum { MOST_ERRORS = 64, SPARE_CALLERS = 16, SIGNAL_STATUS = 128, NOT_FOUND_STATUS = 127 };

/* A rank that ends with an error may do so because another has died, and may be heard first. */
typedef enum failure { NO_FAILURE, ENDED, DIED } failure;

typedef struct caller {
    cli_line line;
    int rank;      /* -1: has not said who it is; the job's ranks: has ended */
    bool saving;   /* its program has said so */
    char host[64]; /* where it runs */
} caller;

typedef struct job {
    cli_launcher launcher;
    int ranks, started, ended;
    caller *callers;       /* [places] */
    struct pollfd *polled; /* [places + 4] */
    int places;
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

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- Stages ------------------------------------------------------------------------------- */

static double seconds_of(const job *in, stage next)
{
    if (next == RELEASED)
        return in->failure == NO_FAILURE ? released_success_seconds : released_seconds;
    return terminated_seconds;
}

static bool runs(const job *in, const caller *one)
{
    return one->line.fd >= 0 && one->rank >= 0 && one->rank < in->ranks;
}

static bool is_saving(const job *in)
{
    for (int i = 0; i < in->places; i++)
        if (runs(in, &in->callers[i]) && in->callers[i].saving)
            return true;
    return false;
}

/* The grace period starts when the job is to end, and restarts when a rank's save ends, at most
 * limits.save_seconds later. */
static void begin_grace(job *in)
{
    double last = in->ending_since + in->limits.save_seconds, from = now();
    if (in->stage != ENDING)
        return;
    if (is_saving(in) || from > last)
        from = last;
    if (from < in->ending_since)
        from = in->ending_since;
    in->deadline = from + in->limits.grace_seconds;
}

static void set_saving(job *in, caller *of, bool saving)
{
    bool changes = of->saving != saving;
    of->saving = saving;
    if (changes)
        begin_grace(in);
}

static void enter(job *in, stage next)
{
    in->stage = next;
    in->deadline = now() + seconds_of(in, next);
    if (next == ENDING) {
        in->ending_since = now();
        begin_grace(in);
    }
    if (next >= RELEASED)
        for (int i = 0; i < in->places; i++)
            cli_line_close(&in->callers[i].line);
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
    const caller *first = NULL;
    int others = -1;
    for (int i = 0; i < in->places; i++) {
        const caller *one = &in->callers[i];
        if (!runs(in, one))
            continue;
        others++;
        first = !first || one->rank < first->rank ? one : first;
    }
    if (!first)
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
             first->rank, first->host, more, did_not_end, others ? "were" : "was");
}

static void release_if_all_have_ended(job *in)
{
    if (in->stage <= ENDING && in->ended == in->ranks)
        enter(in, RELEASED);
}

/* ---- Ranks -------------------------------------------------------------------------------- */

static void welcome(job *in, caller *from, char *text)
{
    char *host = text;
    const char *token = strtok_r(host, " ", &host);
    int rank;
    bool known = token && strcmp(token, in->launcher.token) == 0 && cli_take_number(&host, &rank) &&
                 rank < in->ranks;
    if (!known || in->stage >= RELEASED) {
        cli_line_close(&from->line);
        return;
    }
    from->rank = rank;
    snprintf(from->host, sizeof from->host, "%s", host);
    in->started++;
    cli_line_send(&from->line, "welcome");
}

/* Shows an error once, however many ranks end with it. A group's error has the rank in front where
 * it happened. */
static void show_error(job *in, int rank, char *text)
{
    int number;
    char *rest = text + 5;
    if (strncmp(text, "rank ", 5) == 0 && cli_take_number(&rest, &number) &&
        strncmp(rest, ": ", 2) == 0) {
        rank = number;
        text = rest + 2;
    }
    for (int i = 0; i < in->error_count; i++)
        if (strcmp(in->errors[i], text) == 0)
            return;
    if (in->error_count < MOST_ERRORS && (in->errors[in->error_count] = strdup(text)))
        in->error_count++;
    cli_complain("rank %d: %s", rank, text);
}

/* What a rank says of its program. */
static void take_word(job *in, caller *from, char *text)
{
    int number;
    if (strcmp(text, "saving") == 0 || strcmp(text, "saved") == 0) {
        set_saving(in, from, strcmp(text, "saving") == 0);
        return;
    }
    if (strncmp(text, "error ", 6) == 0) {
        show_error(in, from->rank, text + 6);
        return;
    }
    set_saving(in, from, false);
    in->ended++;
    if (cli_line_number(text, "exit", &number)) {
        if (number != 0)
            fail(in, ENDED, number, "rank %d on %s ended with exit status %d", from->rank,
                 from->host, number);
    } else if (cli_line_number(text, "signal", &number)) {
        fail(in, DIED, SIGNAL_STATUS + number, "rank %d on %s was killed by signal %d (%s)",
             from->rank, from->host, number, strsignal(number));
    } else if (cli_line_number(text, "errno", &number)) {
        in->end->final |= in->failure == NO_FAILURE;
        fail(in, ENDED, NOT_FOUND_STATUS, "rank %d on %s: the program cannot be started: %s",
             from->rank, from->host, strerror(number));
    }
    from->rank = in->ranks; /* has ended: its line's end means nothing */
}

static void hear(job *in, caller *from)
{
    char text[CLI_LINE_BYTES];
    cli_line_state state;
    while (from->line.fd >= 0 && (state = cli_line_take(&from->line, text)) != CLI_LINE_NOTHING) {
        if (state == CLI_LINE_TEXT && from->rank < 0) {
            welcome(in, from, text);
        } else if (state == CLI_LINE_TEXT && from->rank < in->ranks) {
            take_word(in, from, text);
        } else if (state == CLI_LINE_CLOSED || state == CLI_LINE_LOST) {
            cli_line_close(&from->line);
            if (from->rank < 0 || from->rank >= in->ranks)
                break;
            set_saving(in, from, false);
            in->ended++;
            fail(in, DIED, 1, "rank %d on %s was lost", from->rank, from->host);
        }
    }
    release_if_all_have_ended(in);
}

static void answer(job *in)
{
    cli_line line;
    while ((line = cli_launcher_accept(&in->launcher)).fd >= 0) {
        int place = 0;
        while (place < in->places && in->callers[place].line.fd >= 0)
            place++;
        if (place == in->places)
            cli_line_close(&line);
        else
            in->callers[place] = (caller){.line = line, .rank = -1};
    }
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
    for (int i = 0; i < in->places; i++)
        if (in->callers[i].rank >= 0)
            cli_line_send(&in->callers[i].line, "signal %d", number);
    if (in->started == in->ranks) {
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
    setenv(CLI_LAUNCHER_VARIABLE, in->launcher.text, 1);
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

static int milliseconds_left(const job *in)
{
    double left = in->deadline - now();
    if (in->stage == RUNNING || in->stage == KILLED)
        return -1;
    return left > 0 ? (int)(1000 * left) + 1 : 0;
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
    struct pollfd *readers = in->polled + 2 + in->places;
    while (!mpirun_has_ended(in)) {
        in->polled[0] = (struct pollfd){.fd = in->signals, .events = POLLIN};
        in->polled[1] = (struct pollfd){.fd = in->launcher.fd, .events = POLLIN};
        for (int i = 0; i < in->places; i++)
            in->polled[2 + i] = (struct pollfd){.fd = in->callers[i].line.fd, .events = POLLIN};
        readers[0] = reader_of(in, STDOUT_FILENO);
        readers[1] = reader_of(in, STDERR_FILENO);
        int count = poll(in->polled, (nfds_t)in->places + 4, milliseconds_left(in));
        if (count > 0 && (readers[0].revents || readers[1].revents))
            forward(in, SIGPIPE);
        for (int i = 0; i < in->places; i++)
            if (count > 0 && in->polled[2 + i].revents && in->callers[i].line.fd >= 0)
                hear(in, &in->callers[i]);
        if (count > 0 && in->polled[1].revents)
            answer(in);
        if (milliseconds_left(in) == 0)
            pass_deadline(in);
    }
}

/* Mpirun's status counts only where no rank has failed, and not all have ended well. */
static void judge(job *in)
{
    for (int i = 0; i < in->places; i++)
        if (in->callers[i].line.fd >= 0)
            hear(in, &in->callers[i]);
    if (in->end->status != 0 || in->ended == in->ranks)
        return;
    int status = WIFEXITED(in->mpirun_status) ? WEXITSTATUS(in->mpirun_status)
                                              : SIGNAL_STATUS + WTERMSIG(in->mpirun_status);
    in->end->status = status != 0 ? status : 1;
    snprintf(in->end->why, sizeof in->end->why,
             "mpirun ended with status %d when %d of %d processes had started and %d had ended",
             status, in->started, in->ranks, in->ended);
}

sl_status cli_job_run(char **command, int ranks, const cli_job_limits *limits, cli_job_end *out)
{
    *out = (cli_job_end){0};
    job here = {.ranks = ranks,
                .places = ranks + SPARE_CALLERS,
                .signals = -1,
                .limits = *limits,
                .end = out};
    SL_TRY(cli_launcher_listen(&here.launcher));
    here.ignores_readers = is_ignored(SIGPIPE);
    signal(SIGPIPE, SIG_IGN); /* a closed stderr must not end the launcher before the ranks */
    here.callers = calloc((size_t)here.places, sizeof *here.callers);
    here.polled = calloc((size_t)here.places + 4, sizeof *here.polled);
    sl_status status = here.callers && here.polled
                           ? SL_OK
                           : sl_error(SL_ERR_MEMORY, "no memory for %d processes", ranks);
    for (int i = 0; status == SL_OK && i < here.places; i++)
        here.callers[i].line.fd = -1;
    if (status == SL_OK) {
        status = start_mpirun(&here, command);
        if (status == SL_OK) {
            watch(&here);
            judge(&here);
        }
        for (int i = 0; i < here.places; i++)
            cli_line_close(&here.callers[i].line);
        sigprocmask(SIG_SETMASK, &here.mask_before, NULL);
        signal(SIGPIPE, here.ignores_readers ? SIG_IGN : SIG_DFL);
        if (here.signals >= 0)
            close(here.signals);
    }
    close(here.launcher.fd);
    for (int i = 0; i < here.error_count; i++)
        free(here.errors[i]);
    free(here.callers);
    free(here.polled);
    return status;
}
