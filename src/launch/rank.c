/* The supervisor of one rank. mpirun starts it instead of the program:
 *
 *     launcher ── mpirun ──┬── guard ── supervisor ── PROGRAM     rank 0
 *        │                 └── guard ── supervisor ── PROGRAM     rank 1
 *        └──────────── TCP ────────────────┘
 *
 * mpirun kills every rank as soon as one fails, and reports only "status 1". So the supervisor
 * starts the program with torchrun's variables, tells the launcher how it ended, and stays until
 * the launcher closes the connection. To mpirun the rank is alive: the other programs have time to
 * end with an error of their own, and the launcher decides when the job ends.
 *
 * The program may tell the supervisor over a socket of packets that it saves, how many steps it has
 * done, or that it ends with an error (sl_launch_link).
 *
 * Nothing outlives the two. What a program leaves behind, in sessions of its own as well, becomes
 * the supervisor's child and is killed when the program has ended. If the supervisor is killed, so
 * is the program, and the rest becomes the guard's child and is killed by it. An mpirun that ends
 * or is killed takes the guards with it, but not the supervisors, which are in other process
 * groups: the launcher is still there to end the job. The guard does nothing else, and keeps the
 * rank's connection open: when the launcher sees its end, nothing of the rank runs. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "core/error.h"
#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

enum { CALL_SECONDS = 30 };     /* for the launcher to answer */
enum { TERMINATE_SECONDS = 2 }; /* from SIGTERM to SIGKILL */
enum { PAUSE_MS = 100 };        /* between two looks at that time */
enum { KILL_SECONDS = 5 };      /* from SIGKILL to the end of what a program leaves behind */
enum { KILL_PAUSE_MS = 10 };    /* between two looks for what is left */

/* From a child process that cannot start the program: errno follows. */
static const char cannot_start[] = "cannot start ";

typedef struct supervisor {
    sl_launch_info info;
    sli_wire_connection launcher;
    int open;              /* the same connection, until this process ends */
    bool launcher_is_lost; /* its host does not answer any more */
    pid_t daemon;          /* mpirun's on this host, or mpirun itself: the guard's parent */
    int signals;           /* signalfd */
    int packets[2];        /* from the program: our end, and its own */
    sigset_t mask_before;
    pid_t program;
    int save;        /* SLI_RANK_SAVING or SLI_RANK_SAVED, not yet sent; 0: none */
    long long steps; /* done, not yet sent; -1: none */
    int unanswered;  /* saves and counts since the launcher's last message */
    int start_error; /* errno of a program that cannot be started */
} supervisor;

/* ---- The program -------------------------------------------------------------------------- */

void sli_set_variable(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

int sli_shell_status(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* In the child process: starts the program, or sends its parent why it cannot. */
static _Noreturn void exec_program(const supervisor *self, char *const *command, pid_t parent)
{
    char packet[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    unsetenv(SLI_LAUNCHER_VARIABLE);
    if (self->info.first_world_size == self->info.world_size)
        unsetenv(SLI_FIRST_SIZE_VARIABLE); /* a job within this one has another size */
    sli_set_variable("RANK", self->info.rank);
    sli_set_variable("LOCAL_RANK", self->info.local_rank);
    sli_set_variable("WORLD_SIZE", self->info.world_size);
    sli_set_variable("LOCAL_WORLD_SIZE", self->info.local_world_size);
    sli_set_variable(SLI_LINK_VARIABLE, self->packets[1]);
    if (getppid() == parent && fcntl(self->packets[1], F_SETFD, 0) == 0) {
        sigprocmask(SIG_SETMASK, &self->mask_before, NULL);
        execvp(command[0], command);
    }
    int length = snprintf(packet, sizeof packet, "%s%d", cannot_start, errno);
    (void)send(self->packets[1], packet, (size_t)length, MSG_NOSIGNAL);
    _exit(SLI_NOT_STARTED);
}

static void start_program(supervisor *self, char *const *command)
{
    pid_t parent = getpid();
    self->program = fork();
    if (self->program == 0)
        exec_program(self, command, parent);
    self->start_error = self->program < 0 ? errno : 0;
    close(self->packets[1]);
}

static bool program_has_ended(const supervisor *self, int *status)
{
    pid_t ended;
    while ((ended = waitpid(-1, status, WNOHANG)) > 0)
        if (ended == self->program)
            return true;
    return false;
}

static bool kill_each_child(void)
{
    char *text = NULL, *end;
    size_t room = 0;
    FILE *list = fopen("/proc/thread-self/children", "re");
    if (list && getline(&text, &room, list) > 0)
        for (char *at = text; strtol(at, &end, 10) > 1; at = end)
            kill((pid_t)strtol(at, NULL, 10), SIGKILL);
    free(text);
    if (list)
        fclose(list);
    return list != NULL;
}

/* Kills and reaps all children, which are what the program has left behind, except those that do
 * not end: another user's, or one that a debugger or a disk keeps. */
static void kill_children(void)
{
    sli_running_clock since = {0};
    pid_t ended = 0;
    while (ended >= 0 && kill_each_child() &&
           sli_running_clock_read(&since, 2e-3 * KILL_PAUSE_MS) < KILL_SECONDS) {
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
            continue;
        if (ended == 0)
            (void)poll(NULL, 0, KILL_PAUSE_MS);
    }
}

/* ---- Messages ----------------------------------------------------------------------------- */

/* No process has the other end any more, or the launcher is gone: a program that cannot tell its
 * error prints it. */
static void close_packets(supervisor *self)
{
    if (self->packets[0] >= 0)
        close(self->packets[0]);
    self->packets[0] = -1;
}

static void hang_up(supervisor *self)
{
    sli_wire_close(&self->launcher);
    close_packets(self);
}

/* A message that cannot be sent is lost with the launcher. A launcher that closes is not lost. */
static void send_to_launcher(supervisor *self, const sli_wire_message *message)
{
    if (self->launcher.fd < 0)
        return;
    errno = 0; /* stays so where the message is sent in part */
    if (sli_wire_send(&self->launcher, message))
        return;
    self->launcher_is_lost |= errno != EPIPE && errno != ECONNRESET;
    hang_up(self);
}

static void send_message(supervisor *self, int kind, int number, const char *text)
{
    sli_wire_message message = {.kind = kind, .number = number};
    snprintf(message.text, sizeof message.text, "%s", text);
    send_to_launcher(self, &message);
}

static void send_role(supervisor *self, const char *text)
{
    char *role;
    long rank = strtol(text, &role, 10);
    if (role > text && *role == ' ' && rank >= 0 && rank <= INT_MAX)
        send_message(self, SLI_RANK_ROLE, (int)rank, role + 1);
}

static void send_number(supervisor *self, int kind, long long number)
{
    sli_wire_message message = {.kind = kind,
                                .number = number > INT_MAX ? INT_MAX : (int)number,
                                .sequence = (uint64_t)number};
    send_to_launcher(self, &message);
}

/* False, and `*out` stays, where the text is no number from 0 on. */
static bool parse_number(const char *text, long long *out)
{
    char *end;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || number < 0)
        return false;
    *out = number;
    return true;
}

static void send_news(supervisor *self)
{
    if (self->save != 0)
        send_message(self, self->save, 0, "");
    if (self->steps >= 0)
        send_number(self, SLI_RANK_STEPS, self->steps);
    self->unanswered += (self->save != 0) + (self->steps >= 0);
    self->save = 0;
    self->steps = -1;
}

/* A launcher that does not read, as after Ctrl-Z, does not answer either: then the newest save and
 * count wait, and replace older ones. What it has not read stays far below its receive window: the
 * kernel breaks a connection on which messages wait for room (comm/wire/wire.c). */
static void send_news_if_read(supervisor *self)
{
    if (self->unanswered < 4 * SLI_WIRE_ANSWER_MESSAGES)
        send_news(self);
}

/* Signals go to the process group, as a terminal's and mpirun's do; the supervisor blocks them. */
static void read_messages(supervisor *self)
{
    sli_wire_message message;
    sli_wire_state state;
    if (self->launcher.fd < 0)
        return;
    while ((state = sli_wire_receive(&self->launcher, &message)) == SLI_WIRE_MESSAGE) {
        self->unanswered = 0;
        if (message.kind == SLI_LAUNCHER_SIGNAL)
            kill(0, message.number);
    }
    self->launcher_is_lost |= state == SLI_WIRE_LOST;
    if (state == SLI_WIRE_NOTHING)
        return;
    hang_up(self);
}

/* Passes on what the program says. */
static void read_packets(supervisor *self)
{
    char text[SLI_PACKET_BYTES];
    long long processes;
    ssize_t bytes;
    while ((bytes = recv(self->packets[0], text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
        text[bytes - (text[bytes - 1] == '\n')] = '\0';
        if (strncmp(text, "error ", 6) == 0)
            send_message(self, SLI_RANK_ERROR, 0, text + 6);
        else if (strcmp(text, "saving") == 0)
            self->save = SLI_RANK_SAVING;
        else if (strcmp(text, "saved") == 0)
            self->save = SLI_RANK_SAVED;
        else if (strcmp(text, "joining") == 0)
            send_message(self, SLI_RANK_JOINING, 0, "");
        else if (strcmp(text, "joined") == 0)
            send_message(self, SLI_RANK_JOINED, 0, "");
        else if (strncmp(text, "steps ", 6) == 0)
            (void)parse_number(text + 6, &self->steps);
        else if (strncmp(text, "role ", 5) == 0)
            send_role(self, text + 5);
        else if (strncmp(text, "processes ", 10) == 0 && parse_number(text + 10, &processes))
            send_number(self, SLI_RANK_PROCESSES, processes);
        else if (strncmp(text, cannot_start, strlen(cannot_start)) == 0)
            self->start_error = (int)strtol(text + strlen(cannot_start), NULL, 10);
        send_news_if_read(self);
    }
    if (bytes == 0)
        close_packets(self);
}

/* ---- Waiting ------------------------------------------------------------------------------ */

static void read_signals(const supervisor *self)
{
    struct signalfd_siginfo got;
    while (read(self->signals, &got, sizeof got) == sizeof got)
        continue;
}

/* Waits until the program has ended: by itself, or because the launcher is gone. */
static int wait_for_program(supervisor *self)
{
    sli_running_clock since_sigterm = {0};
    bool is_ending = false;
    int status;
    while (!program_has_ended(self, &status)) {
        struct pollfd polled[] = {{.fd = self->signals, .events = POLLIN},
                                  {.fd = self->launcher.fd, .events = POLLIN},
                                  {.fd = self->packets[0], .events = POLLIN}};
        (void)poll(polled, 3, is_ending ? PAUSE_MS : -1);
        read_signals(self);
        read_messages(self);
        if (polled[2].revents)
            read_packets(self);
        send_news_if_read(self);
        if (!is_ending && self->launcher.fd < 0) {
            kill(0, SIGTERM);
            kill(0, SIGCONT); /* it may be suspended with its launcher */
            is_ending = true;
        }
        if (is_ending &&
            sli_running_clock_read(&since_sigterm, 2e-3 * PAUSE_MS) > TERMINATE_SECONDS)
            kill(self->program, SIGKILL);
    }
    return status;
}

/* However long: other ranks may be saving, or the launcher be suspended. One that is gone, or whose
 * host is, has hung up as well. */
static void wait_for_release(supervisor *self)
{
    while (self->launcher.fd >= 0) {
        struct pollfd one = {.fd = self->launcher.fd, .events = POLLIN};
        (void)poll(&one, 1, -1);
        read_messages(self);
    }
}

/* Runs the program. The exit status for mpirun is always 0, for the launcher has hung up where the
 * program failed: mpirun's own measures against a failed rank would only take time. */
static void supervise_program(supervisor *self)
{
    int status = self->program > 0 ? wait_for_program(self) : SLI_NOT_STARTED << 8;
    kill_children();
    read_packets(self);
    send_news(self);
    if (self->start_error != 0)
        send_message(self, SLI_RANK_NOT_STARTED, self->start_error, "");
    else
        send_message(self, SLI_RANK_ENDED, status, "");
    if (status != 0)
        wait_for_release(self);
}

/* mpirun's daemon on this host waits for mpirun's for as long as TCP repeats what it has sent, a
 * quarter of an hour. Where the launcher's host cannot be reached the daemon is of no use. */
static void end_daemon(const supervisor *self)
{
    char path[64], name[16] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)self->daemon);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    bool found = fgets(name, sizeof name, file) != NULL;
    fclose(file);
    if (found && (strcmp(name, "orted\n") == 0 || strcmp(name, "prted\n") == 0))
        kill(self->daemon, SIGTERM);
}

/* ---- The supervisor ----------------------------------------------------------------------- */

/* In both processes. mpirun's signals reach the guard alone, which does not pass them on. */
static void enter_group(void)
{
    if (getpgrp() != getpid())
        setpgid(0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static sl_status prepare_process(supervisor *self)
{
    const int numbers[] = {SIGCHLD, SIGHUP,  SIGINT,  SIGTERM, SIGPIPE,
                           SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};
    sigset_t blocked;
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&blocked, numbers[i]);
    sigprocmask(SIG_BLOCK, &blocked, &self->mask_before);
    enter_group();
    self->signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (self->signals < 0)
        return sl_error(SL_ERR_IO, "signals cannot be read: %s", strerror(errno));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, self->packets) != 0)
        return sl_error(SL_ERR_IO, "the program cannot be given a socket: %s", strerror(errno));
    return SL_OK;
}

/* The rank as mpirun gives it: sl_launch_info_read asks for torchrun's variables first, and those
 * that the launcher was started with are of another job. */
static sl_status read_rank(sl_launch_info *info)
{
    static const char *const names[] = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"};
    for (int i = 0; i < 4; i++)
        unsetenv(names[i]);
    return sl_launch_info_read(info);
}

static sl_status call_launcher(supervisor *self)
{
    char host[SLI_HOST_NAME_BYTES];
    sli_wire_address address;
    const char *text = getenv(SLI_LAUNCHER_VARIABLE);
    if (!text)
        return sl_error(SL_ERR_INVALID,
                        "sl_launch_run_rank: environment variable " SLI_LAUNCHER_VARIABLE
                        " is not set: only processes that sl_launch_run starts may call this");
    sli_host_name(host);
    sli_wire_call_options options = {.rank = self->info.rank,
                                     .ranks = self->info.world_size,
                                     .kinds = SLI_LAUNCH_KINDS,
                                     .host = host,
                                     .whom = "its launcher",
                                     .seconds = CALL_SECONDS};
    SL_TRY(sl_error_context(sli_wire_address_parse(text, &address),
                            "environment variable " SLI_LAUNCHER_VARIABLE ": "));
    return sli_wire_call(&address, &options, &self->launcher);
}

/* In the guard: waits for the supervisor, and kills what it leaves behind if it is killed. */
static int guard_process(pid_t process, const int packets[2])
{
    int status;
    close(packets[0]);
    close(packets[1]);
    while (waitpid(process, &status, 0) < 0 && errno == EINTR)
        continue;
    kill_children();
    return sli_shell_status(status);
}

static _Noreturn void run_supervisor(supervisor *self, const char *const *command)
{
    enter_group();
    self->open = fcntl(self->launcher.fd, F_DUPFD_CLOEXEC, 0);
    start_program(self, (char *const *)command);
    supervise_program(self);
    if (self->launcher_is_lost)
        end_daemon(self);
    _exit(0);
}

sl_status sl_launch_run_rank(const char *const *command, int *exit_status)
{
    supervisor self = {.launcher = {.fd = -1}, .signals = -1, .steps = -1, .daemon = getppid()};
    SLI_CHECK_NOT_NULL(command);
    SLI_CHECK_NOT_NULL(exit_status);
    *exit_status = SLI_NOT_STARTED;
    SL_TRY(prepare_process(&self));
    SL_TRY(read_rank(&self.info));
    SL_TRY(call_launcher(&self));
    pid_t started = fork();
    if (started == 0)
        run_supervisor(&self, command);
    if (started < 0)
        return sl_error(SL_ERR_IO, "the program's supervisor cannot be started: %s",
                        strerror(errno));
    *exit_status = guard_process(started, self.packets);
    sli_wire_close(&self.launcher);
    close(self.signals);
    return SL_OK;
}
