/* sluice watch: what is made of a run's log while it grows. */
#define _GNU_SOURCE /* sigtimedwait */
#include "cli/cli.h"
#include "report/watch.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct settings {
    sli_watch_options watch;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "serve", .value = "[ADDRESS:]PORT", FIELD(TEXT, watch.serve),
     .help = "Where to serve the page: without an address for this machine alone; at another "
             "address for those who have the token in the URL that is printed; 0 is any free "
             "port. Default: 0, or no page with --trace or --tensorboard"},
    {.name = "trace", .value = "FILE", FIELD(TEXT, watch.trace),
     .help = "Write each epoch's last full step to FILE as trace events for Perfetto, one for each "
             "action, predicted and measured"},
    {.name = "tensorboard", .value = "DIR", FIELD(TEXT, watch.tensorboard),
     .help = "Write losses, norms and speed to an event file in DIR for TensorBoard"},
    {.name = "child", FIELD(FLAG, watch.child),
     .help = "For a program that starts watch beside a run, as train does: take records that come "
             "from now on, print one line when that begins, and end when standard input ends"},
    {0},
};
/* clang-format on */

static void complain(void *context, const char *reason)
{
    const sli_watch_options *watched = context;
    cli_complain("warning: %s%s", reason, watched->child ? "; the run goes on without it" : "");
}

/* Blocks the signals that may end it, which are waited for instead, and SIGPIPE: a reader of the
 * output that has gone is an error of writing. A signal that was ignored at the start (nohup) stays
 * ignored: sigtimedwait would return it. A child ends with its run alone, which may save something
 * first when both get a signal; and it may write to a terminal. */
static void block_signals(bool child, sigset_t *ending)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t blocked;
    sigemptyset(ending);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(ending, numbers[i]);
    }
    blocked = *ending;
    sigaddset(&blocked, SIGPIPE);
    if (child)
        sigaddset(&blocked, SIGTTOU);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
}

static bool is_over(const sli_watch_options *watched, const sli_watch *watch,
                    const sigset_t *ending)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (watched->child)
        return poll(&input, 1, 0) > 0;
    return (!sli_watch_url(watch) && sli_watch_has_ended(watch)) ||
           sigtimedwait(ending, NULL, &(struct timespec){0}) > 0;
}

/* A child says only the page's address, if any, or "!" and why it cannot begin. */
static void print_begin(const sli_watch_options *watched, const sli_watch *watch)
{
    const char *url = watch ? sli_watch_url(watch) : NULL;
    if (watched->child && !watch)
        printf("!%s\n", sl_error_text());
    else if (watched->child)
        printf("%s\n", url ? url : "");
    if (!watched->child && watch) {
        cli_print_text(watched->log, 0);
        printf(url ? " is shown at %s until Ctrl-C\n" : "%s is followed until its run ends\n",
               url ? url : "");
    }
    fflush(stdout);
}

static sl_status run_watch(cli_line *line, void *parsed)
{
    enum { LOW_PRIORITY = 10 };
    static const char unnamed[] = "/proc/self/fd/";
    sli_watch_options *watched = &((settings *)parsed)->watch;
    sli_watch *watch;
    sigset_t ending;
    if (line->word_count != 1)
        cli_refuse("watch needs one run log, got %d", line->word_count);
    watched->log = line->words[0];
    bool has_name = strncmp(watched->log, unnamed, strlen(unnamed)) != 0;
    watched->name = has_name ? watched->log : "The run";
    watched->failed = complain;
    watched->context = watched;
    if (!watched->serve && !watched->trace && !watched->tensorboard)
        watched->serve = "0";
    block_signals(watched->child, &ending);
    sl_status status = sli_watch_open(watched, &watch);
    print_begin(watched, watch);
    line->exit_status = status == SL_OK ? 0 : CLI_EXIT_ERROR;
    if (status != SL_OK)
        return watched->child ? SL_OK : status;
    (void)setpriority(PRIO_PROCESS, 0, LOW_PRIORITY);
    while (!is_over(watched, watch, &ending))
        sli_watch_turn(watch);
    sli_watch_close(&watch);
    return SL_OK;
}

const cli_command cmd_watch = {
    .name = "watch",
    .summary = "show a run while its log grows: a page, a trace, TensorBoard's events",
    .arguments = "LOG.jsonl",
    .doc = "Shows a run of another process, or one that is over, by its log (train --log-json) in "
           "a browser: loss, perplexity, gradient norm, learning rate, speed, memory and the "
           "pipeline's timeline. The page follows the log as it grows. Writes a trace and an event "
           "file as well, or instead. train --serve, --trace and --tensorboard start it.",
    .examples = "sluice watch log.jsonl --serve 8080\n"
                "sluice watch log.jsonl --trace trace.json --tensorboard events\n",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_watch,
};
