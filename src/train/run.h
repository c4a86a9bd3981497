/* A training run as one of its ranks sees it, and what it is made of. */
#ifndef SLI_TRAIN_RUN_H
#define SLI_TRAIN_RUN_H

#include "parallel/pipe.h"
#include "sluice/pipe_optimizer.h"
#include "sluice/train.h"

/* ---- The layout: replicas and stages, modules and devices (layout.c) ------------------ */

/* What one rank of a run has: a replica, all in one process, or some pipeline ranks of one. Ranks
 * are threads of one process, each a replica, or processes. */
typedef struct sli_layout {
    int replica;
    int rank_in_replica, ranks_per_replica; /* 1 rank: it has all pipeline ranks */
    int first, count;                       /* its pipeline ranks */
} sli_layout;

sli_layout sli_layout_of_rank(const sl_train_options *options, int rank);

/* Ranks on this host, and the pipeline ranks of each. */
int sli_layout_host_ranks(const sl_train_options *options);
int sli_layout_pipeline_ranks_of_rank(const sl_train_options *options);

/* Shards of the training text: what the options say, or one for each replica. */
int sli_layout_shards(const sl_train_options *options);

/* The accumulation steps in which a shard's batch goes through the pipe: what the options say, or
 * 1; and the micro-batches of all of them. */
int sli_layout_accumulation_steps(const sl_train_options *options);
int sli_layout_micros(const sl_train_options *options);

/* Pipeline ranks of each replica: what the options say, or as many as `balance` or `devices` has;
 * and the stages on them. */
int sli_layout_pipeline_ranks(const sl_train_options *options);
int sli_layout_stages(const sl_train_options *options);

/* The rank of each stage, in `room` or NULL: the table's or the schedule's own. */
sl_status sli_layout_placement(const sl_train_options *options, int room[SL_MAX_STAGES],
                               const int **out);

/* The order of computation for `micros` micro-batches, which the caller frees. */
sl_status sli_layout_table(const sl_train_options *options, int micros, sl_schedule **out);

/* The number of modules of each stage, into balance[0 … *stages - 1]. */
sl_status sli_layout_balance(const sl_train_options *options, const sl_module *model, int *balance,
                             int *stages);

/* Refuses numbers of stages, replicas, ranks and devices that contradict each other. */
sl_status sli_layout_check(const sl_train_options *options);

/* The names of the host's devices, separated by commas, malloc'ed. */
sl_status sli_layout_devices(const sl_train_options *options, char **out);

/* The same for ranks that all have the host's cores. */
sl_status sli_layout_shared_devices(const sl_train_options *options, char **out);

/* ---- One replica (replica.c) -------------------------------------------------------------- */

/* What a rank has of a replica: model, loss and pipe; and the groups in which it meets the others.
 *
 *              stage 0    stage 1
 *   replica 0  rank 0 ─── rank 1     `pipe_group`: the ranks of its replica
 *                 │          │       `group`: those of its stages, one of each replica
 *   replica 1  rank 2 ─── rank 3     `all`: all of them */
typedef struct sli_replica {
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_group *all;             /* borrowed; NULL: there is one rank, and one shard */
    sl_group *pipe_group;      /* NULL: the replica is this rank's alone */
    sl_group *group;           /* where each replica has one rank it is `all`; NULL: one replica,
                                  and one shard */
    sl_ddp *ddp;               /* since sli_replica_join; NULL: there is no group */
    int index, count;          /* of the replicas */
    int rank;                  /* of `all` */
    bool is_silent;            /* not the first rank of its replica, which reports */
    sl_rank_stats *rank_stats; /* [count * pipeline ranks], by replica and pipeline rank */
} sli_replica;

/* Makes the task's model and loss, and the pipe. `options` are checked. `devices` [pipeline ranks],
 * those of other ranks NULL, are borrowed. `values` = false leaves the parameters undefined; else
 * the first replica's are random, or those of options->init, unless options->partial. Cleared by
 * sli_replica_clear, also after an error. */
sl_status sli_replica_create(const sl_train_options *options, const sl_train_task *task,
                             sl_group *all, sl_device *const *devices, bool values,
                             sli_replica *out);
void sli_replica_clear(sli_replica *replica);

/* Gives every replica the first one's parameters, and averages the gradients of all shards from
 * then on. */
sl_status sli_replica_join(sli_replica *replica, const sl_train_options *options);

/* Ends the other ranks with the calling thread's error, whatever they wait for; one about a rank
 * then says where that rank is. Returns `error`. Called before anything that they share is
 * destroyed. */
sl_status sli_replica_abort(const sli_replica *replica, sl_status error);

/* Fills in what the devices of this rank hold, in its entries of `rank_stats`. */
void sli_replica_update_memory(const sli_replica *replica);

/* Gathers `rank_stats` of all ranks. */
sl_status sli_replica_gather_rank_stats(const sli_replica *replica);

/* What each replica measured of the same actions, [replicas][count], to be freed also after an
 * error; NULL where there is one replica, or more actions than the reporters want. */
sl_status sli_replica_gather_timelines(const sli_replica *replica, const sl_timeline_entry *own,
                                       int count, sl_timeline_entry **out);

/* Adds to the times of this rank's entries of `rank_stats`. */
void sli_replica_add_checkpoint_time(const sli_replica *replica, double seconds);

/* Calls the task's load_rows; the caller destroys the tensors, also after an error. Errors: the
 * task's; SL_ERR_INVALID where it gives another number of rows. */
sl_status sli_task_load(const sl_train_task *task, const sl_train_rows *rows,
                        sl_device *input_device, sl_device *target_device, sl_tensor **input,
                        sl_tensor **targets);

/* The same to the devices of the rank's pipe, where it needs them: as its replica's first rank, or
 * for the first or the last stage. Else both are NULL. */
sl_status sli_replica_load(const sli_replica *replica, const sl_train_task *task,
                           const sl_train_rows *rows, sl_tensor **input, sl_tensor **targets);

/* The sum of the best rates of large matrix products in this precision on devices [count], all at
 * the same time, in FLOP/s. Takes about 0.05 s. (peak.c) */
sl_status sli_measure_peak(sl_device *const *devices, int count, sl_precision precision,
                           double *flops_per_s);

/* ---- The language model as a task (language.c) ---------------------------------------------- */

typedef struct sli_language {
    const sl_model_options *model;
    const sl_corpus *corpus; /* NULL: only `tokens` */
    const sl_tokens *tokens[SL_SPLITS];
    int64_t bptt;
    int64_t shard_rows; /* of a batch for training, which has the rows of all shards */
    char data[SL_SPLITS][96];
} sli_language;

/* The task of a language, which is borrowed. */
sl_train_task sli_language_task(sli_language *language);

/* ---- Evaluation (evaluate.c) ---------------------------------------------------------------- */

/* Sets *stop where an evaluation is to end before its end; the same on all ranks. */
typedef sl_status sli_evaluation_stop(void *context, bool *stop);

/* As sl_evaluate_tokens, of a task's split with so many batches, called by all ranks: each replica
 * scores every replica->count'th batch, and all get the same result, to the bit what one alone
 * would get. `progress` is told of this replica's batches alone, on its first rank. Every rank
 * calls `stop` (NULL: never stops), with options->context, before each of its batches, and those
 * that have one batch less do so once more. A stopped evaluation has no result: *out is 0. */
sl_status sli_evaluate(const sli_replica *replica, const sl_train_task *task, sl_split split,
                       int64_t batches, const sl_evaluate_options *options,
                       sli_evaluation_stop *stop, sl_evaluation *out);

/* ---- Times (rank_times.c) ------------------------------------------------------------------- */

/* Adds a step to the times of a replica's pipeline ranks [count], those of this process. Sets
 * step->waiting_seconds. */
void sli_rank_times_add(const sl_stage_info *stages, sl_step_info *step, sl_rank_stats *ranks,
                        int count);

/* The one that has computed longest; NULL: none has taken a step. */
const sl_rank_stats *sli_rank_times_find_slowest(const sl_rank_stats *ranks, int count);

/* ---- The run -------------------------------------------------------------------------------- */

/* How far a run has come. */
typedef struct sli_position {
    int64_t steps;     /* done */
    int64_t epoch;     /* that is under way, from 0; as many as there are: only the test is left */
    int64_t batch;     /* the next one of it; as many as there are: validation comes next */
    int64_t best_step; /* after which the best validation was */
    double best_loss;  /* infinite: none yet */
} sli_position;

/* What a resumed run takes from its checkpoint where its options leave it open. */
typedef struct sli_recorded {
    sli_position position;
    int shards;         /* that its text is cut into; as many as it had replicas at the start where
                           sums_by_ranks */
    bool sums_by_ranks; /* sums over shards were in the order of ranks, not of a tree */
    double lr;          /* the learning rate it began with */
    int chunks;         /* its micro-batches; 0: not known */
    bool ascends;       /* gradients of micro-batches are added from the first to the last */
} sli_recorded;

/* The checkpoint that a run resumes from; without a reader: none. */
typedef struct sli_resume {
    sl_checkpoint_reader *reader;
    char *path;
    sli_recorded recorded;
    int64_t last_step; /* that a run in this directory had done; 0: not known, or a single one */
    bool found;        /* there is one, on every rank */
} sli_resume;

/* Where a replica's pipe runs, as the prediction of its steps needs it: words that ranks exchange.
 */
typedef struct sli_machine {
    double links[SL_MAX_STAGES];  /* [stages - 1] as in sl_schedule_options */
    int32_t cores[SL_MAX_STAGES]; /* [ranks] */
    int64_t has_cores;            /* some ranks share them */
} sli_machine;

typedef struct sli_best sli_best;               /* train/checkpoint/checkpoints.h */
typedef struct sli_checkpoints sli_checkpoints; /* the same */

typedef struct sli_run {
    /* What the ranks of one process have in common (run.c). They only read it, but for the copy of
     * the best parameters, which the first one writes. */
    sl_train_options options; /* completed by what the data say */
    sl_vocab *vocab;          /* that the initial weights were saved with, if any */
    sl_corpus *corpus;        /* NULL: the task is the caller's */
    sli_language language;
    sl_train_task language_task;
    const sl_train_task *task; /* the caller's, or that of `language` */
    int64_t rows;              /* of a batch for training, over all shards */
    int64_t batches[SL_SPLITS];
    int64_t batches_per_epoch;
    sl_device_list *devices; /* [pipeline ranks of the process] */
    char *shared_devices;    /* names, where the run has decided that stages share the cores */
    bool oversubscribed;     /* without such a decision */
    sli_best *best;
    const sl_reporter *reporters; /* [reporter_count], of all ranks; borrowed */
    int reporter_count;
    sl_run_result *result; /* the first rank's, where several are in this process */

    /* This rank's (trainer.c). */
    sli_resume from; /* `reader` and `path`: rank 0's */
    sli_replica replica;
    sl_tensor *input, *targets;              /* of the shard under way */
    int64_t measured_step, measured_targets; /* the step of `utilization`, and its targets */
    sl_pipe_optimizer *optimizer;
    sli_position at;
    sl_stage_info stages[SL_MAX_STAGES];
    /* Of the epoch's last whole step; ranks == 0: no step was measured. */
    sl_utilization utilization;
    struct {
        int64_t last, next;           /* steps after which ranks gather timelines */
        double time;                  /* of `last`, on rank 0's clock */
        sli_machine *machines;        /* [replicas]; NULL: not known yet */
        sl_schedule_options *layouts; /* [replicas], of `machines`; the same */
    } timelines;
    sl_run_info info;
    sl_evaluating_info evaluating;
    sli_checkpoints *checkpoints;
    double peak_flops_per_s; /* of all ranks' devices; 0: not measured */
    int last_step;           /* descriptor of the file that records it */
    bool stopped;            /* on request */
    bool saved;              /* options.save has the best parameters so far */
    double started;
} sli_run;

/* Makes everything that comes before training, from run->options and run->reporters: checks the
 * options, creates the devices, finds the checkpoint to go on from, which says into how many shards
 * the text is cut, the rate that the run began with and its micro-batches, and cuts the text. This
 * process has `count` of the host's ranks, from `first` on. `group`: the ranks that are processes;
 * NULL: all are threads of this one. `own_cores`: no other process of the run may use this one's
 * cores. Cleared by sli_run_clear, also after an error. */
sl_status sli_run_create(sli_run *run, int first, int count, sl_group *group, bool own_cores);
void sli_run_clear(sli_run *run);

/* What a profile is made of. */
typedef struct sli_profile_inputs {
    const sl_train_options *options; /* checked */
    const sl_train_task *task;       /* its first batch is used */
    sl_module *model;
    sl_loss *loss;
    const sl_device_list *devices; /* of this process: first those of the first replica's ranks */
    const sl_link_cost *links;     /* as in sl_partition_costs */
} sli_profile_inputs;

/* As sl_train_profile; and the seconds of a step that is cut so. `profiles` may be NULL.
 * (profile.c) */
sl_status sli_train_profile(const sli_profile_inputs *inputs, sl_module_profile *profiles,
                            int *balance, sli_step_times *times);

/* Measures the links between the processes of the first replica whose stages are neighbours.
 * Every rank of the run calls it and gets the same costs, [pipeline ranks][pipeline ranks], to be
 * freed; NULL where the replica has one process, and after an error. (profile.c) */
sl_status sli_measure_links(const sl_train_options *options, sl_group *all, sl_link_cost **out);

/* The training loop of one rank (trainer.c) of `group` (NULL: there is one rank, and one shard), on
 * the process's devices from number `first` on. */
sl_status sli_run_train(const sli_run *process, sl_group *group, int first, sl_run_result *result);

/* Brings info.ranks up to date on all ranks, and tells the reporters. */
sl_status sli_run_refresh(sli_run *run);

/* Calls a function of each reporter of this rank that has it, until the first error. */
#define SLI_CALL_REPORTERS(run, event, ...)                                                        \
    for (int i = 0; i < (run)->reporter_count && !(run)->replica.is_silent; i++) {                 \
        const sl_reporter *reporter = &(run)->reporters[i];                                        \
        if (reporter->rank == (run)->replica.rank && reporter->event)                              \
            SL_TRY(reporter->event(reporter->context, __VA_ARGS__));                               \
    }

/* What the ranks measured of a step (timelines.c). All ranks call these, in this order. */
sl_status sli_timelines_measure(sli_run *run);      /* of an epoch's last full step */
sl_status sli_timelines_report_step(sli_run *run);  /* about once a second, where it is asked for */
sl_status sli_timelines_report_epoch(sli_run *run); /* after the epoch: what was measured */
void sli_timelines_clear(sli_run *run);

/* Calls each of the rank's reporters. Stops at the first one's error, and returns it. */
sl_status sli_report_checkpoint(const sli_run *run, const sl_checkpoint_event *event);

/* "1.25 GiB", "3.50 MiB": the amount for an error's text (plan.c). Returns `text`. */
enum { SLI_BYTES_TEXT_SIZE = 24 };
const char *sli_bytes_text(int64_t bytes, char text[SLI_BYTES_TEXT_SIZE]);

/* The names of the kinds of masks and activations, then NULL (options.c). */
extern const char *const sli_mask_names[];
extern const char *const sli_activation_names[];

#endif
