/* What a run log says, checked. Numbers that the log does not have, or that were not finite, are
 * NaN. */
#ifndef SLI_REPORT_HISTORY_H
#define SLI_REPORT_HISTORY_H

#include "sluice/app/report.h"

#include <jansson.h>

typedef enum sli_step_field {
    SLI_STEP_LOSS,
    SLI_STEP_TARGETS,
    SLI_STEP_PADDING, /* a fraction of the tokens */
    SLI_STEP_GRAD_NORM,
    SLI_STEP_LR,
    SLI_STEP_MS,
    SLI_STEP_TOKENS_PER_S,
    SLI_STEP_FLOPS_PER_S,
    SLI_STEP_MFU,
    SLI_STEP_DATA_MS,
    SLI_STEP_OPTIMIZER_MS,
    SLI_STEP_REDUCE_MS,
    SLI_STEP_WAITING_MS,
    SLI_STEP_TIME, /* when the record was written: seconds since 1970 */
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
    int64_t epoch, step;                    /* `step`: how many were done before it */
    double loss, perplexity, seconds, time; /* `time`: as SLI_STEP_TIME */
} sli_history_eval;

enum { SLI_MAX_SOURCES = 64, SLI_SOURCE_STEPS = 20 }; /* SL_MAX_SOURCES of a run */

/* One of the sources of a mixture. (history_sources.h) */
typedef struct sli_history_source {
    char name[64];
    double share;                    /* of all rows */
    double epochs;                   /* after the last step */
    double losses[SLI_SOURCE_STEPS]; /* of the steps `steps`, 0: none yet */
    int64_t steps[SLI_SOURCE_STEPS];
    double valid_loss; /* the last one */
} sli_history_source;

/* What the model said after a step. */
typedef struct sli_history_sample {
    int64_t step;
    char *text;
} sli_history_sample;

enum { SLI_MOST_SAMPLES = 10 };

/* Of a pipeline rank's device, after the last evaluation. */
typedef struct sli_history_memory {
    int rank, stage;
    char host[64]; /* empty: the log does not say */
    char device[32];
    double peak_bytes[SL_MEMORY_CATEGORY_COUNT], peak_total_bytes;
    double usable_bytes; /* that the device can have */
} sli_history_memory;

/* The last `pipeline` record of a replica. */
typedef struct sli_history_pipeline {
    int replica;
    int64_t epoch, step;
    bool ends_epoch;
    double bubble_measured, bubble_predicted, time; /* `time`: as SLI_STEP_TIME */
    int ranks, stages;                              /* 0: the log has no timelines */
    int *placement;                                 /* [stages] */
    double *links; /* [stages - 1] seconds of a tensor to the next stage; NULL: the log has none */
    int *cores;    /* [ranks] equal for ranks on the same cores; NULL: each has its own */
    int action_count;                        /* of both */
    sl_timeline_entry *measured, *predicted; /* seconds */
} sli_history_pipeline;

/* A record that a reader may want at once, and what it points to then. */
typedef enum sli_record_kind {
    SLI_RECORD_RUN,      /* NULL */
    SLI_RECORD_STEP,     /* a sli_history_step */
    SLI_RECORD_PIPELINE, /* a sli_history_pipeline */
    SLI_RECORD_EVAL      /* a sli_history_eval */
} sli_record_kind;

/* A run as its log tells it. Steps ascend; their number in the log may have gaps. */
typedef struct sli_run_history {
    char *name;  /* the log's path */
    json_t *run; /* the last `run` record */
    sli_history_step *steps;
    sli_history_eval *evals;
    sli_history_sample samples[SLI_MOST_SAMPLES]; /* [sample_count] the newest, which ascend */
    sli_history_source *sources;                  /* [source_count] */
    sli_history_memory *memory;
    sli_history_pipeline *pipelines; /* by replica, which ascend */
    size_t source_count, sample_count, step_count, step_room, eval_count, eval_room, memory_count,
        memory_room, pipeline_count, pipeline_room;
    /* Is told of each such record; NULL: nobody. */
    void (*added)(void *context, sli_record_kind kind, const void *record);
    void *added_context;
    size_t most_records;      /* of steps and of evaluations, then old ones are thinned; 0: all */
    int64_t run_step;         /* the first step since the last `run` record; 0: there is none */
    int64_t lines;            /* that were read */
    bool in_long_line;        /* what comes next belongs to a line that is too long */
    int64_t missing, damaged; /* records that could not be written; lines that were cut off, or have
                                 more than 1 MiB */
    bool ended;
    double seconds; /* of the whole run, if it has ended */
} sli_run_history;

/* Reads a log, also one of a run that goes on or has died: a last line without an end is left out,
 * and so are lines that were cut off in the middle, before a run that resumed. Of steps that are
 * there twice, the later ones count. Records of unknown kinds are skipped. Errors: SL_ERR_FORMAT
 * names the line and the field; those of opening the file. */
sl_status sli_run_history_read(const char *path, sli_run_history **out);
void sli_run_history_destroy(sli_run_history **history);

/* A history without records. */
sl_status sli_run_history_create(const char *name, sli_run_history **out);

/* Adds the records of the text's whole lines, whose bytes go to *used. After an error it has the
 * bytes to the end of the line that is wrong: the lines after it can be added. Errors:
 * SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_run_history_add(sli_run_history *history, const char *text, size_t bytes,
                              size_t *used);

/* Errors: SL_ERR_FORMAT where no run has begun. */
sl_status sli_run_history_check(const sli_run_history *history);

/* The first replica's pipeline; NULL: there is none. */
const sli_history_pipeline *sli_history_first_pipeline(const sli_run_history *history);

/* The best validation's loss, the median of a step's field (run_median: of the steps since the last
 * `run` record), and the most memory of a device, in
 * bytes: NaN where there is none. */
double sli_history_best_loss(const sli_run_history *history);
double sli_history_median(const sli_run_history *history, sli_step_field field);
double sli_history_run_median(const sli_run_history *history, sli_step_field field);
double sli_history_peak_bytes(const sli_run_history *history);

#endif
