/* Starting a job through Open MPI's mpirun, again after a failure. */
#define _GNU_SOURCE
#include "core/error.h"
#include "launch/launch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* mpirun's command line; the words are borrowed. */
typedef struct words {
    const char **list;
    size_t count;
} words;

static size_t count_words(const char *const *list)
{
    size_t count = 0;
    while (list[count])
        count++;
    return count;
}

static void add_words(words *to, const char *const *list)
{
    while (*list)
        to->list[to->count++] = *list++;
}

static sl_status check_arguments(const sl_launch_options *options, const char *const *command)
{
    int most = options->processes, least = options->least_processes;
    if (most < 1 || most > SL_LAUNCH_MAX_PROCESSES)
        return sl_error(SL_ERR_INVALID, "sl_launch_run: processes must be from 1 to %d, got %d",
                        SL_LAUNCH_MAX_PROCESSES, most);
    if (least < 0 || least > most)
        return sl_error(SL_ERR_INVALID,
                        "sl_launch_run: least_processes must be from 0 to %d, got %d", most, least);
    if (!*command)
        return sl_error(SL_ERR_INVALID, "sl_launch_run: there is no program to start");
    for (; *command; command++)
        if (strcmp(*command, ":") == 0)
            return sl_error(SL_ERR_INVALID,
                            "mpirun cannot pass on an argument that is a single colon");
    return SL_OK;
}

/* Another MPI's mpirun takes other options. */
static sl_status check_mpirun(void)
{
    char line[256] = "";
    FILE *from = popen("mpirun --version 2>&1", "r"); /* NOLINT(cert-env33-c): a constant */
    if (from && !fgets(line, sizeof line, from))
        line[0] = '\0';
    int status = from ? pclose(from) : -1;
    line[strcspn(line, "\n")] = '\0';
    if (status != 0)
        return sl_error(SL_ERR_NOT_FOUND, "launch: there is no mpirun on PATH that runs: install "
                                          "Open MPI (Debian: openmpi-bin)");
    if (!strstr(line, "Open MPI"))
        return sl_error(SL_ERR_UNSUPPORTED,
                        "launch: mpirun must be Open MPI's, and this one says \"%s\"", line);
    return SL_OK;
}

/* The ranks bind their devices' threads to cores themselves. A lost host is noticed within some
 * 10 s, where Open MPI's own settings take minutes. The caller frees out->list. */
static sl_status write_command(const sl_launch_options *options, const char *const *command,
                               const char *processes, words *out)
{
    enum { MOST_OPTIONS = 64 };
    const char *hosts = options->hosts, *agent = options->agent;
    bool crowded = hosts || options->processes > sysconf(_SC_NPROCESSORS_ONLN);
    size_t room = MOST_OPTIONS + 2 * (size_t)options->export_count +
                  count_words(options->supervisor) + count_words(command);
    *out = (words){.list = calloc(room, sizeof *out->list)};
    if (!out->list)
        return sl_error(SL_ERR_MEMORY, "launch: no memory for mpirun's command line");
    add_words(out, (const char *const[]){"mpirun", "--quiet", "--bind-to", "none", "-n", processes,
                                         NULL});
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
    add_words(out, (const char *const[]){"-x", SLI_LAUNCHER_VARIABLE, "-x", SLI_RESTARTS_VARIABLE,
                                         "-x", SLI_MAX_RESTARTS_VARIABLE, "-x",
                                         SLI_FIRST_SIZE_VARIABLE, NULL});
    for (int i = 0; i < options->export_count; i++)
        add_words(out, (const char *const[]){"-x", options->exports[i], NULL});
    add_words(out, options->supervisor);
    add_words(out, command);
    return SL_OK;
}

/* Without a list of hosts mpirun starts all processes here, except in an allocation of a resource
 * manager, which it reads itself. */
static bool is_on_this_host(const sl_launch_options *options)
{
    static const char *const allocations[] = {"SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE",
                                              "PE_HOSTFILE"};
    bool allocated = false;
    for (size_t i = 0; i < sizeof allocations / sizeof *allocations; i++)
        allocated |= getenv(allocations[i]) != NULL;
    return !options->hosts && !allocated;
}

static sl_status run_attempt(const sl_launch_options *options, const char *const *command,
                             int processes, sli_lost_time *lost, sli_job_end *end)
{
    char count[16];
    words line;
    snprintf(count, sizeof count, "%d", processes);
    SL_TRY(write_command(options, command, count, &line));
    sli_job job = {.options = options,
                   .command = (char *const *)line.list,
                   .processes = processes,
                   .restarts = lost->attempts - 1,
                   .lost = lost,
                   .this_host = is_on_this_host(options)};
    sl_status status = sli_job_run(&job, end);
    free(line.list);
    return sl_error_context(status, "launch: ");
}

sl_status sl_launch_run(const sl_launch_options *options, const char *const *command,
                        int *exit_status)
{
    int processes = options->processes, least = options->least_processes;
    bool again = true;
    sli_lost_time lost;
    *exit_status = 0;
    SLI_CHECK_NOT_NULL(options->supervisor);
    SLI_CHECK_NOT_NULL(options->report);
    SL_TRY(check_arguments(options, command));
    SL_TRY(check_mpirun());
    sli_lost_time_begin(&lost, options);
    while (again) {
        sli_job_end end;
        int attempt = lost.attempts;
        SL_TRY(run_attempt(options, command, processes, &lost, &end));
        bool failed = end.exit_status != 0;
        if (failed)
            sli_lost_time_add_attempt(&lost, end.failed, end.host_lost, true);
        again = failed && !end.is_final && attempt <= options->max_restarts;
        if (least > 0)
            processes = processes - end.died > least ? processes - end.died : least;
        sl_launch_event event = {.kind = SL_LAUNCH_ATTEMPT_FAILED,
                                 .attempt = attempt,
                                 .next_processes = again ? processes : 0,
                                 .text = end.reason};
        if (failed)
            options->report(options->context, &event);
        *exit_status = end.exit_status;
    }
    sli_lost_time_end(&lost, *exit_status != 0);
    return SL_OK;
}
