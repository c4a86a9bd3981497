/* Training runs: from options to a trained, evaluated and saved language model.
 *
 * The library prints nothing. What happens is told to reporters: the program's progress display is
 * one, the JSON run log another. NULL is refused (SL_ERR_INVALID names the argument) unless a
 * comment allows it. */
#ifndef SLUICE_TRAIN_H
#define SLUICE_TRAIN_H

#include "sluice/ddp.h"
#include "sluice/model.h"
#include "sluice/optim.h"
#include "sluice/option.h"
#include "sluice/pipe.h"
#include "sluice/text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_MAX_STAGES = 64, SL_MAX_REPLICAS = 1024 };
#define SL_LR_DEFAULT (-1.0) /* see sl_train_options_lr */

/* ---- Options ---------------------------------------------------------------------------- */

typedef enum sl_balance_kind {
    SL_BALANCE_LAYERS,     /* the tutorials' rule: SL_PARTITION_LAYERS */
    SL_BALANCE_PARAMETERS, /* SL_PARTITION_PARAMETERS */
    SL_BALANCE_EXPLICIT    /* `balance` */
} sl_balance_kind;

/* What a run's owner wants of it. STOP without a checkpoint directory saves the weights. */
typedef enum sl_train_request {
    SL_TRAIN_GO_ON,
    SL_TRAIN_SAVE, /* save a checkpoint and go on */
    SL_TRAIN_STOP  /* save a checkpoint and end the run */
} sl_train_request;

/* When checkpoints (sluice/checkpoint.h) are saved, and from which one a run starts. They lie in
 * one directory: step-00000040, …, and best, the model of the best validation alone; beside them
 * progress, the number of the last step that was done. */
typedef struct sl_save_options {
    const char *directory; /* made where it is not there; NULL: no checkpoints */
    int64_t every_steps;   /* 0: not by steps */
    bool every_epoch;      /* after each validation */
    int keep;              /* how many checkpoints to keep (the newest); 0: all */
    uint64_t shard_bytes;  /* as in sl_checkpoint_contents */
    const char *resume;    /* a checkpoint, or a directory of them, of which the newest whole one is
                              taken; NULL: none */
    bool resume_if_any;    /* `resume` is a directory of them, and without any it is no error: the
                              run starts */
    /* (optional) Asked after every step and validation, and before each block of a validation and
     * of the test, on each replica's thread: what one replica is told to do, all do. A validation
     * that is stopped is done again by the run that goes on. Without a directory there are no
     * checkpoints, and a run that is stopped saves its weights as sl_train_options.save says. */
    sl_train_request (*request)(void *context);
    /* (optional) Told when the writing of a checkpoint or of weights begins, and when it has ended;
     * on any thread, and several may be under way. */
    void (*saving)(void *context, bool begins);
    void *context; /* of both */
} sl_save_options;

/* Everything that decides a run. Strings are borrowed. Where a comment gives no range, what is
 * impossible is refused by sl_train_options_check. */
typedef struct sl_train_options {
    const char *preset; /* the name it came from, for the log; NULL: none */

    const char *data;                          /* directory */
    int64_t bptt, batch_size, eval_batch_size; /* batch_size: rows of each shard of a batch */
    int64_t max_batches, eval_max_batches;     /* per epoch and per evaluation; 0: all */

    sl_model_options model; /* ntokens comes from the data */

    int replicas;        /* of the whole pipeline, which divide a batch's rows among them; 0: as
                            many as `devices` has parts */
    int shards;          /* that the training text is cut into (sl_batches_shards): a batch has
                            batch_size rows of each. 0: as many as replicas, one for each. A run
                            that resumes has its checkpoint's, whatever this says */
    int local_replicas;  /* of them, those on this host, which share `devices`; 0: all */
    bool zero;           /* the optimizer's state is sharded over replicas: see sluice/zero.h */
    int stages;          /* of each replica; 0: as many as `devices` names for it */
    const char *devices; /* one a stage: "cpu:0,cpu:1,cpu:2,cpu:3" is split evenly over the host's
                            replicas, "cpu:0,cpu:1;cpu:2,cpu:3" has a part for each; NULL: cpu:0,
                            cpu:1, … */
    sl_balance_kind balance_kind;
    int balance[SL_MAX_STAGES]; /* [balance_count] modules per stage */
    int balance_count;
    int chunks;
    sl_recompute recompute;
    sl_schedule_kind schedule;

    int epochs;
    sl_optimizer_options optimizer;
    sl_lr_schedule lr; /* total_steps comes from the data; lr may be SL_LR_DEFAULT */
    double clip;       /* 0: no clipping */
    uint64_t seed;
    bool allow_nan;
    bool force; /* a run whose plan needs more memory than there is begins all the same */

    const char *init; /* weights to start from, as sl_weights_load takes them; NULL: random. A
                         vocabulary beside them replaces the data's. Without one, the data's must
                         have the checksum that the weights state, if any */
    const char *save; /* safetensors to write; NULL: none */
    sl_save_options checkpoints;

    /* The best perplexity that any model can reach on the text; 0: not known. It changes nothing,
     * and is given back with the result. */
    double best_possible_perplexity;
} sl_train_options;

/* emsize 200, nhid 200, 2 layers, 2 heads, dropout 0.2, causal, bptt 35, batch 20 and 10, one
 * stage, one chunk, except_last, gpipe, 3 epochs, SGD with lr SL_LR_DEFAULT (5.0: read it with
 * sl_train_options_lr) times 0.95 an epoch, clip 0.5, seed 1: the preset transformer-tutorial. */
void sl_train_options_default(sl_train_options *options);

/* Overwrites all but `data`, `init`, `save` and `checkpoints` with a preset's numbers.
 * Errors: SL_ERR_NOT_FOUND, whose text lists the presets. */
sl_status sl_train_options_preset(const char *name, sl_train_options *options);

/* The presets' names, then NULL. */
extern const char *const sl_preset_names[];

/* Replicas of the pipeline: `replicas`, or where that is 0 as many as `devices` has groups. */
int sl_train_options_replicas(const sl_train_options *options);

/* The learning rate that a run begins with: lr.lr, or where that is SL_LR_DEFAULT the optimizer's
 * default, 5.0 for SGD, as in the tutorials, and 0.001 for AdamW, as in PyTorch. A run that resumes
 * with SL_LR_DEFAULT keeps its checkpoint's rate. */
double sl_train_options_lr(const sl_train_options *options);

/* The options as rows (sluice/option.h) over sl_train_options, each array ending with a row without
 * a name: those that the plan of a run depends on (model, pipeline, batches), and the others. */
extern const sl_option sl_plan_option_rows[], sl_train_option_rows[];

/* Row `index` of both arrays, the first one's before the second's; NULL after the last. */
const sl_option *sl_train_option_row(int index);

/* Refuses what no data could make possible, in one sentence. */
sl_status sl_train_options_check(const sl_train_options *options);

/* ---- What a run will need --------------------------------------------------------------- */

typedef struct sl_stage_plan {
    char device[32];  /* its name */
    int first, count; /* modules */
    int64_t parameter_elements;
    int64_t parameter_bytes, gradient_bytes, optimizer_bytes;
    int64_t activation_bytes; /* peak, from the schedule's table and what modules save; gradients
                                 that may have to wait for the stage count */
    int64_t workspace_bytes; /* most that lives inside one module or the loss, of one micro-batch */
    int64_t best_bytes;      /* of the copy of the best parameters, which each process has once, on
                                its first replica's devices; 0 for a single epoch */
} sl_stage_plan;

/* One replica's. */
typedef struct sl_plan {
    int64_t total_parameters; /* of the model, which every replica has */
    int stages;
    sl_stage_plan stage[SL_MAX_STAGES];
} sl_plan;

/* All of this host's replicas together. */
typedef struct sl_host_plan {
    int64_t parameter_bytes, gradient_bytes, optimizer_bytes;
    int64_t activation_bytes; /* with workspace */
    int64_t best_bytes;       /* one copy a process */
    int64_t saved_bytes;      /* the copies that are made for writing checkpoints */
    int64_t process_bytes;    /* what the processes hold already: the program and its text */
    int64_t total_bytes;
} sl_host_plan;

/* Computes it from shapes alone; nothing is allocated on any device. `model` is of these options;
 * `replica` is one of this host's. Replicas differ in their devices alone. */
sl_status sl_plan_create(const sl_train_options *options, const sl_module *model, int replica,
                         sl_plan *out);

/* The same for the host's replicas, which are threads of one process or, `processes` above 1, a
 * process each; `first`: the run's first replica is among them, which writes checkpoints. */
sl_status sl_plan_host(const sl_train_options *options, const sl_module *model, int processes,
                       bool first, sl_host_plan *out);

/* The bytes of memory and swap that a process can have here: the machine's, or less where a control
 * group limits it. What other processes hold is not subtracted. */
uint64_t sl_usable_memory(void);

/* SL_ERR_MEMORY where the host's plan needs more than `usable_bytes`. The text has both, and each
 * change of one option that would make it fit. */
sl_status sl_plan_check_memory(const sl_train_options *options, const sl_module *model,
                               int processes, bool first, uint64_t usable_bytes);

/* ---- Running ---------------------------------------------------------------------------- */

/* What the device of a replica's stage holds, and held at its peak. */
typedef struct sl_stage_memory {
    int rank, stage;
    char device[32]; /* its name */
    sl_memory_stats stats;
} sl_stage_memory;

typedef struct sl_run_info {
    const sl_train_options *options;
    const sl_corpus *corpus;
    const sl_pipe *pipe; /* this replica's */
    const sl_ddp *ddp;   /* what joins it to the others; NULL: there are none */
    int replica, replicas;
    int64_t total_parameters;
    int64_t batches_per_epoch;
    bool oversubscribed; /* devices share cores */
    /* [replicas * stages], by rank and stage: all of the run's, on every replica; of the time of
     * the last `evaluated`. */
    const sl_stage_memory *memory;
} sl_run_info;

typedef struct sl_step_info {
    int64_t epoch, batch, batches_per_epoch; /* from 1 */
    int64_t step;                            /* from 1, over all epochs */
    int64_t tokens;                          /* of all replicas */
    double loss;                             /* the mean over them: the same on each */
    double replica_loss;                     /* of this one's rows */
    double grad_norm;                        /* of the averaged gradient: the same on each */
    double lr, seconds;
} sl_step_info;

/* An evaluation under way. */
typedef struct sl_evaluating_info {
    sl_split split;
    int64_t epoch, batch, batches; /* `batch` of `batches` is done, from 1 */
} sl_evaluating_info;

typedef struct sl_eval_info {
    sl_split split;
    int64_t epoch, tokens;
    double loss, perplexity, seconds;
    double epoch_seconds; /* of a validation: since the epoch's start */
    bool best;            /* the best validation so far: its parameters were copied */
} sl_eval_info;

typedef struct sl_run_result {
    double test_loss, test_perplexity, best_valid_loss, seconds;
    double best_possible_perplexity; /* the options' */
    int64_t steps;
    bool stopped; /* by request, before its end: there are no test's results */
    bool saved; /* parameters are in options->save: the best, or where a run without checkpoints was
                   stopped before the first validation, the last */
    int64_t saved_step; /* those after this step */
} sl_run_result;

typedef enum sl_checkpoint_event_kind {
    SL_CHECKPOINT_SKIPPED, /* a newer one that is damaged, or a file with a checkpoint's name, for
                              `reason` */
    SL_CHECKPOINT_RESUMED, /* the run goes on from it */
    SL_CHECKPOINT_SAVED,
    SL_CHECKPOINT_FAILED, /* could not be saved, for `reason`; the run goes on */
    SL_WEIGHTS_FAILED     /* no checkpoint: the best parameters so far could not be saved as
                             options->save, for `reason`; the run goes on */
} sl_checkpoint_event_kind;

typedef struct sl_checkpoint_event {
    sl_checkpoint_event_kind kind;
    const char *path;
    int64_t step;         /* after which it was made, or the parameters were so; SKIPPED: 0 */
    int64_t lost_steps;   /* RESUMED, the newest one of a directory: the steps after it that the run
                             had done before it ended, and that are done again */
    double copy_seconds;  /* SAVED: that the run waited for the copy of its state */
    double write_seconds; /* SAVED: that writing the copy took, behind the run */
    const char *reason;
} sl_checkpoint_event;

/* What one replica reports. Each function is optional. They are called on the replica's thread; on
 * the caller's where there is one replica, and before `started`. An error of theirs ends
 * the run. */
typedef struct sl_reporter {
    void *context;
    sl_status (*started)(void *context, const sl_run_info *info);
    sl_status (*step)(void *context, const sl_step_info *info);
    sl_status (*evaluating)(void *context, const sl_evaluating_info *info);
    sl_status (*evaluated)(void *context, const sl_eval_info *info);
    sl_status (*finished)(void *context, const sl_run_info *info, const sl_run_result *result);
    int replica; /* whose reports these are */
    /* The first replica's alone; SKIPPED and RESUMED come before `started`. */
    sl_status (*checkpoint)(void *context, const sl_checkpoint_event *event);
} sl_reporter;

/* Loads the data, trains, validates after every epoch, keeps a real copy of the best parameters,
 * tests with those, and saves them where options->save says: after every validation that is the
 * best so far. Where that fails it is reported (SL_WEIGHTS_FAILED), the run goes on, and tries
 * again at its end; when that fails too, it is the run's error, after `finished`. A loss or
 * gradient norm that is not finite ends the run with SL_ERR_NUMERIC, unless allow_nan. A run whose
 * plan does not fit into memory (sl_plan_check_memory) is refused before it begins, unless force.
 *
 * Several replicas are threads of this process. Each trains on its shard of the text
 * (sl_batches_shard) with averaged gradients (sluice/ddp.h). Where there are more or fewer shards
 * than replicas, a batch's rows, shard after shard, are divided as evenly as possible: a replica
 * has a run of them, the first ones one row more, in micro-batches that are neither larger nor
 * fewer than those of a shard would be; gradients and losses are means over all rows, and equal to
 * rounding whatever the replicas. Evaluations are of the whole split, the replicas sharing its
 * blocks out, and give all of them the bits that one alone would get. The first one saves what all
 * have alike, and each its slices of a sharded optimizer. When one fails, all end with its error,
 * "rank R: …".
 *
 * A run that resumes goes on bit for bit as it would have without the interruption, dropout and the
 * best parameters included; `finished` and the test see no difference. The pipeline may be cut
 * differently: stages, balance, devices, schedule, zero. With other replicas than the checkpoint's
 * run had, it keeps that run's shards, and goes on equal to rounding. Options that decide numbers
 * must be those of the checkpoint: SL_ERR_INVALID names each one that is not. Checkpoints are
 * written by a thread of their own from a copy; a save that comes due while it is writing waits for
 * it. */
sl_status sl_train_run(const sl_train_options *options, const sl_reporter *reporters,
                       int reporter_count, sl_run_result *result);

/* The same for one replica, called by each rank of `group` (borrowed; broken by an error), which
 * may be processes on several machines. options->replicas is the group's size, or 0;
 * `local_replica` counts this host's, which share its devices. */
sl_status sl_train_run_rank(const sl_train_options *options, sl_group *group, int local_replica,
                            const sl_reporter *reporters, int reporter_count,
                            sl_run_result *result);

/* Refuses `path`, which the caller is about to write, where a run of these options reads the file
 * (the texts in `data`, the weights in `init` and their vocabulary) or writes it (`save` and the
 * vocabulary beside it); sl_train_run itself refuses a `save` that is one of the texts. What cannot
 * be read is not refused here. Errors: SL_ERR_INVALID, SL_ERR_MEMORY. */
sl_status sl_train_check_output(const sl_train_options *options, const char *path);

/* The paths of the checkpoints `best` and the newest in a run's directory: malloc'ed, NULL where
 * there is none, or no such directory. Errors: SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_train_find_checkpoints(const char *directory, char **best, char **newest);

/* The run as JSON lines: one `run` record, a `step` a batch, `eval`, `memory` (for every replica's
 * stages, after every evaluation), `end`. The file is opened at once, and emptied when the run
 * begins; where none begins, an old log stays and no new one is left.
 *
 * Where records of a run that is under way cannot be written to a file (the disk is full), `failed`
 * is told why at the first one, once, and the run goes on; when there is room again, a `gap` record
 * says how many are missing. Without `failed` that is the run's error. `context` is passed on to
 * it. */
typedef struct sl_run_log sl_run_log;
typedef void sl_run_log_failed(void *context, const char *reason);
sl_status sl_run_log_create(const char *path, sl_run_log_failed *failed, void *context,
                            sl_run_log **out);
void sl_run_log_destroy(sl_run_log **log);
sl_reporter sl_run_log_reporter(sl_run_log *log);

/* ---- Weights ---------------------------------------------------------------------------- */

/* Writes all parameters and buffers under PyTorch's state_dict names, the model's options in the
 * file's metadata, and the vocabulary (NULL: none) beside it as sl_weights_vocab_path says, with
 * its checksum in the metadata. Whenever the process or the machine dies, sl_weights_vocab finds
 * the vocabulary of the weights that are then at `path`. */
sl_status sl_weights_save(const sl_pipe *pipe, const sl_model_options *model, const sl_vocab *vocab,
                          const char *path);

/* Reads them, from a file or, as sl_safetensors_load, from an index or a directory. Every name must
 * be there with its shape, and no other; buffers may be missing. What is wrong is found before any
 * value changes. */
sl_status sl_weights_load(sl_pipe *pipe, const char *path);

/* The model that such weights were saved from. SL_ERR_FORMAT where its metadata do not say. */
sl_status sl_weights_model(const char *path, sl_model_options *out);

/* Where the vocabulary lies: "dir/model.safetensors", "dir/model.safetensors.index.json" and the
 * directory "dir" -> "dir/model.vocab.txt"; any other name, "dir/model" -> "dir/model.vocab".
 * malloc'ed. */
sl_status sl_weights_vocab_path(const char *path, char **out);

/* The vocabulary beside weights, which may be a file, an index or a directory: the one whose
 * checksum they state in their metadata, or, of a checkpoint, in its state.json. Searched in this
 * order:
 * 1. sl_weights_vocab_path's name with ".new" added (an interrupted save),
 * 2. sl_weights_vocab_path's name,
 * 3. PATH.vocab.txt.
 * Weights without a checksum skip 1 and have the first of the others. NULL where there is none.
 * Errors: SL_ERR_INVALID where only vocabularies of other weights are there, those of sl_vocab_load
 * and of opening the weights. */
sl_status sl_weights_vocab(const char *path, sl_vocab **out);

/* ---- Using a trained model -------------------------------------------------------------- */

typedef struct sl_evaluate_options {
    int64_t batch_size, bptt;
    int64_t max_batches; /* 0: all */
    /* (optional) Called after each batch, from 1; an error of its own ends the evaluation. */
    sl_status (*progress)(void *context, int64_t batch, int64_t batches);
    void *context;
} sl_evaluate_options;

typedef struct sl_evaluation {
    double loss, perplexity; /* the true mean per token, and exp of it */
    int64_t tokens;          /* scored */
} sl_evaluation;

/* Scores every token of a split's blocks but each column's first against those before it in its
 * block, through the pipe in evaluation mode. Errors: as sl_batchify and sl_pipe_evaluate. */
sl_status sl_evaluate_tokens(sl_pipe *pipe, const sl_tokens *tokens,
                             const sl_evaluate_options *options, sl_evaluation *out);

typedef struct sl_generate_options {
    int64_t context;    /* tokens of the past that the model sees; 0: 35 */
    double temperature; /* 0: greedy */
    int top_k;          /* 0: all */
    uint64_t seed;
} sl_generate_options;

/* Appends `count` tokens to ids[0 … *length - 1] (room for *length + count). <unk> is never drawn
 * unless nothing else is possible. The draws are functions of (seed, position). */
sl_status sl_generate(sl_pipe *pipe, const sl_generate_options *options, int32_t *ids,
                      int64_t *length, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
