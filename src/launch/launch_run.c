/* A job from its first attempt to its last: it is started again after a failure. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/replace.h"
#include "launch/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    if (options->agent &&
        (options->agent[strspn(options->agent, " ")] == '\0' || strchr(options->agent, ':')))
        return sl_error(SL_ERR_INVALID,
                        "a launch agent is a program and its arguments, without \":\", at which "
                        "mpirun begins another one, got \"%s\"",
                        options->agent);
    for (; *command; command++)
        if (strcmp(*command, ":") == 0)
            return sl_error(SL_ERR_INVALID,
                            "mpirun cannot pass on an argument that is a single colon");
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

/* A job and its attempts. */
typedef struct launcher {
    const sl_launch_options *options;
    const char *const *command;
    char name[17];    /* of the job, drawn */
    sli_hosts *hosts; /* NULL: there is no list */
    int processes;    /* of the next attempt */
    int dead;         /* processes that an elastic job leaves out */
    int failures;
    sli_lost_time lost;
    sli_signals signals;
} launcher;

/* How many processes the next attempt has. Of an elastic job as many as the hosts that answer have
 * slots or, without a list of hosts, as are left. Another job's list is read for each attempt. */
static sl_status count_processes(launcher *self)
{
    int least = self->options->least_processes, most = self->options->processes;
    if (self->options->hosts && least == 0) {
        sli_hosts_destroy(&self->hosts);
        SL_TRY(sli_hosts_read(self->options, &self->hosts));
    } else if (self->hosts) {
        SL_TRY(sli_hosts_probe_all(self->hosts));
        most = sli_hosts_processes(self->hosts);
    }
    self->processes = most - self->dead > least ? most - self->dead : least;
    return SL_OK;
}

static sl_status run_attempt(launcher *self, sli_job_end *end)
{
    sli_job job = {.options = self->options,
                   .signals = &self->signals,
                   .name = self->name,
                   .command = self->command,
                   .hosts = self->hosts,
                   .lost = &self->lost,
                   .processes = self->processes,
                   .restarts = self->lost.attempts - 1,
                   .this_host = is_on_this_host(self->options),
                   .may_restart = self->failures < self->options->max_restarts};
    return sli_job_run(&job, end);
}

static void report_end(const launcher *self, const sli_job_end *end, bool again)
{
    const sl_launch_event event = {.kind = end->exit_status == 0 ? SL_LAUNCH_RESIZED
                                                                 : SL_LAUNCH_ATTEMPT_FAILED,
                                   .attempt = self->failures,
                                   .next_processes = again ? self->processes : 0,
                                   .text = end->reason};
    self->options->report(self->options->context, &event);
}

/* Whether an attempt that has ended is followed by another one. */
static sl_status plan_next(launcher *self, const sli_job_end *end, bool *again)
{
    bool failed = end->exit_status != 0;
    *again = false;
    bool resized = !failed && !end->is_final && (end->grows || end->fewer > 0);
    if (!failed && !resized)
        return SL_OK;
    self->failures += failed;
    sli_lost_time_add_attempt(&self->lost, end->failed, end->host_lost, failed);
    *again = resized || (!end->is_final && self->failures <= self->options->max_restarts);
    if (self->options->least_processes > 0 && !self->hosts)
        self->dead += end->died;
    sl_status status = *again ? count_processes(self) : SL_OK;
    if (!failed && end->fewer > 0 && end->fewer < self->processes)
        self->processes = end->fewer;
    *again &= status == SL_OK && !sli_signals_end_job();
    report_end(self, end, *again);
    return status;
}

static void ignore_event(void *context, const sl_launch_event *event)
{
    (void)context;
    (void)event;
}

static sl_status run_attempts(launcher *self, int *exit_status)
{
    bool again = true;
    SL_TRY(count_processes(self));
    sl_status status;
    SL_TRY(sli_signals_begin(&self->signals));
    sli_lost_time_begin(&self->lost, self->options);
    while (again) {
        sli_job_end end = {0};
        SL_TRY_OR_FAIL(run_attempt(self, &end));
        *exit_status = end.exit_status;
        SL_TRY_OR_FAIL(plan_next(self, &end, &again));
    }
    sli_lost_time_end(&self->lost, *exit_status != 0);
fail:
    sli_signals_end(&self->signals);
    return status;
}

static sl_status run_job(launcher *self, int *exit_status)
{
    const sl_launch_options *options = self->options;
    uint64_t number;
    SL_TRY(sli_mpirun_check());
    SL_TRY(sli_draw_number("launch", &number));
    snprintf(self->name, sizeof self->name, "%016" PRIx64, number);
    if (options->hosts && options->least_processes > 0)
        SL_TRY(sli_hosts_read(options, &self->hosts));
    sl_status status = run_attempts(self, exit_status);
    sli_hosts_destroy(&self->hosts);
    return sl_error_context(status, "launch: ");
}

sl_status sl_launch_run(const sl_launch_options *options, const char *const *command,
                        int *exit_status)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(command);
    SLI_CHECK_NOT_NULL(exit_status);
    SLI_CHECK_NOT_NULL(options->supervisor);
    sl_launch_options filled = *options;
    if (!filled.report)
        filled.report = ignore_event;
    launcher self = {.options = &filled, .command = command};
    struct sigaction before;
    *exit_status = 0;
    SL_TRY(check_arguments(options, command));
    /* Where SIGCHLD is ignored, as a parent process may have left it, how a child has ended is
     * lost. */
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &before);
    sl_status status = run_job(&self, exit_status);
    sigaction(SIGCHLD, &before, NULL);
    return status;
}
