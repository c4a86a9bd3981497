/* What a person sees of one replica of a run: lines in the form of PyTorch's tutorials on standard
 * output, each with "[RANK r]: " in front where there are several replicas, and the first one's
 * live line on the terminal while a batch interval is under way. */
#ifndef SLI_CLI_PROGRESS_H
#define SLI_CLI_PROGRESS_H

#include "sluice/train.h"

#include <pthread.h>

typedef struct cli_progress {
    int replica, replicas;
    int64_t log_interval;
    bool quiet;   /* the first replica's results only */
    bool live;    /* standard error is a terminal */
    bool debug;   /* at the end, the first replica's log of the last exchange */
    int restarts; /* of the job, after which the run goes on by itself */
    bool resumed;
    /* Since the last line: */
    double interval_loss, interval_seconds;
    int64_t interval_tokens, interval_batches;
    /* Since the run began: */
    double trained_seconds;
    int64_t trained_batches; /* in them */
    int64_t total_batches;
    double live_time;        /* when the live line was last drawn */
    pthread_mutex_t *screen; /* of all replicas of this process: keeps lines together, guards: */
    bool live_shown;
    struct cli_progress *drawer; /* the first replica's, whose live line is in the way */
} cli_progress;

sl_reporter cli_progress_reporter(cli_progress *progress);

/* A sl_run_log_failed; its context is a cli_progress. */
void cli_progress_log_failed(void *context, const char *reason);

/* Clears the progress line after a failed run, when no replica reports. */
void cli_progress_end(cli_progress *progress);

#endif
