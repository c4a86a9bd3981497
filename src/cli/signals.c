#include "cli/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

/* The process's, as its signals are. */
static atomic_bool stop_asked, save_asked;

/* Lock-free atomics, sigaction and raise are all that a handler may touch. */
static void note_signal(int number)
{
    if (number == SIGUSR1) {
        atomic_store(&save_asked, true);
        return;
    }
    if (atomic_exchange(&stop_asked, true)) {
        signal(number, SIG_DFL);
        raise(number); /* is delivered when this handler returns */
    }
}

sl_status cli_signals_take(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], &action, NULL) != 0)
            return sl_error(SL_ERR_INTERNAL, "signals cannot be taken: %s", strerror(errno));
    return SL_OK;
}

sl_train_request cli_signals_request(void *context)
{
    (void)context;
    if (atomic_load(&stop_asked))
        return SL_TRAIN_STOP;
    return atomic_exchange(&save_asked, false) ? SL_TRAIN_SAVE : SL_TRAIN_GO_ON;
}
