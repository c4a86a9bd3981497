/* What signals ask of a run.
 *
 *     SIGTERM, SIGINT    its end after a save; a second one its end at once
 *     SIGHUP, SIGPIPE    its end after a save: the terminal is gone, or nobody reads a pipe
 *     SIGUSR1            a checkpoint now
 *
 * A run that saves nothing ends at once, and says that nothing was saved. A signal that was ignored
 * when the program started stays ignored. */
#ifndef SLI_CLI_SIGNALS_H
#define SLI_CLI_SIGNALS_H

#include "sluice/train.h"

/* From here on the process takes these signals. `saves`: the run is asked by cli_signals_request,
 * and saves something when it stops. `speaks`: this is the process of the job to say what a signal
 * does. */
sl_status cli_signals_handle(bool saves, bool speaks);

/* What they have asked for since the last call; a run's `request`. */
sl_train_request cli_signals_request(void *context);

/* Whether a terminal or a reader has gone, so that what cannot be shown is no error. */
bool cli_signals_output_lost(void);

#endif
