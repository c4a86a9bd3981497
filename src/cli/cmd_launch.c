/* sluice launch: a program as many processes, through MPI's mpirun. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RESTARTS = 1000000, MAX_SECONDS = 1000000 };

typedef struct settings {
    sl_launch_options launch;
    const char *elastic;
    int most;           /* of its numbers of processes; 0: their number stays */
    const char *export; /* the last one: all are on the command line */
} settings;

/* ---- Options ------------------------------------------------------------------------------ */

/* clang-format off */
static const sl_option options[] = {
    {.name = "nproc", .letter = 'n', .value = "N", FIELD(INT, launch.processes),
     RANGE(1, SL_LAUNCH_MAX_PROCESSES), .optional = true,
     .help = "Number of processes to start"},
    {.name = "hosts", .value = "FILE", FIELD(TEXT, launch.hosts),
     .help = "File with one host a line, as for mpirun: NAME slots=N. Without slots=, the host's "
             "cores count, with --elastic 1. By default this machine alone"},
    {.name = "max-restarts", .value = "K", FIELD(INT, launch.max_restarts), RANGE(0, MAX_RESTARTS),
     .help = "Restart a job that fails, up to K times"},
    {.name = "elastic", .value = "MIN:MAX", FIELD(TEXT, elastic), .needs = "max-restarts",
     .help = "Restart a failed job without the processes that were killed or, with --hosts, "
             "without hosts that do not answer, until they do; with at least MIN and at most -n "
             "processes, or MAX"},
    {.name = "grace", .value = "SECONDS", FIELD(DOUBLE, launch.grace_seconds),
     RANGE(0, MAX_SECONDS), .initial = "10",
     .help = "Seconds that the other processes have to end by themselves after a failure or a "
             "signal"},
    {.name = "grace-save", .value = "SECONDS", FIELD(DOUBLE, launch.save_seconds),
     RANGE(0, MAX_SECONDS), .initial = "600",
     .help = "The time of --grace starts again while a process saves a checkpoint, for at most "
             "SECONDS"},
    {.name = "export", .letter = 'x', .value = "NAME[=VALUE]", FIELD(TEXT, export),
     .help = "Pass this environment variable to processes on other hosts; may be repeated"},
    {.name = "launch-agent", .value = "COMMAND", FIELD(TEXT, launch.agent),
     .help = "Program, and arguments cut at blanks, that is called with a host and a command and "
             "starts this there, instead of ssh"},
    {0},
};
/* clang-format on */

static void read_elastic(settings *parsed)
{
    const sl_option number = {.type = SL_OPTION_INT,
                              .name = "",
                              .lowest = 1,
                              .highest = SL_LAUNCH_MAX_PROCESSES};
    const char *colon = strchr(parsed->elastic, ':');
    char least[16] = "";
    if (colon)
        snprintf(least, sizeof least, "%.*s", (int)(colon - parsed->elastic), parsed->elastic);
    if (!colon || sl_option_set(&number, &parsed->launch.least_processes, least) != SL_OK ||
        sl_option_set(&number, &parsed->most, colon + 1) != SL_OK ||
        parsed->launch.least_processes > parsed->most)
        cli_refuse("--elastic must be MIN:MAX, two numbers of processes from 1 to %d, got \"%s\"",
                   SL_LAUNCH_MAX_PROCESSES, parsed->elastic);
}

static void check_settings(settings *parsed, const cli_line *line)
{
    sl_launch_options *launch = &parsed->launch;
    if (parsed->elastic)
        read_elastic(parsed);
    if (launch->processes == 0)
        launch->processes = parsed->most;
    if (line->word_count == 0)
        cli_refuse("launch needs a program to start");
    if (launch->processes == 0)
        cli_refuse("launch needs -n N, the number of processes");
    if (parsed->most > 0 &&
        (launch->processes < launch->least_processes || launch->processes > parsed->most))
        cli_refuse("-n must be within --elastic MIN:MAX");
    if (launch->hosts)
        cli_check_file("hosts", launch->hosts);
}

/* ---- Running ------------------------------------------------------------------------------ */

/* The error may go on below its first line with a drawing. */
static void show_rank_error(const sl_launch_event *event)
{
    char *shown = sl_escape_text(event->text, true);
    fprintf(stderr, "sluice: rank %d: %s\n", event->rank,
            shown ? shown : "no memory for its error");
    free(shown);
}

/* "(0.31 s noticing, 2.10 s restarting, 3.20 s repeating 7 steps)" */
static void show_lost_time(const sl_launch_event *event)
{
    const sl_launch_lost_time *lost = event->lost;
    double all = lost->notice_seconds + lost->restart_seconds + lost->repeat_seconds;
    char begin[96], kept[48] = "", repeating[80] = "";
    if (event->kind == SL_LAUNCH_CAUGHT_UP)
        snprintf(begin, sizeof begin, "the job is where it was before");
    else
        snprintf(begin, sizeof begin, "%d failure%s in %.2f s", lost->failures,
                 lost->failures == 1 ? "" : "s", event->seconds);
    if (event->kind == SL_LAUNCH_ENDED && event->knows_steps)
        snprintf(kept, sizeof kept, ", %.1f%% of the time was kept",
                 100 * (1 - all / event->seconds));
    if (event->knows_steps)
        snprintf(repeating, sizeof repeating, ", %.2f s repeating %" PRId64 " step%s",
                 lost->repeat_seconds, lost->repeated_steps, lost->repeated_steps == 1 ? "" : "s");
    cli_complain("%s: %.2f s were lost (%.2f s noticing, %.2f s restarting%s)%s", begin, all,
                 lost->notice_seconds, lost->restart_seconds, repeating, kept);
}

static void show_failure(const settings *parsed, const sl_launch_event *event)
{
    char attempt[64] = "", again[64] = "";
    if (parsed->launch.max_restarts > 0 && event->kind == SL_LAUNCH_ATTEMPT_FAILED)
        snprintf(attempt, sizeof attempt, "attempt %d of %d: ", event->attempt,
                 parsed->launch.max_restarts + 1);
    if (event->next_processes > 0 && parsed->most > 0)
        snprintf(again, sizeof again, "; starting again with %d process%s", event->next_processes,
                 event->next_processes == 1 ? "" : "es");
    else if (event->next_processes > 0)
        snprintf(again, sizeof again, "; starting again");
    cli_complain("%s%s%s", attempt, event->text, again);
}

static void show_event(void *context, const sl_launch_event *event)
{
    switch (event->kind) {
    case SL_LAUNCH_RANK_ERROR:
        show_rank_error(event);
        break;
    case SL_LAUNCH_ATTEMPT_FAILED:
    case SL_LAUNCH_RESIZED:
        show_failure(context, event);
        break;
    case SL_LAUNCH_CAUGHT_UP:
    case SL_LAUNCH_ENDED:
        show_lost_time(event);
        break;
    case SL_LAUNCH_WARNING:
        cli_complain("warning: %s", event->text);
        break;
    }
}

static sl_status run_launch(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    sl_launch_options *launch = &parsed->launch;
    char self[PATH_MAX] = "";
    const char *exports[line->given_count + 1];
    check_settings(parsed, line);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return sl_error(SL_ERR_IO, "launch: /proc/self/exe: %s", strerror(errno));
    for (int i = 0; i < line->given_count; i++)
        if (line->given[i].option->letter == 'x') {
            const char *text = line->given[i].text;
            if (*text == '=')
                cli_refuse("--export must be NAME or NAME=VALUE, got \"%s\"", text);
            exports[launch->export_count++] = text;
        }
    launch->exports = exports;
    launch->supervisor = (const char *const[]){self, "launch-rank", NULL};
    launch->report = show_event;
    launch->context = parsed;
    sl_status status = sl_launch_run(launch, (const char *const *)line->words, &line->exit_status);
    if (status == SL_ERR_INVALID)
        cli_refuse("%s", sl_error_text());
    return status;
}

int cmd_launch_rank(char **words)
{
    int exit_status = 0;
    if (!*words || !getenv("SLUICE_LAUNCHER"))
        cli_refuse("launch-rank is for sluice launch to call");
    sl_status status = sl_launch_run_rank((const char *const *)words, &exit_status);
    return status == SL_OK ? exit_status : cli_finish(status);
}

const cli_command cmd_launch = {
    .name = "launch",
    .summary = "start a program as several processes, here or on several machines",
    .arguments = "PROGRAM [ARGUMENT...]",
    .doc = "Starts PROGRAM as N processes through Open MPI's mpirun, each with RANK, LOCAL_RANK, "
           "WORLD_SIZE and LOCAL_WORLD_SIZE in its environment. When one fails, the others have "
           "the time of --grace to end by themselves; then the launcher ends them. The exit status "
           "is that of the first process that failed, or 128 plus the number of the signal that "
           "killed it.",
    .examples =
        "sluice launch -n 2 sluice train --data DIR --save-dir RUN\n"
        "sluice launch --hosts hosts.txt --max-restarts 3 sluice train --data DIR --save-dir RUN\n",
    .options = options,
    .program = true,
    .settings_bytes = sizeof(settings),
    .run = run_launch,
};
