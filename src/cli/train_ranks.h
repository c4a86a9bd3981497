/* A training run with its display and its log, replica by replica: threads of this process, or,
 * where a launcher has started several processes, this process as one of them. */
#ifndef SLI_CLI_TRAIN_RANKS_H
#define SLI_CLI_TRAIN_RANKS_H

#include "cli/progress.h"
#include "cli/run_options.h"
#include "sluice/launch.h"

/* `launch` says who this process is. `display` says how; the lines of each replica are its own.
 * `log_json` (NULL: none) is the first replica's. *result is empty in a process that does not have
 * that one. */
sl_status cli_train_ranks(const cli_run_options *options, const sl_launch_info *launch,
                          const cli_progress *display, const char *log_json, sl_run_result *result);

#endif
