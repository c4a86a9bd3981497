/* sluice launch-rank: what `sluice launch` has mpirun start instead of the program itself.
 *
 *     sluice launch ── mpirun ──┬── sluice launch-rank ── PROGRAM     rank 0
 *           │                   └── sluice launch-rank ── PROGRAM     rank 1
 *           └───────── TCP ─────────────────┘
 *
 * mpirun kills every rank as soon as one fails, and what it knows of them ends at "status 1". So
 * this process stands between: it gives the program torchrun's names for its rank, starts it, tells
 * the launcher how it ended, and stays until the launcher hangs up. Mpirun sees a rank that lives,
 * the other programs have time to end with an error of their own, and the launcher decides.
 *
 * Nothing outlives it: a program whose parent dies is killed, and what the program leaves behind
 * becomes this process's own child, and is killed with it. */
#define _GNU_SOURCE
#include "cli/command.h"
#include "cli/output.h"
#include "cli/supervisor.h"
#include "launch/kinds.h"
#include "sluice/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALL_SECONDS = 30 };  /* for the launcher to answer */
enum { END_MS = 2000 };      /* from SIGTERM to SIGKILL */
enum { RELEASE_MS = 60000 }; /* for the launcher, which hangs up sooner, or is gone */
#define PARENT_DIED SIGRTMAX /* which nobody else sends */
enum { NOT_STARTED = 127 };  /* as a shell says it */

typedef struct supervisor {
    sli_wire_connection line;
    int signals;    /* signalfd */
    int notices[2]; /* what the program says (supervisor.h): our end, and its own */
    sigset_t mask_before;
    pid_t program;
    bool cut_off;    /* the launcher's host does not answer any more */
    int start_error; /* errno of the program that did not start */
} supervisor;

/* ---- The program -------------------------------------------------------------------------- */

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

/* The launcher's own names come first in sl_launch_info_read, and those that it was started with
 * are none of this job's. */
static sl_status take_names(sl_launch_info *info)
{
    static const char *const names[] = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"};
    for (int i = 0; i < 4; i++)
        unsetenv(names[i]);
    SL_TRY(sl_launch_info_read(info));
    set_number("RANK", info->rank);
    set_number("LOCAL_RANK", info->local_rank);
    set_number("WORLD_SIZE", info->world_size);
    set_number("LOCAL_WORLD_SIZE", info->local_world_size);
    return SL_OK;
}

/* In the child: becomes the program, or writes to `failure` why not. */
static _Noreturn void become(char **command, const supervisor *here, pid_t parent, int failure)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent && fcntl(here->notices[1], F_SETFD, 0) == 0) {
        sigprocmask(SIG_SETMASK, &here->mask_before, NULL);
        execvp(command[0], command);
    }
    int error = errno;
    (void)!write(failure, &error, sizeof error);
    _exit(NOT_STARTED);
}

static void start_program(supervisor *here, char **command)
{
    int ends[2];
    pid_t self = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0) {
        here->start_error = errno;
        return;
    }
    set_number(CLI_SUPERVISOR_VARIABLE, here->notices[1]);
    here->program = fork();
    if (here->program == 0)
        become(command, here, self, ends[1]);
    if (here->program < 0)
        here->start_error = errno;
    close(ends[1]);
    close(here->notices[1]);
    /* Nothing comes from a program that starts: the pipe closes. */
    if (here->program > 0 && read(ends[0], &here->start_error, sizeof(int)) > 0) {
        waitpid(here->program, NULL, 0);
        here->program = -1;
    }
    close(ends[0]);
}

/* Kills and reaps all children, which are what the program left behind. */
static void end_children(void)
{
    for (;;) {
        char text[4096] = "", *rest = text;
        FILE *list = fopen("/proc/thread-self/children", "re");
        if (list && fgets(text, sizeof text, list) && strrchr(text, ' '))
            *strrchr(text, ' ') = '\0'; /* a number that is cut off comes the next time */
        if (list)
            fclose(list);
        for (int child; cli_read_number(&rest, &child) && child > 1;)
            kill(child, SIGKILL);
        if (!list || (waitpid(-1, NULL, 0) < 0 && errno != EINTR))
            return;
    }
}

/* ---- Waiting ------------------------------------------------------------------------------ */

static bool program_has_ended(const supervisor *here, int *status)
{
    pid_t ended;
    while ((ended = waitpid(-1, status, WNOHANG)) > 0)
        if (ended == here->program)
            return true;
    return false;
}

/* Signals go to the process group, as a terminal's and mpirun's do; here they are blocked. */
static void obey(supervisor *here)
{
    sli_wire_message message;
    sli_wire_state state;
    while ((state = sli_wire_receive(&here->line, &message)) == SLI_WIRE_MESSAGE)
        if (message.kind == CLI_LAUNCHER_SIGNAL)
            kill(0, message.number);
    here->cut_off |= state == SLI_WIRE_LOST;
    if (state != SLI_WIRE_NOTHING)
        sli_wire_close(&here->line);
}

/* What cannot be sent is lost with the launcher. */
static void tell(supervisor *here, int kind, int number, const char *text)
{
    sli_wire_message message = {.kind = kind, .number = number};
    snprintf(message.text, sizeof message.text, "%s", text);
    if (here->line.fd >= 0)
        (void)sli_wire_send(&here->line, &message);
}

/* Hands on what the launcher is to know. */
static void take_notices(supervisor *here)
{
    char text[CLI_NOTICE_BYTES];
    ssize_t bytes;
    while ((bytes = recv(here->notices[0], text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
        text[bytes] = '\0';
        text[strcspn(text, "\n")] = '\0';
        bool is_error = strncmp(text, "error ", 6) == 0;
        if (is_error && here->line.fd < 0)
            cli_complain("%s", text + 6);
        else if (is_error)
            tell(here, CLI_RANK_ERROR, 0, text + 6);
        else if (strcmp(text, "saving") == 0)
            tell(here, CLI_RANK_SAVING, 0, "");
        else if (strcmp(text, "saved") == 0)
            tell(here, CLI_RANK_SAVED, 0, "");
    }
    if (bytes == 0) { /* nobody has the other end any more */
        close(here->notices[0]);
        here->notices[0] = -1;
    }
}

/* True where mpirun is gone. */
static bool read_signals(const supervisor *here)
{
    struct signalfd_siginfo got;
    bool orphaned = false;
    while (read(here->signals, &got, sizeof got) == sizeof got)
        orphaned |= (int)got.ssi_signo == PARENT_DIED;
    return orphaned;
}

/* Until the program has ended: by itself, or because the launcher or mpirun is gone. */
static int wait_for_program(supervisor *here)
{
    int status, patience = -1;
    while (!program_has_ended(here, &status)) {
        struct pollfd polled[] = {{.fd = here->signals, .events = POLLIN},
                                  {.fd = here->line.fd, .events = POLLIN},
                                  {.fd = patience < 0 ? here->notices[0] : -1, .events = POLLIN}};
        int count = poll(polled, 3, patience);
        if (count == 0)
            kill(here->program, SIGKILL);
        bool orphaned = read_signals(here);
        if (here->line.fd >= 0 && polled[1].revents)
            obey(here);
        if (polled[2].revents)
            take_notices(here);
        if (patience < 0 && (orphaned || here->line.fd < 0)) {
            kill(0, SIGTERM);
            patience = END_MS;
        }
    }
    return status;
}

/* Until the launcher hangs up. False if it did not. */
static bool wait_for_release(supervisor *here)
{
    while (here->line.fd >= 0) {
        struct pollfd one = {.fd = here->line.fd, .events = POLLIN};
        int count = poll(&one, 1, RELEASE_MS);
        if (count == 0 || (count < 0 && errno != EINTR))
            return false;
        obey(here);
    }
    return true;
}

/* Mpirun's daemon on this host waits for mpirun's for as long as TCP repeats what it has sent, a
 * quarter of an hour. Where the launcher's host is out of reach, nobody needs it any more. */
static void end_daemon(void)
{
    char path[64], name[16] = "";
    pid_t parent = getppid();
    snprintf(path, sizeof path, "/proc/%d/comm", (int)parent);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    bool read = fgets(name, sizeof name, file) != NULL;
    fclose(file);
    if (read && (strcmp(name, "orted\n") == 0 || strcmp(name, "prted\n") == 0))
        kill(parent, SIGTERM);
}

/* ---- The command -------------------------------------------------------------------------- */

static sl_status prepare(supervisor *here)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    const int numbers[] = {PARENT_DIED, SIGCHLD, SIGHUP,  SIGINT, SIGTERM,
                           SIGPIPE,     SIGUSR1, SIGUSR2, SIGCONT};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&blocked, numbers[i]);
    sigprocmask(SIG_BLOCK, &blocked, &here->mask_before);
    if (getpgrp() != getpid())
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, PARENT_DIED);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    here->signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (here->signals < 0)
        return sl_error(SL_ERR_IO, "signals cannot be read: %s", strerror(errno));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, here->notices) != 0)
        return sl_error(SL_ERR_IO, "the program cannot be given a socket: %s", strerror(errno));
    return SL_OK;
}

static sl_status call_launcher(const char *text, const sl_launch_info *info,
                               sli_wire_connection *out)
{
    char host[64] = "";
    sli_wire_address launcher;
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "?");
    sli_wire_call_options options = {.rank = info->rank,
                                     .ranks = info->world_size,
                                     .kinds = CLI_LAUNCH_KINDS,
                                     .host = host,
                                     .whom = "its launcher",
                                     .seconds = CALL_SECONDS};
    SL_TRY(sl_error_context(sli_wire_address_parse(text, &launcher),
                            "environment variable " CLI_LAUNCHER_VARIABLE ": "));
    return sli_wire_call(&launcher, &options, out);
}

/* The exit status for mpirun: 0 where the launcher hangs up, for then mpirun's own measures against
 * a failed rank would only take time. */
static int run_program(supervisor *here, char **command)
{
    int status = 0;
    start_program(here, command);
    if (here->start_error) {
        tell(here, CLI_RANK_NOT_STARTED, here->start_error, "");
        return wait_for_release(here) ? 0 : NOT_STARTED;
    }
    status = wait_for_program(here);
    end_children();
    take_notices(here);
    if (WIFSIGNALED(status))
        tell(here, CLI_RANK_KILLED, WTERMSIG(status), "");
    else
        tell(here, CLI_RANK_EXIT, WEXITSTATUS(status), "");
    if (status == 0 || wait_for_release(here))
        return 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int cmd_launch_rank(int argc, char **argv)
{
    supervisor here = {.line = {.fd = -1}, .signals = -1};
    sl_launch_info info;
    const char *launcher = getenv(CLI_LAUNCHER_VARIABLE);
    if (argc < 2 || !launcher)
        cli_refuse("launch-rank is for sluice launch to call");
    sl_status status = prepare(&here);
    if (status == SL_OK)
        status = take_names(&info);
    if (status == SL_OK)
        status = call_launcher(launcher, &info, &here.line);
    if (status != SL_OK)
        return cli_finish(status);
    unsetenv(CLI_LAUNCHER_VARIABLE);
    int result = run_program(&here, argv + 1);
    if (here.cut_off)
        end_daemon();
    sli_wire_close(&here.line);
    close(here.signals);
    return result;
}
