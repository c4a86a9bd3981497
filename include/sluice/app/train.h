/* Training runs: from options to a trained, evaluated and saved language model.
 *
 *     options + launch + checkpoint → plan → run
 *
 * Options are what the user wants, the launch is which processes there are, and a checkpoint is
 * what a run that resumes must keep. The plan is what follows from them, decided once: nothing
 * changes it, or the options, afterwards.
 *
 * The library prints nothing. A run tells reporters what happens (sluice/app/report.h): the
 * program's progress display is one, the JSON run log another. Every run begins with a preset or
 * with sl_train_options_default:
 *
 *     sl_train_options options = {0};
 *     sl_train_options_preset("small", &options);
 *     options.data = "book.txt";
 *     sl_train_run(&options, NULL, 0, &result);
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_APP_TRAIN_H
#define SLUICE_APP_TRAIN_H

#include "sluice/app/option.h"
#include "sluice/app/planner.h"
#include "sluice/app/report.h"
#include "sluice/app/text.h"
#include "sluice/ddp.h"
#include "sluice/model.h"
#include "sluice/optim.h"
#include "sluice/pipe.h"
#include "sluice/profile.h"

SL_API_BEGIN

#define SL_LR_DEFAULT (-1.0) /* see sl_train_options.lr */

/* ---- Options ---------------------------------------------------------------------------- */

typedef enum sl_balance_kind {
    SL_BALANCE_LAYERS,  /* the tutorials' rule: SL_PARTITION_LAYERS */
    SL_BALANCE_AUTO,    /* a run profiles its modules first, and has the cut that
                           sl_partition_by_time chooses by these times for its table and the host's
                           memory. SL_PARTITION_PARAMETERS where none fits, and in a plan that
                           profiles nothing */
    SL_BALANCE_EXPLICIT /* `balance` */
} sl_balance_kind;

/* What the caller asks of a run under way; flags, which can be combined. */
typedef enum sl_train_request {
    SL_TRAIN_GO_ON = 0,
    SL_TRAIN_REFRESH = 1, /* bring sl_run_info.ranks up to date on every rank */
    SL_TRAIN_SAVE = 2,    /* save a checkpoint and go on */
    SL_TRAIN_STOP = 4 /* save a checkpoint, or without a directory for them the weights, and end */
} sl_train_request;

/* The type of the numbers in a saved model's files. */
typedef enum sl_saved_type {
    SL_SAVED_F32,
    SL_SAVED_BF16 /* each rounded to the nearest */
} sl_saved_type;

extern const char *const sl_saved_type_names[]; /* "f32", "bf16", NULL */

/* When a run saves checkpoints (sluice/checkpoint.h), and from which one it resumes. `directory`
 * gets a checkpoint step-00000040 (for example) for each save; a checkpoint best, with the model of
 * the best validation alone; and the file progress, with the number of the last step. */
typedef struct sl_save_options {
    const char *directory; /* made where it does not exist; NULL: no checkpoints */
    int64_t every_steps;   /* 0: not by steps */
    bool every_epoch;      /* after the validation that ends an epoch */
    int keep;              /* how many of the newest checkpoints to keep; 0: all */
    uint64_t shard_bytes;  /* as in sl_checkpoint_contents */
    const char *resume;    /* a checkpoint, or a directory of checkpoints, of which the newest whole
                              one is used; "auto": `directory`, or a new run where that has none;
                              NULL: none. A job that was started again goes on from what it has
                              saved in `directory` (sl_train_launch.restarts) */
    const char *settings; /* (optional) what the caller wants to find in the checkpoints again, with
                             sl_train_find_settings: the text of a JSON object */
    /* (optional) Called after every step and validation, and before each block of a validation and
     * of the test, on each rank's thread. Returns flags of sl_train_request; all ranks do what any
     * of them is asked for. A run that resumes repeats a validation that was stopped. */
    unsigned (*request)(void *context);
    /* (optional) Called when the writing of a checkpoint or of weights begins, and when it has
     * ended; on any thread, and several may be under way. */
    void (*saving)(void *context, bool begins);
    void *context; /* of both */
} sl_save_options;

/* Rows of a batch. A batch for training has batch_size rows of each shard, one shard after the
 * other; all rows asked for are of one shard. */
typedef struct sl_train_rows {
    sl_split split;
    int64_t epoch;        /* of the training, from 0; 0 for other splits */
    int64_t batch;        /* from 0 */
    int64_t batch_rows;   /* rows of the whole batch, as count_batches got them */
    int64_t first, count; /* load rows first ... first + count - 1 */
    int64_t shuffled; /* rows of all batches of the split, where sl_train_options.shuffle gives them
                         another order; 0: none */
    uint64_t seed;    /* of that order */
} sl_train_rows;

/* Which sample of the split belongs into row `first` + `row` of the batch: batch * batch_rows +
 * first + row, or where rows are shuffled the one that sl_shuffled has at that place. */
int64_t sl_train_sample(const sl_train_rows *rows, int64_t row);

/* A model of one's own, its loss and its data, for sl_train_run. Each replica calls the functions
 * on its own thread, several at once; an error that one returns ends the run. If their
 * results depend on the arguments alone, the run's are bit-identical on any number of ranks and
 * after it resumes. What they create is NULL before. */
typedef struct sl_train_task {
    void *context; /* of all functions; borrowed */
    /* Creates a model, a sequence of modules (sl_sequential_append), and its loss, of which the
     * caller becomes the owner, also after an error. */
    sl_status (*create_model)(void *context, sl_module **model, sl_loss **loss);
    /* How many batches of `rows` rows a split has. 0 of SL_SPLIT_VALID or SL_SPLIT_TEST: the run
     * does not validate or test. */
    sl_status (*count_batches)(void *context, sl_split split, int64_t rows, int64_t *batches);
    /* Creates the input and the targets of some rows of a batch, each with the rows as its first
     * dimension, on these devices; the caller becomes their owner, also after an error. */
    sl_status (*load_rows)(void *context, const sl_train_rows *rows, sl_device *input_device,
                           sl_device *target_device, sl_tensor **input, sl_tensor **targets);
    /* (optional) How many terms of the loss some rows of a batch for training have; no rank needs
     * to have loaded them. With it a step's gradient is that of the mean over all terms of all
     * shards, however many each has, and a step without any term changes nothing; without it shards
     * count alike. */
    sl_status (*count_terms)(void *context, const sl_train_rows *rows, int64_t *terms);
    /* (optional) Identifies each split's data, for example by a checksum. A run resumes only where
     * they are the same. */
    const char *data[SL_SPLITS];
} sl_train_task;

/* Blocks into which a run cuts its vocabulary (split_vocabulary). */
enum { SL_VOCABULARY_BLOCKS = 64 };

/* All options of a run. Begin with sl_train_options_default or sl_train_options_preset, then change
 * fields: a zero is not the default of every field. Strings and arrays are borrowed.
 * sl_train_options_check knows the ranges. */
typedef struct sl_train_options {
    const char *preset; /* the preset's name, for the log; NULL: none */

    /* What is trained; borrowed. NULL: the language model of `model`, on the text in `data`.
     * With a task, `model`, `data` and `bptt` are ignored and memory is not planned,
     * SL_BALANCE_LAYERS cuts by SL_PARTITION_PARAMETERS, and what `init` and `save` name has
     * tensors alone. */
    const sl_train_task *task;

    const char *data;   /* the text: a directory or a file; or sources of rows, which are mixed by
                           weights (sl_sources_parse; sluice/app/text.h) */
    int64_t bptt;       /* tokens of each row in a block */
    int64_t batch_size; /* rows of each shard in a training batch */
    int64_t eval_batch_size;
    int64_t max_batches, eval_max_batches; /* at most, in an epoch and in an evaluation; 0: all */
    int64_t eval_every;   /* steps between validations within an epoch; 0: only after epochs */
    int64_t sample_every; /* steps after which the first replica goes on with `sample_prompt`, by
                             random draws of `seed`, and tells the reporters; 0: never. It changes
                             no number of the run */
    const char *sample_prompt; /* a text, which may hold special tokens of a BPE; borrowed */
    int64_t sample_tokens;     /* that are added, at most; 0: 50 */
    bool shuffle; /* each epoch has the rows of all training batches in an order of its own, from
                     `seed` and the epoch (sl_train_sample). The text is then cut into whole rows of
                     bptt tokens; what is left of each column is not trained */
    bool group_by_length; /* of rows of JSON lines: a batch has rows of similar lengths, so that
                             less of it is padding. The batches of an epoch are divided into groups
                             of a quarter of them, at most 50, whose rows are sorted, the longest
                             first */
    bool pack; /* rows of JSON lines for training: as many as fit go into one of `bptt` tokens, each
                  a document (SL_DOCUMENTS_INPUT); a longer one is cut into several */
    sl_token_type token_type; /* of token files without a header */

    sl_model_options model; /* ntokens comes from the data */

    int replicas; /* of the whole pipeline, at most one for each shard; 0: as many as processes,
                     or in one process one for each list in `devices` */
    int shards;   /* of the training text (sl_batches_shard): a batch has batch_size rows of
                     each. 0: those of the checkpoint, or one for each replica of the job's first
                     attempt */
    bool near_replicas;    /* with several processes for each replica, those that follow each other
                              are replicas of a stage; false: pipeline ranks of a replica */
    bool zero;             /* shard the optimizer's state over replicas */
    bool split_vocabulary; /* the head's classes over all pipeline ranks, in SL_VOCABULARY_BLOCKS
                              blocks (head_blocks of sl_pipe_options) */
    int pipeline_ranks;    /* pipeline ranks of each replica; 0: as many as `balance` says, or as it
                              has devices */
    const char *devices;   /* one a pipeline rank of this host: "cpu:0,cpu:1,cpu:2,cpu:3" is divided
                              evenly among its ranks, "cpu:0,cpu:1;cpu:2,cpu:3" has a list for each;
                              NULL: cpu:0, cpu:1 and so on, or cpu for every rank where a short
                              profile finds that faster (docs/pipeline.md) */
    sl_balance_kind balance_kind;
    int balance[SL_MAX_STAGES]; /* [balance_count] modules per stage */
    int balance_count;
    int chunks;     /* micro-batches of an accumulation step; 0: the table's, else the
                       checkpoint's, else 1 for one pipeline rank or 4 for each, as far as it has
                       rows (batch_size / accumulate) */
    int accumulate; /* accumulation steps of a batch; 0: 1 */
    int slices;     /* of a micro-batch, along its rows' tokens (slices of sl_pipe_options); 0: the
                       table's, else 1 */
    int virtual_stages; /* stages of a pipeline rank; 0: the table's or the schedule's own */
    sl_recompute recompute;
    const char *schedule; /* one of sl_schedule_names, or what `table` is called; borrowed; NULL:
                             the first */
    const sl_schedule *table; /* the order of computation, borrowed; its ranks and its chunks are
                                 the run's; NULL: the schedule of that name */
    const char *placement;    /* the rank of each stage, as sl_placement_parse takes it; borrowed;
                                 NULL: the table's or the schedule's own */

    sl_precision precision;      /* of products and activations; weights are f32 in all */
    bool batch_invariant;        /* sl_device_set_batch_invariant, for all devices */
    sl_precision comm_precision; /* of gradients that replicas exchange (sl_ddp_options); with more
                                    shards than replicas, sums of shards' gradients stay f32 */

    bool nccl; /* replicas' CUDA devices exchange by NCCL (sl_ddp_options) */

    int epochs;
    sl_optimizer_options optimizer;
    sl_lr_schedule lr; /* total_steps comes from the data; lr may be SL_LR_DEFAULT: the
                          checkpoint's, else 5.0 for SGD, as in the tutorials, and 0.001 for AdamW,
                          as in PyTorch. A task has no default rate for SGD */
    double clip;       /* largest gradient norm; 0: no clipping */
    uint64_t seed;
    bool allow_nan; /* go on after a loss or gradient norm that is not finite */
    bool force;     /* begin although the plan needs more memory than there is */
    bool partial;   /* load of `init` what fits, as sl_saved_model_load does, and report the rest */
    bool mask_prompt; /* of lines of text: only completions, and what the assistant says, have a
                         loss */

    const char *init; /* a model to start from, as for sl_saved_model_open; NULL: random values. Its
                         vocabulary, if it has one, replaces the data's */
    const char *tokenizer, *splitter; /* (optional) the vocabulary instead of that of the model or
                                         the data, as for sl_vocab_open */
    const char *adapter; /* the directory of an adapter to start from, whose options `model.lora`
                            has (sl_adapter_options); NULL: new ones, where there are some */
    const char *save;    /* the directory to save the model or its adapter to (sl_model_save); NULL:
                            none */
    sl_saved_type save_type; /* of that directory's numbers */
    sl_save_options checkpoints;

    double planned_step_seconds; /* of a plan that was found (sluice/app/plan.h), for reporters;
                                    0: none */
    const char *planned_device;  /* "cpu" or "cuda": the kind of devices that plan is for; a run on
                                    another kind is refused without `force`; NULL: not checked */

    bool report_timelines; /* also call sl_reporter.pipeline within epochs: at most about once a
                              second, and never sooner than (pipeline ranks of all replicas +
                              actions / 16) steps after the last call. The same on all ranks */
    bool measure_peak;     /* measure what the devices can do before the run, for about 0.05 s:
                              sl_run_info.peak_flops_per_s. The same on all ranks */
} sl_train_options;

/* No preset: AdamW with SL_LR_DEFAULT (0.001) all the time, no weight decay, no clipping; 3 epochs,
 * seed 1; one stage, chunks 0, except_last, the first schedule; and, for a language model, emsize
 * 200, nhid 200, 2 layers, 2 heads, dropout 0.2, causal, bptt 35, batches of 20 and 10 rows. */
void sl_train_options_default(sl_train_options *options);

/* Sets all options but `data`, `init`, `partial`, `save` and `checkpoints` to a preset's. Errors:
 * SL_ERR_NOT_FOUND, whose text lists the presets. */
sl_status sl_train_options_preset(const char *name, sl_train_options *options);

/* The presets' names, then NULL. */
extern const char *const sl_preset_names[];

/* The options as rows (sluice/app/option.h) of fields of sl_train_options; each array ends with a
 * row without a name. The plan of a run depends on the first array: model, pipeline, batches. */
extern const sl_option sl_plan_option_rows[], sl_train_option_rows[];

/* Row `index` of both arrays, one behind the other; NULL after the last. */
const sl_option *sl_train_option_row(int index);

/* Refuses options that are invalid for every data directory, in one process. Errors:
 * SL_ERR_INVALID. */
sl_status sl_train_options_check(const sl_train_options *options);

/* ---- The plan of a run ------------------------------------------------------------------ */

/* Which processes a run has. Zeros: this one, whose threads are the replicas. */
typedef struct sl_train_launch {
    int ranks;       /* processes, the ranks of the run's group; 0: the group's size, or without a
                        group all replicas are threads of this process */
    int rank;        /* of this process; that of the group, where there is one */
    int local_ranks; /* those on this host, which have its `devices`, consecutive; 0: all */
    int local_rank;  /* this one's number among them */
    int first_ranks; /* that the job had when it began; 0: as many as now */
    int restarts;    /* how often a launcher has started the job again */
    const char *job; /* (optional) the launcher's name of the job, kept in checkpoints; borrowed */
    bool launched;   /* a launcher has started this process, also as the only one */
    bool replicas_open; /* options->replicas is a preset's, no wish: there may be others */
} sl_train_launch;

/* Who has decided something about a run. */
typedef enum sl_decider {
    SL_BY_DEFAULT,    /* nobody: it follows from the rest */
    SL_BY_OPTIONS,    /* sl_train_options */
    SL_BY_LAUNCH,     /* the processes that there are, or that the job had when it began */
    SL_BY_CHECKPOINT, /* the run that is resumed */
    SL_BY_SEARCH,     /* the best layout for fewer processes than the job had when it began */
    SL_BY_PROFILE     /* short measurements */
} sl_decider;

/* What a run is. R replicas have P pipeline ranks each, with the same number of stages each. The
 * run's ranks are R threads or processes, each a replica, or more processes: two for each replica
 * have P / 2 pipeline ranks each, and so on.
 *
 *     R = 2, P = 4      2 ranks                4 ranks                  8 ranks
 *     replica 0         rank 0: 0 1 2 3        rank 0: 0 1              rank 0: 0
 *                                              rank 1: 2 3              rank 1: 1   …
 *     replica 1         rank 1: 0 1 2 3        rank 2: 0 1   …          rank 4: 0   …
 *
 * With near_replicas and 4 ranks, ranks 0 and 1 have pipeline ranks 0 and 1 of the replicas 0 and
 * 1, ranks 2 and 3 have pipeline ranks 2 and 3. */
typedef struct sl_plan {
    sl_train_options options; /* the caller's, with all that these leave open: replicas,
                                 pipeline_ranks, virtual_stages, shards, chunks, accumulate, … */
    struct {
        sl_decider replicas, pipeline_ranks, balance, placement, shards, chunks, devices, lr;
    } by;

    int ranks, ranks_per_replica;
    bool processes;             /* the ranks are; else they are threads of one process */
    int first_rank, ranks_here; /* of this host */
    int pipeline_ranks_each;    /* of a rank */
    int stages;                 /* of a replica */
    int micros;              /* micro-batches of a shard's whole batch, in all accumulation steps */
    int64_t micro_rows;      /* rows of each but the last, which may have fewer */
    sl_schedule *table;      /* of a whole accumulation step, with its recomputations */
    char *device_names;      /* this host's, separated by commas */
    sl_device_plan *devices; /* [replicas * pipeline_ranks], by replica and pipeline rank */

    /* What follows from the model; 0 where the plan was made without one. */
    sl_stage_plan stage[SL_MAX_STAGES]; /* [stages]; replicas differ in their devices alone */
    int64_t total_parameters;
    sl_host_plan host;                  /* this one */
    double profiled_seconds, one_stage; /* as in sl_run_info */

    /* The checkpoint that the run goes on from; NULL: none. Known to rank 0. */
    const char *resumes;
    int64_t resumes_step;
    int restart; /* of the job, by which the run goes on by itself; 0: none */
} sl_plan;

/* Plans a run that begins anew, from shapes alone, without memory of any device. `launch` NULL:
 * {0}. `model` was created from options->model; NULL: its memory is not planned, nor where it is
 * cut. No layout is searched for a job that has lost processes (sl_run_create): the plan is that of
 * the layout that was asked for, in one process.
 *
 * With `profiles` (optional, [modules], of a model that has no parameters in a parameter set) it
 * times the modules: seconds of one of the run's micro-batches, of random tokens, on the device of
 * the module's stage in the first replica. That takes about as long as two training steps (up to
 * eight for batches of fewer than four rows) for each kind of CPU device and each GPU, and the
 * memory of the largest module. SL_BALANCE_AUTO is then decided by these times.
 *
 * Errors: SL_ERR_INVALID for options that contradict each other or the launch; also those of
 * sl_device_list_create and sl_profile_modules. */
sl_status sl_plan_create(const sl_train_options *options, const sl_train_launch *launch,
                         sl_module *model, sl_module_profile *profiles, sl_plan **out);
void sl_plan_destroy(sl_plan **plan);

/* Refuses a run whose plan needs more than `usable_bytes` of this host. Errors: SL_ERR_MEMORY,
 * whose text has both numbers and each change of one option that would make the run fit; as
 * sl_plan_create. */
sl_status sl_plan_check_memory(const sl_train_options *options, const sl_train_launch *launch,
                               sl_module *model, uint64_t usable_bytes);

/* ---- Running ---------------------------------------------------------------------------- */

/* A run in this process: all of its replicas, or one rank of its group. */
typedef struct sl_run sl_run;

/* Decides what the run is (sl_plan), and makes all that comes before training: finds the checkpoint
 * that it goes on from, reads the texts, opens the devices, and measures what is to be decided by
 * time. `launch` NULL: {0}. `options` and `launch` are copied, what they point to is borrowed.
 *
 * `group` (borrowed; an error breaks it): every rank calls this; ranks may be processes on several
 * machines. Where options->replicas is 0 or the group's size, each is a replica. Where the size is
 * a multiple of it, consecutive ranks are one replica, each with as many of its pipeline ranks: it
 * has the parameters of their stages alone. The texts are read by rank 0, the first rank of each
 * replica, and those of a first or last stage. NULL: replicas are threads of this process.
 *
 * A job that has lost processes (launch->first_ranks is larger than launch->ranks) and whose
 * options->replicas is set gets a new layout, with a pipeline rank for each process. It has at most
 * options->replicas replicas and at least options->pipeline_ranks pipeline ranks (with fewer
 * processes than that, all of them; where no pipeline was asked for, one), and fits the hosts'
 * memory. Of such layouts the one with the shortest step is taken, simulated with the modules'
 * operations as times; of equals, the one with the most ranks. An explicit balance and a placement
 * are kept if a layout has their number of stages. If the plan has fewer ranks than there are
 * processes, the run cannot be trained: the job must be started again with as many.
 *
 * `reporters` [reporter_count] with rank 0 are told of checkpoints that are not used. Errors:
 * SL_ERR_MEMORY where the host's plan does not fit (sl_plan_check_memory), unless options->force;
 * SL_ERR_INVALID where the ranks do not fit the replicas and their pipeline ranks; those of reading
 * the texts. */
sl_status sl_run_create(const sl_train_options *options, const sl_train_launch *launch,
                        sl_group *group, const sl_reporter *reporters, int reporter_count,
                        sl_run **out);
void sl_run_destroy(sl_run **run);

/* Lives as long as the run. */
const sl_plan *sl_run_plan(const sl_run *run);

/* Trains, once; validates after every epoch, and tests with the parameters of the best validation,
 * of which it keeps a copy. Every rank calls it. Each validation that is the best so far writes
 * them to options->save. Where that fails, the run reports it (SL_WEIGHTS_FAILED), goes on, and
 * tries again at its end; a second failure is the run's error, after `finished`. SL_ERR_NUMERIC is
 * the error of a loss or gradient norm that is not finite, unless allow_nan.
 *
 * A batch has the rows of all shards of the text (sl_batches_shard), one shard after the other.
 * Each replica has consecutive shards, as many as the others or one more, and trains them one after
 * the other, each with micro-batches of its own. Gradients and losses are means over shards, added
 * in one fixed binary tree, so results are bit-identical for all layouts. Replicas divide the
 * blocks of an evaluation among them, with bit-identical results. When a replica fails, all end
 * with its error, "rank R: …".
 *
 * The results of a run that resumes are bit-identical to those without the interruption, dropout
 * and the best parameters included. Replicas, stages, balance, devices, schedule and zero may
 * differ from those of its checkpoint; the shards are the checkpoint's. Options that affect numbers
 * must be those of the checkpoint: SL_ERR_INVALID names each one that differs. A thread of its own
 * writes a checkpoint from a copy of the state; a save that is due while it writes waits for it. */
sl_status sl_run_train(sl_run *run, const sl_reporter *reporters, int reporter_count,
                       sl_run_result *result);

/* sl_run_create, sl_run_train and sl_run_destroy for a run whose replicas are threads of this
 * process. */
sl_status sl_train_run(const sl_train_options *options, const sl_reporter *reporters,
                       int reporter_count, sl_run_result *result);

/* For a caller that writes files of its own beside a run: refuses `path` where a run with these
 * options reads that file (the texts in `data`, the files of `init` and `adapter`, and `schedule`
 * where it is no name), or where it would lie in `save`, which is replaced whole. A path in a
 * checkpoint or in the directory of the run's checkpoints is refused, here and for `save`. Files
 * that cannot be read are not refused here. Errors: SL_ERR_INVALID, SL_ERR_MEMORY. */
sl_status sl_train_check_output(const sl_train_options *options, const char *path);

/* Writes such a file at once: a reader of `path` sees the old file or the new one, whole. What is
 * no regular file, a pipe or a device, is written to. Errors, which begin with `path`:
 * SL_ERR_NOT_FOUND (no such directory), SL_ERR_INVALID (a directory), SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_train_write_output(const char *path, const char *text);

/* For a caller that goes on with what a run has saved, for example to load its best model: the
 * paths of the checkpoint `best` and of the newest one in the run's checkpoints.directory,
 * malloc'ed; NULL where there is none, or no such directory. Errors: SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_train_find_checkpoints(const char *directory, char **best, char **newest);

/* The settings (sl_save_options) in a checkpoint, or in the newest one of the directory `resume`
 * that can be read: *settings is malloc'ed, and *path, the checkpoint's. Both are NULL where the
 * directory has no checkpoint; *settings is NULL where the checkpoint has none. Errors: as
 * sl_checkpoint_open. */
sl_status sl_train_find_settings(const char *resume, char **path, char **settings);

/* ---- Models on disk --------------------------------------------------------------------- */

typedef struct sl_model_saving {
    sl_saved_type type;
    uint64_t shard_bytes;   /* as in sl_checkpoint_contents */
    const char *generation; /* (optional) the text of a generation_config.json; borrowed */
} sl_model_saving;

/* Saves a model as a directory:
 *
 *   DIR/config.json         its options (NULL: it is none of these, and there is no such file)
 *   DIR/tokenizer.json      its vocabulary, as sl_vocab_save writes it (NULL: likewise), and the
 *                           tokenizer_config.json that it was opened with
 *   DIR/generation_config.json   `settings->generation`, as it is
 *   DIR/model.safetensors   all parameters and buffers, by PyTorch's state_dict names; with more
 *                           bytes than shard_bytes (0: never) in several files, with their index
 *
 * `settings` NULL: all 0.
 *
 * Of a model with adapters (sl_model_options.lora) these alone are saved, as PEFT does it:
 *
 *   DIR/adapter_config.json, DIR/adapter_model.safetensors
 *
 * The directory is replaced whole: whenever the process or the machine dies, the old or the new one
 * is there (where a file system cannot exchange two names, the old one may be left under a second
 * name, which sl_saved_model_open finds). A link at `path` is followed. Every rank of a pipe's
 * group calls it; the first one writes, and asks the others for one tensor at a time. Errors:
 * SL_ERR_INVALID where `path` is something else than an empty directory or a model that sluice has
 * saved, without other files; as sl_checkpoint_save. */
sl_status sl_model_save(const sl_pipe *pipe, const sl_model_options *model, const sl_vocab *vocab,
                        const sl_model_saving *settings, const char *path);

/* How the matrices of a GGUF file are stored: Q8_0 has 32 numbers of a row as 8-bit multiples of an
 * f16. */
typedef enum sl_gguf_type { SL_GGUF_F32, SL_GGUF_F16, SL_GGUF_BF16, SL_GGUF_Q8_0 } sl_gguf_type;

extern const char *const sl_gguf_type_names[]; /* "f32", "f16", "bf16", "q8_0", NULL */

/* Writes a model without adapters, and its tokenizer (NULL: none), as a GGUF file, which llama.cpp
 * and its relatives read, and transformers (gguf_file). Norms, biases and learned positions are
 * f32, and of Q8_0 rows that are no multiple of 32 are f16. An older file is replaced only when the
 * new one is complete. Source: ggml's docs/gguf.md; the names and layouts of llama.cpp's
 * convert_hf_to_gguf.py. Errors: SL_ERR_UNSUPPORTED for the tutorials' model and smollm3, a
 * tokenizer of words, and a pipe of several processes or with a base in bf16 alone;
 * SL_ERR_NOT_FOUND, SL_ERR_INVALID and SL_ERR_IO for the path. */
sl_status sl_model_export_gguf(const sl_pipe *pipe, const sl_model_options *model,
                               const sl_vocab *vocab, sl_gguf_type type, const char *path);

/* Writes a GPT-2 without adapters as a model's file of llm.c, in f32 (its version 3) or bf16 (5),
 * without a tokenizer. The rows of the embedding are filled up with zeros to a multiple of 128. An
 * older file is replaced only when the new one is complete. Source: write_model of llm.c's
 * train_gpt2.py. Errors: SL_ERR_UNSUPPORTED for what llm.c does not compute (another family, a head
 * of its own, another activation, width of the feed-forward network or epsilon of the norms), and
 * for a pipe of several processes or with a base in bf16 alone; SL_ERR_NOT_FOUND, SL_ERR_INVALID
 * and SL_ERR_IO for the path. */
sl_status sl_model_export_llmc(const sl_pipe *pipe, const sl_model_options *model,
                               sl_saved_type type, const char *path);

/* An open model, all of one save, also where another process replaces the directory meanwhile.
 * Functions that take it const may be called by several threads at once. */
typedef struct sl_saved_model sl_saved_model;

/* Opens a model's directory, also by the path of its model.safetensors or its index, or a
 * checkpoint; a model's file of llm.c, of version 3 or 5, whose GPT-2 has no dropout and no
 * tokenizer; or any other safetensors file or index, which have tensors alone. Of a checkpoint of
 * adapters it opens the model that they belong to, by the path in it, and these; where that has
 * become another model, by its checksum, sl_saved_model_load gives SL_ERR_INVALID. Errors: as
 * sl_checkpoint_open; SL_ERR_NOT_FOUND for a checkpoint without a model; SL_ERR_FORMAT and
 * SL_ERR_UNSUPPORTED where config.json or tokenizer.json are not those of a model that sluice has,
 * contradict each other, or ask for a model that the tensors cannot be. */
sl_status sl_saved_model_open(const char *path, sl_saved_model **out);
void sl_saved_model_close(sl_saved_model **model);

/* The options alone; no tokenizer is read. config.json suffices: `path` may name it, or a directory
 * that has it without weights. *has is false where there is no config.json. After an error
 * neither is set. Errors: those of sl_saved_model_open that are not the tokenizer's.
 */
sl_status sl_saved_model_read_options(const char *path, sl_model_options *out, bool *has);

/* What it has beside tensors; NULL where there is no such file. They live as long as it. */
const sl_model_options *sl_saved_model_options(const sl_saved_model *model);
const sl_vocab *sl_saved_model_vocab(const sl_saved_model *model);
const char *sl_saved_model_generation(const sl_saved_model *model); /* generation_config.json */

/* The same where a text is to be read. Errors: SL_ERR_NOT_FOUND where there is none;
 * SL_ERR_UNSUPPORTED where it is of another kind, which does not keep a model from being opened. */
sl_status sl_saved_model_need_vocab(const sl_saved_model *model, const sl_vocab **out);

/* Reads its tensors into a pipe of any cut, and compares checksums where there are any. Without
 * `left_out` it must have every parameter with its shape, and no other tensor; buffers may be
 * missing. With it, reads what fits: the tensors that both have, by name and shape; other values
 * stay as they are, and `left_out` is called with `context` for each tensor of either that is not
 * read, and why ("not in the file", "not in the model", "F32 [7, 4] in the file, F32 [9, 4] in the
 * model"); an error that it returns ends the loading. No value changes where a name, a shape or
 * `left_out` is the error; where reading fails (SL_ERR_IO, damage), values are undefined. Errors:
 * SL_ERR_INVALID for what does not fit, and where no parameter fits. A model that has no adapters
 * leaves those of the pipe as they are.
 *
 * The first pipe for inference on CPUs that an open model is loaded into uses f32 values
 * where they are, in the file's memory: the file may be removed or replaced, but not changed in
 * place, while the pipe is used. Pointers to values, as sl_tensor_data and sl_pipe_get_state give
 * them, end with the load. */
sl_status sl_saved_model_load(const sl_saved_model *model, sl_pipe *pipe,
                              sl_status (*left_out)(void *context, const char *tensor,
                                                    const char *reason),
                              void *context);

/* ---- Adapters --------------------------------------------------------------------------- */

/* Reads DIR/adapter_config.json, as PEFT writes it; `base` is NULL. Errors: SL_ERR_NOT_FOUND,
 * SL_ERR_FORMAT, and SL_ERR_UNSUPPORTED naming what sluice does not serve (use_dora, rank_pattern,
 * modules_to_save, …). */
sl_status sl_adapter_options(const char *path, sl_lora_options *out);

/* Reads DIR/adapter_model.safetensors, or the adapters of the checkpoint DIR, into a pipe whose
 * model was made with these options and has its weights. Errors: as sl_saved_model_load without
 * `left_out`; SL_ERR_INVALID where sluice has trained them on other weights. */
sl_status sl_adapter_load(const char *path, sl_pipe *pipe);

/* Adds what adapters compute to the weights that they belong to, and makes B 0. What is saved with
 * options whose `lora` is zero is then a model without adapters. Every rank of a pipe's group calls
 * it. Errors: what the devices report. */
sl_status sl_adapter_merge(sl_pipe *pipe);

SL_API_END

#endif
