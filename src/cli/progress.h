/* What a person sees of a run: lines in the form of PyTorch's tutorials on standard output, and a
 * live line on the terminal while a batch interval is under way. */
#ifndef SLI_CLI_PROGRESS_H
#define SLI_CLI_PROGRESS_H

#include "sluice/train.h"

typedef struct cli_progress {
    int64_t log_interval;
    bool quiet; /* results only */
    bool live;  /* standard error is a terminal */
    /* Since the last line: */
    double interval_loss, interval_seconds;
    int64_t interval_tokens, interval_batches;
    /* Since the run began: */
    double trained_seconds;
    int64_t total_batches;
    bool live_shown;
    double live_time; /* when the live line was last drawn */
} cli_progress;

sl_reporter cli_progress_reporter(cli_progress *progress);

#endif
