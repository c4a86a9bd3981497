/* What signals ask of a run.
 *
 *     SIGTERM, SIGINT    its end after a save; a second one its end at once
 *     SIGHUP, SIGPIPE    its end after a save: the terminal is gone, or a pipe has no reader
 *     SIGUSR1            a checkpoint now
 *     SIGUSR2            tables of memory and of what the time went to
 *
 * A run that saves nothing ends at once, and says that nothing was saved. Once a run has ended, its
 * process ends by itself, with the run's error if there is one, unless a second signal comes. A
 * signal that was ignored when the program started stays ignored. */
#include "cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STOPPING = 4, WORDS_BYTES = 256 };
static const int stopping[STOPPING] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE};
static const char stops_later[] =
    "\r\033[Ksluice: stopping after this step, to save; Ctrl-C again ends at once\n";

/* The process's, as its signals are. */
static atomic_bool stop_asked, save_asked, times_asked, output_lost, ends_next, run_ended;
/* Set before any of them is taken: */
static bool run_saves, shows_stop;
static char last_words[STOPPING][WORDS_BYTES]; /* empty: none */

/* Lock-free atomics, and functions that are safe in a handler, are all that it may touch. */
static void stop_run(int number)
{
    /* SIGHUP comes from both shell and kernel, SIGPIPE at every write: a repeated one is not a
     * second request. */
    bool comes_again = number == SIGHUP || number == SIGPIPE;
    bool goes_on = run_saves || atomic_load(&run_ended);
    if (comes_again)
        atomic_store(&output_lost, true);
    if (!atomic_exchange(&stop_asked, true) && run_saves) {
        sl_launch_link_saving(cli_launcher, true); /* until the process ends */
        if (number == SIGINT && shows_stop)
            (void)!write(STDERR_FILENO, stops_later, sizeof stops_later - 1);
    }
    if (goes_on && (comes_again || !atomic_exchange(&ends_next, true)))
        return;
    for (int i = 0; i < STOPPING && !goes_on; i++)
        if (stopping[i] == number)
            (void)!write(STDERR_FILENO, last_words[i], strlen(last_words[i]));
    signal(number, SIG_DFL);
    raise(number); /* is delivered when the handler returns */
}

static void on_signal(int number)
{
    int kept = errno;
    if (number == SIGUSR1)
        atomic_store(&save_asked, true);
    else if (number == SIGUSR2)
        atomic_store(&times_asked, true);
    else
        stop_run(number);
    errno = kept;
}

static sl_status handle_signal(int number)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, NULL, &before) == 0 &&
        (before.sa_handler == SIG_IGN || sigaction(number, &action, NULL) == 0))
        return SL_OK;
    return sl_error(SL_ERR_INTERNAL, "signals cannot be handled: %s", strerror(errno));
}

sl_status cli_signals_handle(bool saves, bool speaks)
{
    bool terminal = isatty(STDERR_FILENO) == 1;
    run_saves = saves;
    shows_stop = speaks && terminal;
    for (int i = 0; i < STOPPING; i++) {
        if (speaks)
            snprintf(last_words[i], WORDS_BYTES,
                     "%ssluice: stopped by signal %d (%s), and nothing was saved: --save DIR saves "
                     "the model, --save-dir DIR checkpoints to go on from\n",
                     terminal ? "\r\033[K" : "", stopping[i], strsignal(stopping[i]));
        SL_TRY(handle_signal(stopping[i]));
    }
    SL_TRY(handle_signal(SIGUSR2));
    return saves ? handle_signal(SIGUSR1) : SL_OK;
}

void cli_signals_end_run(void)
{
    atomic_store(&run_ended, true);
}

unsigned cli_signals_request(void *context)
{
    (void)context;
    return (atomic_load(&stop_asked) ? SL_TRAIN_STOP : 0u) |
           (atomic_exchange(&save_asked, false) ? SL_TRAIN_SAVE : 0u) |
           (atomic_exchange(&times_asked, false) ? SL_TRAIN_REFRESH : 0u);
}

bool cli_signals_output_lost(void)
{
    return atomic_load(&output_lost);
}
