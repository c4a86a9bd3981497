/* sluice watch: the live page of a run by its log. */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>

typedef struct settings {
    const char *serve;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "serve", .value = "[ADDRESS:]PORT", FIELD(TEXT, serve), .initial = "0",
     .help = "Where to serve the page: without an address for this machine alone; at another "
             "address for those who have the token in the URL that is printed; 0 is any free port"},
    {0},
};
/* clang-format on */

/* The page has a thread of its own. A signal that was ignored at the start (nohup) stays ignored:
 * sigwait would return it. */
static sl_status wait_for_signal(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    int number;
    sigset_t ending;
    sigemptyset(&ending);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&ending, numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &ending, NULL);
    sigwait(&ending, &number);
    return SL_OK;
}

static sl_status run_watch(cli_line *line, void *parsed)
{
    const settings *from = parsed;
    sl_live_page *page;
    if (line->word_count != 1)
        cli_refuse("watch needs one run log, got %d", line->word_count);
    SL_TRY(sl_live_page_create(from->serve, line->words[0], NULL, &page));
    cli_print_text(line->words[0], 0);
    printf(" is shown at %s until Ctrl-C\n", sl_live_page_url(page));
    fflush(stdout);
    sl_status status = wait_for_signal();
    sl_live_page_destroy(&page);
    return status;
}

const cli_command cmd_watch = {
    .name = "watch",
    .summary = "serve a page that shows a run while its log grows",
    .arguments = "LOG.jsonl",
    .doc = "Shows a run of another process, or one that is over, by its log (train --log-json) in "
           "a browser: loss, perplexity, gradient norm, learning rate, speed, memory and the "
           "pipeline's timeline. The page follows the log as it grows.",
    .examples = "sluice watch log.jsonl --serve 8080\n",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_watch,
};
