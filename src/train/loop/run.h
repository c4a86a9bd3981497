/* A training run as one of its ranks sees it: what comes before training (run.c), the loop
 * (trainer.c) and what ranks measure meanwhile (pipeline_record.c). */
#ifndef SLI_TRAIN_LOOP_RUN_H
#define SLI_TRAIN_LOOP_RUN_H

#include "core/claim.h"
#include "train/loop/language.h"
#include "train/loop/read_ahead.h"
#include "train/loop/replica.h"
#include "train/loop/rows_task.h"
#include "train/plan/profile.h"

#include "sluice/pipe_optimizer.h"

/* How far a run has come. */
typedef struct sli_position {
    int64_t steps;     /* done */
    int64_t epoch;     /* that is under way, from 0; as many as there are: only the test is left */
    int64_t batch;     /* the next one of it; as many as there are: validation comes next */
    int64_t best_step; /* after which the best validation was */
    double best_loss;  /* infinite: none yet */
    double seconds; /* that the run took until then, in processes before this one; 0: not known */
} sli_position;

/* Whose a checkpoint is: 16 hexadecimal digits, drawn when a run begins and kept when it goes on in
 * its directory. Empty: nobody's, as of a checkpoint that a program made. */
typedef struct sli_identity {
    char text[17];
} sli_identity;

/* And which attempt saved it: a launcher's name of the job, or empty. */
enum { SLI_JOB_BYTES = 128 };
typedef struct sli_owner {
    sli_identity identity;
    char job[SLI_JOB_BYTES];
} sli_owner;

enum { SLI_BASE_CHECKSUM_BYTES = 17 }; /* 16 hexadecimal digits, and the end */

/* What a resumed run takes from its checkpoint where its options leave it open. */
typedef struct sli_recorded {
    sli_position position;
    int shards, chunks;
    double lr; /* that it began with */
    sli_identity identity;
    char base[SLI_BASE_CHECKSUM_BYTES]; /* of its adapters; empty: it has none */
} sli_recorded;

/* The checkpoint that a run resumes from; without a reader: none. */
typedef struct sli_resume {
    sl_checkpoint_reader *reader;
    char *path;
    sli_recorded recorded;
    int64_t last_step; /* that this run had done in its directory; 0: not known, or a single one */
} sli_resume;

typedef struct sli_best sli_best;               /* train/checkpoint/checkpoints.h */
typedef struct sli_checkpoints sli_checkpoints; /* the same */
typedef struct sli_sampler sli_sampler;         /* train/loop/sample.h */

/* What a rank reports of the sources of a mixture. */
typedef struct sli_sources {
    int count;             /* 0: it is none, and there are no arrays */
    sl_source_info *infos; /* [count] */
    sl_source_step *steps; /* [count] of the last step */
    double *losses;        /* [count] of the last evaluation */
    double *row_losses;    /* [batch_size] of the shard that was trained last */
    double *shard_losses;  /* [shards][count] sums of a step */
} sli_sources;

typedef struct sl_run {
    /* What the ranks of one process have in common (run.c). They only read it, but for the copy of
     * the best parameters, which the first one writes. */
    sl_train_launch launch;
    sli_findings found;
    const char
        *asked; /* where a checkpoint was looked for: itself, or a directory; NULL: nowhere */
    sl_plan *plan;
    const sl_train_options *options; /* the plan's, which are complete */
    sl_group *processes; /* the ranks, where they are processes; borrowed; NULL: they are threads */
    sl_vocab *tokenizer; /* options->tokenizer's; NULL: none is given, or not yet needed */
    sl_saved_model *init; /* NULL: none, or other ranks load it */
    sl_corpus *corpus;    /* NULL: the task is the caller's, or the data are rows */
    sli_language language;
    bool may_lack_weights;     /* set by sli_run_create_to_plan */
    bool has_rows;             /* the data are rows of ids, */
    sli_rows_task rows_of_ids; /* these */
    sl_train_task own_task;
    const sl_train_task *task; /* the caller's, or `own_task`, of `language` or `rows_of_ids` */
    int64_t rows;              /* of a batch for training, over all shards */
    int64_t batches[SL_SPLITS];
    int64_t batches_per_epoch;
    int64_t shuffled_rows;    /* of all batches for training; 0: in order */
    sli_open_devices devices; /* [pipeline ranks of the process] */
    sli_best *best;
    const sl_reporter *reporters; /* [reporter_count], of all ranks; borrowed */
    int reporter_count;
    sl_run_result *result; /* the first rank's, where several are in this process */

    /* This rank's (trainer.c). */
    sli_resume resume;                  /* `reader` and `path`: rank 0's */
    sli_identity identity;              /* rank 0's, where checkpoints are saved */
    char base[SLI_BASE_CHECKSUM_BYTES]; /* of what its adapters belong to, on the first replica */
    sli_replica replica;
    sl_tensor *input, *targets; /* of the shard under way */
    sli_rows_extra extra;       /* what it has beside them */
    sli_read_ahead *ahead;      /* of rows; NULL: the data are others, or none are needed */
    sli_sources sources;
    int64_t measured_step, measured_targets; /* the step of `utilization`, and its targets */
    sl_pipe_optimizer *optimizer;
    sli_position position;
    sl_stage_info stages[SL_MAX_STAGES];
    sl_utilization utilization;         /* of the step that was measured last; ranks == 0: none */
    int64_t reported_step, next_report; /* steps after which all ranks report what they measured */
    double reported_time;               /* of the first of these, on rank 0's clock */
    sl_run_info info;
    sl_evaluating_info evaluating;
    sli_checkpoints *checkpoints;
    sli_sampler *sampler;    /* NULL: nothing is asked for, or another replica does it */
    double peak_flops_per_s; /* of all ranks' devices; 0: not measured */
    int last_step;           /* descriptor of the file that records it */
    bool stopped;            /* on request */
    sli_claim *claim;        /* of options->save, rank 0's; NULL: none */
    bool saved;              /* options->save has the best parameters so far */
    double started;          /* this process */
} sli_run;

/* sl_run_create in one process of a run that will not train, and whose `init` may be a config.json
 * without weights. */
sl_status sli_run_create_to_plan(const sl_train_options *options, sl_run **out);

/* How long the run has taken, in this process and in those that it goes on from. */
double sli_run_seconds(const sli_run *run);

/* What is saved with the weights; NULL: nothing, as of a task of the caller's. */
const sl_model_options *sli_run_model(const sli_run *run);
const sl_vocab *sli_run_vocab(const sli_run *run);

/* The directory where a run that saves checkpoints keeps the tokens of its text, malloc'ed; NULL:
 * nowhere. Errors: SL_ERR_MEMORY. */
sl_status sli_run_kept_tokens(const sl_train_options *options, char **out);
const char *sli_run_generation(const sli_run *run); /* generation_config.json */

/* Whether it trains adapters of the model in `init`: checkpoints then have these alone. */
bool sli_run_has_adapters(const sli_run *run);

/* Refuses a `save` that would overwrite a text or the schedule's table; weights may be saved where
 * they came from. (outputs.c) */
sl_status sli_train_check_save(const sl_train_options *options);

/* The training loop of one rank (trainer.c) of `group` (NULL: there is one rank, and one shard), on
 * the process's devices from number `first` on. */
sl_status sli_run_rank(const sli_run *process, sl_group *group, int first, sl_run_result *result);

/* Trains on this replica's shards, one after the other, and finds the mean losses: of these shards,
 * and of all, the same bits on every replica. A replica whose own is not finite ends the others,
 * who wait for it. (shards.c) */
sl_status sli_run_train_shards(sli_run *run, sl_step_info *step);

/* What the ranks of a run report of a mixture: room for it; what the texts are, in run->info; the
 * losses of a shard that was trained, by sources; and what a step has had of them, which all ranks
 * find together. They do nothing where there is one source, but for the second. (sources.c) */
sl_status sli_run_open_sources(sli_run *run);
void sli_run_close_sources(sli_run *run);
void sli_run_describe_texts(sli_run *run);
sl_status sli_run_divide_losses(const sli_run *run, int shard);
sl_status sli_run_sum_sources(sli_run *run);

/* The rows of a shard in the batch under way. (shards.c) */
sl_train_rows sli_run_rows_of_shard(const sli_run *run, int shard);

/* Sets tokens, padding and flops of a step whose rows this rank has loaded. (shards.c) */
sl_status sli_run_measure_step(const sli_run *run, sl_step_info *step);

/* Errors: SL_ERR_NUMERIC for a number of a step that is not finite, unless the run allows it. */
sl_status sli_run_check_finite(const sli_run *run, const char *name, double value,
                               const sl_step_info *step);

/* Brings info.ranks up to date on all ranks, and tells the reporters. */
sl_status sli_run_refresh(sli_run *run);

/* Calls a function of each reporter of this rank that has it, until the first error. */
#define SLI_CALL_REPORTERS(run, event, ...)                                                        \
    for (int i = 0; i < (run)->reporter_count && !(run)->replica.is_silent; i++) {                 \
        const sl_reporter *reporter = &(run)->reporters[i];                                        \
        if (reporter->rank == (run)->replica.rank && reporter->event)                              \
            SL_TRY(reporter->event(reporter->context, __VA_ARGS__));                               \
    }

/* Tells the reporters what the ranks measured of a step, where it is the epoch's last one, and
 * about once a second where that is asked for. All ranks call it after each step.
 * (pipeline_record.c) */
sl_status sli_run_report_pipeline(sli_run *run);

/* Calls each of the rank's reporters. Stops at the first one's error, and returns it. */
sl_status sli_report_checkpoint(const sli_run *run, const sl_checkpoint_event *event);

#endif
