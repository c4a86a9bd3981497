/* What signals ask of a run: SIGTERM and SIGINT its end after a checkpoint, and a second one its
 * end at once; SIGUSR1 a checkpoint now. */
#ifndef SLI_CLI_SIGNALS_H
#define SLI_CLI_SIGNALS_H

#include "sluice/train.h"

/* From here on the process takes these signals. */
sl_status cli_signals_take(void);

/* A file that reaches the limit on its size (ulimit -f) is from here on an error of its write, as
 * on a full disk, and no signal that ends the process. */
void cli_signals_leave_file_limit(void);

/* What they have asked for since the last call; a run's `request`. */
sl_train_request cli_signals_request(void *context);

#endif
