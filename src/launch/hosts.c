/* A job's hosts, from the file for mpirun --hostfile, and which of them answer: those on which the
 * launch agent can start a command. An attempt of an elastic job leaves out the others; while it
 * runs, they are asked again from time to time. mpirun is given a copy of the file: it reads what
 * was checked here. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const double answer_seconds = 5, pause_seconds = 5;

/* Asks for no password. A name cannot begin with `-` (add_host), and would be no option either. */
static const char default_agent[] = "ssh -o BatchMode=yes --";

typedef struct host {
    char *line, *name;
    int slots;
    bool answers;  /* in the newest probe of it; true before the first */
    bool answered; /* in the probe before that */
    pid_t probe;   /* the process that asks it; 0: none */
} host;

struct sli_hosts {
    const sl_launch_options *options;
    host *list;
    int count;
    int file;       /* for mpirun: those that answer */
    char path[48];  /* of it */
    double asked;   /* when the last probe began */
    bool is_asking; /* it has not ended */
};

/* ---- The file ----------------------------------------------------------------------------- */

/* Reads the word "slots=N" after a host's name; false where there is none. */
static bool read_slots(const char *words, long *slots)
{
    static const char name[] = "slots";
    for (;; words += strcspn(words, " \t#")) {
        words += strspn(words, " \t");
        if (*words == '\0' || *words == '#')
            return false;
        if (strncmp(words, name, sizeof name - 1) != 0)
            continue;
        const char *end = words + sizeof name - 1;
        end += strspn(end, " \t");
        if (*end != '=')
            continue;
        *slots = strtol(end + 1, NULL, 10);
        return true;
    }
}

/* "node1 slots=2". In an elastic job a line without slots counts as one, and mpirun is told so: by
 * itself it would count the host's cores. A name is an argument of the agent. */
static sl_status add_host(sli_hosts *self, const char *line)
{
    const char *name = line + strspn(line, " \t\v\f");
    size_t length = strcspn(name, " \t\v\f\r\n#");
    long slots = 1;
    if (length == 0)
        return SL_OK;
    if (*name == '-')
        return sl_error(SL_ERR_INVALID, "%s: a host's name cannot begin with \"-\", got \"%.*s\"",
                        self->options->hosts, (int)length, name);
    bool given = read_slots(name + length, &slots) || self->options->least_processes == 0;
    if (slots < 1 || slots > SL_LAUNCH_MAX_PROCESSES)
        return sl_error(SL_ERR_INVALID, "%s: slots must be from 1 to %d, got %ld",
                        self->options->hosts, SL_LAUNCH_MAX_PROCESSES, slots);
    host *grown = realloc(self->list, (size_t)(self->count + 1) * sizeof *grown), *added = NULL;
    if (grown) {
        self->list = grown;
        added = &grown[self->count++];
        *added = (host){.name = strndup(name, length), .slots = (int)slots, .answers = true};
        if (asprintf(&added->line, "%.*s%s%s", (int)length, name, given ? "" : " slots=1",
                     name + length) < 0)
            added->line = NULL;
    }
    if (!added || !added->line || !added->name)
        return sli_no_memory(NULL, "the list of hosts");
    return SL_OK;
}

/* The file is in memory: nothing is left of it, however the launcher ends. */
static sl_status write_file(sli_hosts *self)
{
    if (self->file >= 0)
        close(self->file);
    self->file = memfd_create("hosts", MFD_CLOEXEC);
    snprintf(self->path, sizeof self->path, "/proc/%d/fd/%d", (int)getpid(), self->file);
    bool written = self->file >= 0;
    for (int i = 0; i < self->count && written; i++)
        written = !self->list[i].answers || dprintf(self->file, "%s\n", self->list[i].line) > 0;
    return written ? SL_OK : sl_error(SL_ERR_IO, "the list of hosts: %s", strerror(errno));
}

sl_status sli_hosts_read(const sl_launch_options *options, sli_hosts **out)
{
    char *line = NULL;
    size_t room = 0;
    *out = NULL;
    FILE *file = fopen(options->hosts, "re");
    if (!file)
        return sli_io_error(options->hosts, "it cannot be opened");
    sli_hosts *self = calloc(1, sizeof *self);
    sl_status status;
    SL_TRY_OR_FAIL(self ? SL_OK : sli_no_memory(NULL, "the list of hosts"));
    *self = (sli_hosts){.options = options, .file = -1};
    while (getline(&line, &room, file) >= 0)
        SL_TRY_OR_FAIL(add_host(self, line));
    if (self->count == 0)
        SL_TRY_OR_FAIL(sl_error(SL_ERR_INVALID, "%s: there are no hosts in it", options->hosts));
    SL_TRY_OR_FAIL(write_file(self));
    *out = self;
    self = NULL;

fail:
    sli_hosts_destroy(&self);
    free(line);
    fclose(file);
    return status;
}

const char *sli_hosts_path(const sli_hosts *self)
{
    return self->path;
}

int sli_hosts_processes(const sli_hosts *self)
{
    int most = self->options->processes, all = 0, left = 0;
    for (int i = 0; i < self->count; i++) {
        all += self->list[i].slots;
        left += self->list[i].answers ? self->list[i].slots : 0;
    }
    if (all > 0 && all < most) /* mpirun spreads more processes than slots */
        return (int)((int64_t)most * left / all);
    return left < most ? left : most;
}

/* ---- Asking ------------------------------------------------------------------------------- */

/* mpirun starts processes on its own host without the agent. */
static bool is_this_host(const char *name)
{
    const char *at = strchr(name, '@');
    struct addrinfo wanted = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    bool bound = false;
    if (getaddrinfo(at ? at + 1 : name, NULL, &wanted, &found) != 0)
        return false;
    for (const struct addrinfo *one = found; one && !bound; one = one->ai_next) {
        int fd = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        bound = fd >= 0 && bind(fd, one->ai_addr, one->ai_addrlen) == 0;
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(found);
    return bound;
}

/* Becomes the agent, whose words end at blanks, as for mpirun; returns where it cannot. */
static void exec_agent(const char *agent, char *name)
{
    char *text = strdup(agent), *rest = NULL;
    char **words = calloc(strlen(agent) + 3, sizeof *words);
    size_t count = 0;
    if (!text || !words)
        return;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    words[count] = name;
    words[count + 1] = "true";
    execvp(*words, words);
}

/* In the child process, which ends with 0 where the host answers. */
static _Noreturn void probe_host(const sli_hosts *self, char *name, pid_t parent)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int fd = 0; fd <= 2; fd++)
        dup2(null, fd);
    if (getppid() != parent)
        _exit(1);
    if (is_this_host(name))
        _exit(0);
    exec_agent(self->options->agent ? self->options->agent : default_agent, name);
    _exit(1);
}

static sl_status begin_probe(sli_hosts *self, bool lost_ones)
{
    pid_t parent = getpid();
    sl_status status = SL_OK;
    self->asked = sli_clock_seconds();
    self->is_asking = true;
    for (int i = 0; i < self->count; i++) {
        host *one = &self->list[i];
        one->answered = one->answers;
        if (lost_ones && one->answers)
            continue;
        one->answers = false;
        one->probe = fork();
        if (one->probe == 0)
            probe_host(self, one->name, parent);
        if (one->probe < 0)
            status = sl_error(SL_ERR_IO, "cannot start a process to probe host %s: %s", one->name,
                              strerror(errno));
    }
    return status;
}

/* Ends the probe when all have answered or the time is over. */
static void continue_probe(sli_hosts *self, bool at_once)
{
    bool is_late = at_once || sli_clock_seconds() - self->asked > answer_seconds;
    self->is_asking = false;
    for (int i = 0; i < self->count; i++) {
        host *one = &self->list[i];
        int status = -1;
        if (one->probe <= 0)
            continue;
        if (is_late) {
            kill(-one->probe, SIGKILL);
            kill(one->probe, SIGKILL); /* where it has no group of its own yet */
        }
        if (waitpid(one->probe, &status, is_late ? 0 : WNOHANG) == 0) {
            self->is_asking = true;
            continue;
        }
        one->probe = 0;
        one->answers = status == 0;
    }
}

sl_status sli_hosts_probe_all(sli_hosts *self)
{
    const sl_launch_options *options = self->options;
    int left = 0;
    continue_probe(self, true);
    SL_TRY(begin_probe(self, false));
    while (self->is_asking) {
        continue_probe(self, false);
        usleep(10000);
    }
    for (int i = 0; i < self->count; i++) {
        char text[512];
        snprintf(text, sizeof text, "host %s does not answer, and is left out until it does",
                 self->list[i].name);
        left += self->list[i].answers;
        if (!self->list[i].answers && self->list[i].answered)
            options->report(options->context,
                            &(sl_launch_event){.kind = SL_LAUNCH_WARNING, .text = text});
    }
    if (left == 0)
        return sl_error(SL_ERR_IO, "no host of %s answers", options->hosts);
    return write_file(self);
}

const char *sli_hosts_poll_lost(sli_hosts *self)
{
    bool are_missing = false;
    if (self->is_asking) {
        continue_probe(self, false);
        for (int i = 0; i < self->count; i++)
            if (!self->list[i].answered && self->list[i].answers)
                return self->list[i].name;
        return NULL;
    }
    for (int i = 0; i < self->count; i++)
        are_missing |= !self->list[i].answers;
    if (are_missing && sli_clock_seconds() - self->asked > pause_seconds)
        (void)begin_probe(self, true);
    return NULL;
}

void sli_hosts_destroy(sli_hosts **hosts)
{
    sli_hosts *self = *hosts;
    if (!self)
        return;
    continue_probe(self, true);
    for (int i = 0; i < self->count; i++) {
        free(self->list[i].line);
        free(self->list[i].name);
    }
    if (self->file >= 0)
        close(self->file);
    free(self->list);
    free(self);
    *hosts = NULL;
}
