/* What signals ask of a run: SIGTERM and SIGINT its end after a checkpoint, and a second one its
 * end at once; SIGUSR1 a checkpoint now. */
#ifndef SLI_CLI_SIGNALS_H
#define SLI_CLI_SIGNALS_H

#include "sluice/train.h"

/* From here on the process takes these signals. */
sl_status cli_signals_take(void);

/* What they have asked for since the last call; a run's `request`. */
sl_train_request cli_signals_request(void *context);

#endif
