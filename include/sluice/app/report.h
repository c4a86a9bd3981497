/* What a run reports while it goes on, and the run log that is made of it.
 *
 * A run hands records to reporters. A record stands by itself: its reader need not ask the run.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_APP_REPORT_H
#define SLUICE_APP_REPORT_H

#include "sluice/app/option.h"
#include "sluice/device.h"
#include "sluice/schedule.h"

#include <stdio.h>

SL_API_BEGIN

/* ---- Records ---------------------------------------------------------------------------- */

/* What the time of a step goes to. */
typedef enum sl_time_kind {
    SL_TIME_FORWARD,
    SL_TIME_BACKWARD,
    SL_TIME_RECOMPUTE,
    SL_TIME_WAITING,  /* in the pipe, without an action: mostly for a tensor of another rank */
    SL_TIME_REDUCING, /* sl_step_info.reduce_seconds; the same of a replica's ranks in one process,
                         as what follows */
    SL_TIME_OPTIMIZER,
    SL_TIME_DATA,
    SL_TIME_CHECKPOINT, /* copies of the run's state, between steps */
    SL_TIME_KINDS
} sl_time_kind;

const char *sl_time_kind_name(sl_time_kind kind); /* "forward" */

/* One pipeline rank: its device, memory and step times. */
typedef struct sl_rank_stats {
    int rank;  /* of the run */
    int stage; /* the lowest on this device */
    char host[64];
    char device[32]; /* its name */
    char isa[24];    /* the instruction set of its kernels */
    int threads;
    sl_memory_stats stats;
    int64_t steps; /* since this process started */
    /* Sums over these steps. Of a step with several runs of the pipe's table (accumulation steps,
     * shards) the timeline is that of the last: its proportions stand for all. */
    double seconds[SL_TIME_KINDS];
} sl_rank_stats;

/* One stage of a replica's pipeline. */
typedef struct sl_stage_info {
    char device[32];  /* its name */
    int first, count; /* modules */
    int rank;         /* the pipeline rank that runs it */
} sl_stage_info;

/* One of a run's texts. */
typedef struct sl_text_info {
    const char *path;
    int64_t tokens, unknown; /* `unknown`: how many of them are <unk> */
    int64_t invalid_bytes;   /* that are not UTF-8 */
    int64_t rows, documents; /* of JSON lines or token files; 0: it is one text. Documents that were
                                packed into the rows; 0: they are not */
} sl_text_info;

/* One of the sources of a mixture. Its rows are those for training. */
typedef struct sl_source_info {
    const char *name, *path;
    double share; /* of all rows, by its weight */
    int64_t tokens, rows;
} sl_source_info;

/* A run that begins. Everything lives as long as the run. */
typedef struct sl_run_info {
    const struct sl_train_options *options; /* with all defaults filled in */
    const sl_option *option_rows[2];        /* rows of *options, each array's last without a name */
    sl_text_info texts[3];                  /* for training, validation and test */
    const sl_source_info *sources;          /* [source_count] of a mixture; `texts` have the sums */
    int source_count;                       /* 0: it is none */
    int64_t ntokens;                        /* of the vocabulary */
    int replica, replicas;
    int processes;         /* of the run */
    int64_t process_bytes; /* that this one held before its model: the program and its text */
    int64_t total_parameters, trained_parameters;
    int64_t batches_per_epoch;
    double peak_flops_per_s; /* the best rate of large matrix products in the run's precision on all
                                ranks' devices at once; 0: options->measure_peak is not set */
    double planned_step_seconds; /* by the plan that the run was given; 0: none */
    bool oversubscribed;         /* several devices use the same cores */
    double profiled_seconds; /* of an accumulation step, by the profile that chose the devices; 0:
                                there was none */
    double one_stage;        /* the same in one stage on all cores, as a fraction of it */
    const sl_stage_info *stages; /* [stage_count] of this replica */
    int stage_count;
    const sl_rank_stats *ranks; /* [rank_count], by replica and pipeline rank: of the whole run.
                                   Entries of this process's ranks are updated at each `step`, all
                                   others at each `evaluated`, at each `pipeline` that does not end
                                   an epoch, before `finished` and after SL_TRAIN_REFRESH */
    int rank_count;
    const sl_rank_stats *slowest; /* the one of `ranks` with the longest time in actions when all
                                     were last updated; NULL: there was no step */
    const struct sl_ddp_log *ddp_log; /* this replica's, of its last step; NULL: one replica */
    const struct sl_pipe *pipe;       /* this replica's: its parameters and devices */
} sl_run_info;

/* What a step has had of one of the sources of a mixture. */
typedef struct sl_source_step {
    double share;  /* of the step's rows */
    double epochs; /* how often the run has passed the source */
    double loss;   /* the mean over its targets; NaN: there is none */
    int64_t targets;
} sl_source_step;

typedef struct sl_step_info {
    int64_t epoch, batch, batches_per_epoch; /* from 1 */
    int64_t step;                            /* from 1, over all epochs */
    int64_t tokens;                          /* of all replicas, with `padding` */
    int64_t padding;                         /* of `tokens`, those that make rows as long as the
                                                longest that is loaded with them */
    int64_t targets;                         /* terms of the loss; 0: the step has changed nothing,
                                                and has no loss (NaN) */
    double loss;                             /* the mean over all replicas */
    double replica_loss;                     /* the mean over this replica's rows */
    const sl_source_step *sources; /* [source_count] of a mixture; lives as long as the call */
    int source_count;
    double grad_norm; /* of the averaged gradient */
    double lr, seconds;
    double data_seconds;      /* of `seconds`: until the batch was on the devices */
    double optimizer_seconds; /* of `seconds`: norm, clipping and update */
    double reduce_seconds;    /* of `seconds`: waiting for the replicas' gradients when this one's
                                 were complete; 0: there is one replica */
    double waiting_seconds;   /* of `seconds`: in the pipe without an action, mostly for a tensor of
                                 another rank; the mean over the replica's pipeline ranks */
    double flops;             /* floating-point operations that the model needs for the tokens:
                                 matrix products of forward and backward, without recomputation
                                 and what frozen weights save */
    double mfu; /* model FLOPs utilization: flops / seconds / sl_run_info.peak_flops_per_s; NaN:
                   not measured */
    /* When each action of this replica's stages in this process ran, in the last accumulation step:
     * sl_pipe_timeline. Lives as long as the call. */
    const sl_timeline_entry *timeline;
    int timeline_count;
    double timeline_seconds; /* from the timeline's start until all ranks of the pipe had ended */
    double timeline_busy_seconds; /* the sum of all actions' times, also of those of the replica's
                                     other processes */
} sl_step_info;

/* Where the time went in a step of this replica. */
typedef struct sl_pipeline_info {
    int64_t epoch, step;               /* from 1; `step` over all epochs */
    bool ends_epoch;                   /* of the epoch's last step, or the one before it where the
                                          last batch is smaller */
    const sl_utilization *utilization; /* of the step's last accumulation step; NULL: there is one
                                          stage, and what follows is NULL */
    const sl_stage_info *slowest;      /* the slowest stage */
    /* [replicas][utilization->action_count] what each replica measured; NULL: there is one replica,
     * or there are too many actions. */
    const sl_timeline_entry *timelines;
    const sl_schedule_options *layouts; /* [replicas] for sl_timeline_utilization of each; what that
                                           takes is set, the rest is 0 */
} sl_pipeline_info;

/* An evaluation under way. */
typedef struct sl_evaluating_info {
    const char *split;             /* "valid" or "test" */
    int64_t epoch, batch, batches; /* `batch` of `batches` is done, from 1 */
} sl_evaluating_info;

typedef struct sl_eval_info {
    const char *split; /* "valid" or "test" */
    int64_t epoch, tokens;
    int64_t step; /* how many were done before it */
    double loss, perplexity, seconds;
    const double *source_losses; /* [source_count] of a mixture, whose loss is their mean by the
                                    shares; NaN of one without this split; lives as long as the
                                    call */
    int source_count;
    double epoch_seconds; /* for a validation: since the epoch's start */
    bool ends_epoch;      /* a validation after the epoch's last step */
    bool best;            /* the best validation so far */
} sl_eval_info;

/* What the model says now. */
typedef struct sl_sample_info {
    int64_t epoch, step; /* from 1; the step that was done last */
    const char *prompt;
    const char *text;   /* the prompt and what was added; NULL: nothing, for `reason` */
    const char *reason; /* the model's output was not finite; else NULL */
} sl_sample_info;

typedef struct sl_run_result {
    double test_loss, test_perplexity, best_valid_loss;
    double
        seconds; /* of the run, with what it took in processes from whose checkpoints it goes on */
    int64_t steps;
    bool stopped;       /* on request: there are no results of a test */
    bool saved;         /* options->save was written: the best parameters, or the last ones where no
                           validation has ended */
    int64_t saved_step; /* the step after which these were made */
} sl_run_result;

typedef enum sl_checkpoint_event_kind {
    SL_CHECKPOINT_SKIPPED, /* not used, for `reason`: one newer than the run's, or a file with the
                              name of a checkpoint */
    SL_CHECKPOINT_RESUMED, /* the run goes on from it */
    SL_CHECKPOINT_SAVED,
    SL_CHECKPOINT_FAILED,   /* could not be saved, for `reason`; the run goes on */
    SL_CHECKPOINT_UNPRUNED, /* one was saved, but of the older ones in `path` those that are no
                               longer kept could not be removed, for `reason` */
    SL_WEIGHTS_FAILED,      /* the best parameters could not be written to options->save, for
                               `reason`; the run goes on */
    SL_WEIGHTS_LEFT_OUT     /* `tensor` was not loaded from options->init, for `reason` */
} sl_checkpoint_event_kind;

typedef struct sl_checkpoint_event {
    sl_checkpoint_event_kind kind;
    const char *path;
    const char *tensor;   /* LEFT_OUT: its name */
    int64_t step;         /* after which it was made; SKIPPED, LEFT_OUT: 0 */
    int64_t lost_steps;   /* RESUMED, the newest one of a directory: steps after it that the earlier
                             run had done, and that this one repeats */
    double copy_seconds;  /* SAVED: how long the run waited for the copy of its state */
    double write_seconds; /* SAVED: how long writing the copy took, beside the run */
    const char *reason;   /* of the kinds that have one; else NULL */
} sl_checkpoint_event;

/* ---- Reporters -------------------------------------------------------------------------- */

/* Functions that one rank calls to report, each of them optional. They are called on the rank's
 * thread. With one replica, and for all events before `started`, that is the caller's thread. If
 * one returns an error, the run ends with it. */
typedef struct sl_reporter {
    void *context;
    sl_status (*started)(void *context, const sl_run_info *info);
    sl_status (*step)(void *context, const sl_step_info *info);
    /* After the last step of each epoch, where there are several stages; and after a step about
     * once a second, or more rarely, if options->report_timelines is set. */
    sl_status (*pipeline)(void *context, const sl_pipeline_info *info);
    sl_status (*evaluating)(void *context, const sl_evaluating_info *info);
    sl_status (*evaluated)(void *context, const sl_eval_info *info);
    /* After SL_TRAIN_REFRESH: `ranks` is up to date. */
    sl_status (*refreshed)(void *context, const sl_run_info *info);
    sl_status (*finished)(void *context, const sl_run_info *info, const sl_run_result *result);
    int rank; /* the run's rank that calls these functions: the first rank of a replica. Other ranks
                 do not report */
    /* Only rank 0 calls it; SKIPPED, RESUMED and LEFT_OUT come before `started`. */
    sl_status (*checkpoint)(void *context, const sl_checkpoint_event *event);
    /* Only rank 0 calls it: options->sample_every. */
    sl_status (*sampled)(void *context, const sl_sample_info *info);
} sl_reporter;

/* Called once by a reporter that writes a file, when the file cannot be written. */
typedef void sl_reporter_failed(void *context, const char *reason);

/* ---- The run log ------------------------------------------------------------------------ */

/* A `pipeline` record of more actions has no timelines. */
enum { SL_RUN_LOG_MOST_ACTIONS = 8192 };

/* The run as JSON lines: one `run` record, a `step` for each batch, where there are several stages
 * a `pipeline` for each epoch, `eval` and, for every pipeline rank of every replica, `memory` after
 * each evaluation, and `end`, and a `sample` for each text of the model; with
 * options->report_timelines also a `pipeline` and `memory` of some steps, which take about as much
 * room as the steps' own records at most. The file is opened at once and emptied when the run
 * begins: a run that is refused leaves an old log as it is, and no new one.
 *
 * Where a record cannot be written (the disk is full), `failed` is called once with `context` and
 * the reason, and the run goes on; when there is room again, a `gap` record says how many records
 * are missing. Where `failed` is NULL, the run ends with the error.
 *
 * `command`: by which the run was started, for the log's `run` records (copied; its first 64 KiB);
 * NULL: they do not say it. The log outlives the run that has its reporter, and `context` the log.
 * Errors: SL_ERR_IO where the file cannot be opened. */
typedef struct sl_run_log sl_run_log;
sl_status sl_run_log_create(const char *path, const char *command, sl_reporter_failed *failed,
                            void *context, sl_run_log **out);
void sl_run_log_destroy(sl_run_log **log);
sl_reporter sl_run_log_reporter(sl_run_log *log);

SL_API_END
#endif
