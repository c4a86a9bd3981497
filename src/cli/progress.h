/* What the parts of a run's display share. */
#ifndef SLI_CLI_PROGRESS_H
#define SLI_CLI_PROGRESS_H

#include "cli/cli.h"

/* One rank's; a reporter's context. */
typedef struct cli_display {
    struct cli_progress *progress;
    int rank;
    int64_t resumed_step;                   /* 0: the run has begun anew */
    const sl_source_info *sources;          /* of a mixture */
    double interval_loss, interval_seconds; /* since the last line */
    int64_t interval_tokens, interval_padding, interval_targets, interval_batches;
    double trained_seconds; /* since the run began */
    double first_seconds;   /* of its first step, which warms up */
    int64_t trained_batches, total_batches;
    struct cli_source_sum {
        double loss;
        int64_t targets;
    } source_sums[SL_MAX_SOURCES]; /* of the epoch's steps */
} cli_display;

struct cli_progress {
    cli_progress_options options;
    int reporter_count;
    cli_display *displays;  /* [count] */
    sl_reporter *reporters; /* [reporter_count]: one a display, the meter's and the log's */
    cli_run_meter meter;
    cli_outputs outputs;
    cli_screen screen;
};

/* Prints a line, on standard output, of what a rank shows. */
void cli_display_print(const cli_display *view, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "0 (modules 0 to 2), 3 (modules 6 to 8)": the stages of a pipeline rank. (rank_tables.c) */
void cli_write_stages(const sl_run_info *info, int pipeline_rank, char *text, size_t bytes);

/* Where each pipeline rank of each replica runs. (rank_tables.c) */
void cli_print_locations(const cli_display *view, const sl_run_info *info);

/* What memory and time they took. `context`: a cli_display. (rank_tables.c) */
sl_status cli_print_ranks(void *context, const sl_run_info *info);

#endif
