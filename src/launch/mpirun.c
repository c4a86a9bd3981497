/* Open MPI's mpirun: its command line, and its start. */
#define _GNU_SOURCE
#include "core/error.h"
#include "launch/launch.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Another MPI's mpirun takes other options. */
sl_status sli_mpirun_check(void)
{
    char line[256] = "";
    FILE *output = popen("mpirun --version 2>&1", "r"); /* NOLINT(cert-env33-c): a constant */
    if (output && !fgets(line, sizeof line, output))
        line[0] = '\0';
    int status = output ? pclose(output) : -1;
    line[strcspn(line, "\n")] = '\0';
    if (status != 0)
        return sl_error(SL_ERR_NOT_FOUND, "there is no mpirun on PATH that runs: install "
                                          "Open MPI (Debian: openmpi-bin)");
    if (!strstr(line, "Open MPI"))
        return sl_error(SL_ERR_UNSUPPORTED, "mpirun must be Open MPI's, and this one says \"%s\"",
                        line);
    return SL_OK;
}

/* ---- Its command line ------------------------------------------------------------------------ */

/* mpirun's command line; the words are borrowed. */
typedef struct words {
    const char **list;
    size_t count;
    char processes[16]; /* their number, one of the words */
} words;

static size_t count_words(const char *const *list)
{
    size_t count = 0;
    while (list[count])
        count++;
    return count;
}

static void add_words(words *line, const char *const *list)
{
    while (*list)
        line->list[line->count++] = *list++;
}

/* The ranks bind their devices' threads to cores themselves. A lost host is noticed within some
 * 10 s, where Open MPI's own settings take minutes. A supervisor may end without MPI_Finalize,
 * which its program calls or not: mpirun would otherwise end the other supervisors, and wait a
 * second for each. The caller frees out->list. */
static sl_status write_command(const sli_job *job, words *out)
{
    enum { MOST_OPTIONS = 64 };
    const sl_launch_options *options = job->options;
    const char *agent = options->agent;
    const char *hosts = job->hosts ? sli_hosts_path(job->hosts) : NULL;
    bool crowded = hosts || options->processes > sysconf(_SC_NPROCESSORS_ONLN);
    size_t room = MOST_OPTIONS + 2 * (size_t)options->export_count +
                  count_words(options->supervisor) + count_words(job->command);
    *out = (words){.list = calloc(room, sizeof *out->list)};
    snprintf(out->processes, sizeof out->processes, "%d", job->processes);
    if (!out->list)
        return sli_no_memory(NULL, "mpirun's command line");
    add_words(out, (const char *const[]){"mpirun", "--quiet", "--bind-to", "none", "--mca",
                                         "orte_allowed_exit_without_sync", "1", "-n",
                                         out->processes, NULL});
    if (geteuid() == 0)
        add_words(out, (const char *const[]){"--allow-run-as-root", NULL});
    if (hosts)
        add_words(out, (const char *const[]){"--hostfile", hosts, "--mca", "oob_tcp_keepalive_time",
                                             "3", "--mca", "oob_tcp_keepalive_intvl", "1", "--mca",
                                             "oob_tcp_keepalive_probes", "5", NULL});
    if (crowded)
        add_words(out, (const char *const[]){"--oversubscribe", NULL});
    if (agent)
        add_words(out, (const char *const[]){"--mca", "plm_rsh_agent", agent, NULL});
    add_words(out, (const char *const[]){"-x", SLI_LAUNCHER_VARIABLE, "-x", SLI_JOB_VARIABLE, "-x",
                                         SLI_RESTARTS_VARIABLE, "-x", SLI_MAX_RESTARTS_VARIABLE,
                                         "-x", SLI_FIRST_SIZE_VARIABLE, NULL});
    for (int i = 0; i < options->export_count; i++)
        add_words(out, (const char *const[]){"-x", options->exports[i], NULL});
    add_words(out, options->supervisor);
    add_words(out, job->command);
    return SL_OK;
}

/* ---- Its start ------------------------------------------------------------------------------ */

/* In the child process. mpirun gets a process group of its own, so that a terminal's Ctrl-C reaches
 * the programs only once, forwarded by the launcher. SIGPIPE is blocked: mpirun kills all ranks at
 * the tenth. */
static _Noreturn void exec_mpirun(const sli_job *job, const char *launcher,
                                  const char *const *command, pid_t parent)
{
    sigset_t mask = job->signals->mask_before;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setenv(SLI_LAUNCHER_VARIABLE, launcher, 1);
    setenv(SLI_JOB_VARIABLE, job->name, 1);
    sli_set_variable(SLI_RESTARTS_VARIABLE, job->restarts);
    sli_set_variable(SLI_MAX_RESTARTS_VARIABLE, job->options->max_restarts);
    sli_set_variable(SLI_FIRST_SIZE_VARIABLE, job->options->processes);
    sigaddset(&mask, SIGPIPE);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    if (getppid() == parent)
        execvp(*command, (char *const *)command);
    _exit(SLI_NOT_STARTED);
}

sl_status sli_mpirun_start(const sli_job *job, const char *launcher, pid_t *out)
{
    pid_t parent = getpid();
    words line;
    SL_TRY(write_command(job, &line));
    *out = fork();
    if (*out == 0)
        exec_mpirun(job, launcher, line.list, parent);
    free(line.list);
    if (*out < 0)
        return sl_error(SL_ERR_IO, "mpirun cannot be started: %s", strerror(errno));
    return SL_OK;
}

bool sli_mpirun_output_waits(void)
{
    struct pollfd outputs[] = {{.fd = STDOUT_FILENO, .events = POLLOUT},
                               {.fd = STDERR_FILENO, .events = POLLOUT}};
    return poll(outputs, 2, 0) < 2;
}
