/* What a person sees of a run: on standard output lines in the form of PyTorch's tutorials, each
 * with "[RANK r]: " in front where there are several replicas; on a terminal the first replica's
 * progress line between them; on standard error warnings. And the run's log. */
#ifndef SLI_CLI_PROGRESS_H
#define SLI_CLI_PROGRESS_H

#include "sluice/train.h"

typedef struct cli_progress_options {
    int64_t log_interval; /* batches between two lines */
    bool quiet;           /* the first replica's results only */
    bool live;            /* standard error is a terminal */
    int restarts;         /* of the job, after which the run goes on by itself */
    const char *log_json; /* the first replica's run log; NULL: none */
} cli_progress_options;

/* Of the replicas of one process. */
typedef struct cli_progress cli_progress;

/* For the replicas first … first + count - 1 of `replicas`. Errors: SL_ERR_MEMORY, those of
 * sl_run_log_create. */
sl_status cli_progress_create(const cli_progress_options *options, int first, int count,
                              int replicas, cli_progress **out);

/* Also clears the progress line that a failed run has left. NULL is allowed. */
void cli_progress_destroy(cli_progress **progress);

/* The run's reporters: [*count]. */
const sl_reporter *cli_progress_reporters(const cli_progress *progress, int *count);

/* Warns where more than half of a text is <unk>; `path` is the text's, `vocabulary` names its
 * vocabulary. */
void cli_warn_unknown_tokens(const sl_tokens *tokens, const char *path, const char *vocabulary);

#endif
