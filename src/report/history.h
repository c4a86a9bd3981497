/* What a run log says, checked. Numbers that the log does not have, or that were not finite, are
 * NaN. */
#ifndef SLI_REPORT_HISTORY_H
#define SLI_REPORT_HISTORY_H

#include "sluice/report.h"

#include <jansson.h>

typedef enum sli_step_field {
    SLI_STEP_LOSS,
    SLI_STEP_GRAD_NORM,
    SLI_STEP_LR,
    SLI_STEP_MS,
    SLI_STEP_TOKENS_PER_S,
    SLI_STEP_FLOPS_PER_S,
    SLI_STEP_DATA_MS,
    SLI_STEP_OPTIMIZER_MS,
    SLI_STEP_REDUCE_MS,
    SLI_STEP_LOSS_Z,
    SLI_STEP_GRAD_NORM_Z,
    SLI_STEP_FIELDS
} sli_step_field;

extern const char *const sli_step_keys[SLI_STEP_FIELDS]; /* in the log */

typedef struct sli_history_step {
    int64_t epoch, batch, step;
    double values[SLI_STEP_FIELDS];
} sli_history_step;

typedef struct sli_history_eval {
    bool is_test;
    int64_t epoch, step; /* `step`: how many were done before it */
    double loss, perplexity, seconds;
} sli_history_eval;

/* Of a pipeline rank's device, after the last evaluation. */
typedef struct sli_history_memory {
    int rank, stage;
    char device[32];
    double peak_bytes[SL_MEMORY_CATEGORY_COUNT], peak_total_bytes;
} sli_history_memory;

/* The last `pipeline` record. */
typedef struct sli_history_pipeline {
    int64_t epoch, step;
    double bubble_measured, bubble_predicted;
    int ranks, stages;                       /* 0: the log has no timelines */
    int *placement;                          /* [stages] */
    int action_count;                        /* of both */
    sl_timeline_entry *measured, *predicted; /* seconds */
} sli_history_pipeline;

/* Steps ascend; their number in the log may have gaps. */
struct sl_run_history {
    char *name;  /* the log's path */
    json_t *run; /* the last `run` record */
    sli_history_step *steps;
    sli_history_eval *evals;
    sli_history_memory *memory;
    size_t step_count, step_room, eval_count, eval_room, memory_count, memory_room;
    bool memory_is_complete; /* the next `memory` record begins a new list */
    sli_history_pipeline pipeline;
    bool has_pipeline;
    int64_t missing, damaged; /* records that could not be written; lines that were cut off */
    bool ended;
    double seconds; /* of the whole run, if it has ended */
};

/* As sl_run_history_read of a file with these bytes. */
sl_status sli_run_history_parse(const char *name, const char *text, size_t bytes,
                                sl_run_history **out);

/* The best validation's loss, the median of a step's field, and the most memory of a device, in
 * bytes: NaN where there is none. */
double sli_history_best_loss(const sl_run_history *history);
double sli_history_median(const sl_run_history *history, sli_step_field field);
double sli_history_peak_bytes(const sl_run_history *history);

#endif
