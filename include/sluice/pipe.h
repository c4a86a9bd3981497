/* The pipe: a sequence of modules cut into stages that micro-batches flow through.
 *
 * Counterpart of torch.distributed.pipeline.sync.Pipe. Stages are placed on pipeline ranks; each
 * rank has a device and a worker thread. All ranks run at the same time, each its own row of the
 * schedule's table, and stages hand tensors to their neighbours through channels. Losses, gradients
 * and weights are the same, bit for bit, for every number of stages, every placement, every
 * recomputation mode and every schedule, given the same micro-batches.
 *
 * Ranks may share a device; they take turns on it then. The batch's tensors may be on any device
 * that reaches the same memory as the ranks' (as all CPU devices do).
 *
 * The stages may be in several processes, the ranks of a group. Each rank then calls the pipe's
 * functions together with the others, and all get the same status. Tensors go to other processes
 * while the stages compute. A process breaks the pipe if it dies, leaves, or lets a stage wait
 * longer than the group's time limit. Every rank's call, and every later one, then ends with an
 * error that names the process's rank, host and stages. A tensor that goes to another process has
 * at most 1 GiB (SL_ERR_UNSUPPORTED).
 *
 * One thread at a time may call a pipe's functions. NULL is refused (sluice/status.h). When a
 * function returns an error, all ranks have stopped.
 * Which of several errors it returns does not depend on timing: the one whose action comes first
 * when the table is played at unit costs (F, R, I, W: 1; B: 2), and at the same time the lowest
 * stage's. The text begins with "[stage 1 micro 3] ". The pipe can be used again; gradients are
 * then undefined until sl_pipe_zero_grad. */
#ifndef SLUICE_PIPE_H
#define SLUICE_PIPE_H

#include "sluice/group.h"
#include "sluice/loss.h"
#include "sluice/profile.h"
#include "sluice/schedule.h"

SL_API_BEGIN

typedef struct sl_pipe sl_pipe;

/* ---- Where to cut ----------------------------------------------------------------------- */

typedef enum sl_partition_rule {
    /* The tutorials': layers per stage ceil(layers / stages); the encoder joins the first stage,
     * the decoder the last. Where that would leave a stage empty, layers are spread as evenly as
     * possible, earlier stages getting more. */
    SL_PARTITION_LAYERS,
    /* Contiguous blocks whose largest parameter count is as small as possible. */
    SL_PARTITION_PARAMETERS
} sl_partition_rule;

/* Modules per stage into balance[0 … stages - 1]. Errors: SL_ERR_INVALID for a model that is not a
 * sequential, less than one stage, and more stages than modules (PARAMETERS) or layers (LAYERS:
 * modules less the first and the last). */
sl_status sl_partition(const sl_module *model, int stages, sl_partition_rule rule, int *balance);

/* How far backward goes in each stage of such a cut, backward[stages], by what is frozen
 * (sl_schedule_freeze). With skip connections, whose gradients go past stages, no stage is without
 * one; where nothing at all is trained, each has a whole one. */
void sl_partition_backward(const sl_module *model, int stages, const int *balance,
                           sl_stage_backward *backward);

/* How long the forward of the last module, the head, takes, those of the modules between it and the
 * first taking 1 together: by their parameters, for sl_schedule_split_head. */
double sl_partition_head(const sl_module *model);

/* Seconds that a tensor takes between two ranks. */
typedef struct sl_link_cost {
    double seconds;          /* for a tensor without bytes */
    double seconds_per_byte; /* in addition, for each byte */
} sl_link_cost;

/* What decides a cut by time. */
typedef struct sl_partition_costs {
    int modules;
    const sl_module_profile *const *profiles; /* [ranks][modules] times of one micro-batch on each
                                                 rank's device (sluice/profile.h), of which a
                                                 slice takes its part; borrowed */
    const sl_schedule *table; /* with recomputations, stages and their ranks; borrowed */
    const sl_module *model;   /* (optional: all is trained) by whose frozen parameters the table is
                                 rewritten for each cut (sl_partition_backward); borrowed */
    /* With `model`, as in sl_pipe_options: the last module's times are divided among the ranks by
     * their blocks, each rank's own, and its table is split (sl_schedule_split_head). */
    int head_blocks;
    double head_sums_bytes; /* of a micro-batch, that the parts of all other ranks give back */
    /* (optional: no time) [ranks][ranks]; borrowed. [a][b] counts where a stage is on rank a and
     * the next one on rank b: for the output, and for its gradient on the way back. [a][a] is not
     * used. Of a split head those between the last stage's rank and the others count as well, of
     * which all send at the same time. */
    const sl_link_cost *links;
    /* (optional: every rank has its own) [ranks] as in sl_cost_model; borrowed. */
    const int *cores;
    /* (optional: all fit) Whether a balance [stages] fits the memory there is. */
    bool (*fits)(void *context, const int *balance);
    void *context;
} sl_partition_costs;

/* Simulates the table with the modules' times and those of their outputs between ranks, and gives
 * the partition with the shortest step that fits: modules per stage in balance[0 ... stages - 1],
 * and the step's seconds (`seconds` may be NULL). Tries all partitions if there are at most 1,000;
 * otherwise it improves one by moving single modules until no move helps. If that one does not fit,
 * it begins with one that does, found by moving several modules from one stage to another. Where
 * ranks share cores, a thousandth of the time on cores of their own is added to compare partitions:
 * of those that take as long, the one with the evener stages is best. Errors:
 * SL_ERR_INVALID for more stages than modules; SL_ERR_NOT_FOUND if none of those tried fits; as
 * sl_schedule_simulate. */
sl_status sl_partition_by_time(const sl_partition_costs *costs, int *balance, double *seconds);

/* The simulation of a step with a given partition, balance[stages]; free it with
 * sl_simulation_clear. Errors: as sl_schedule_simulate. */
sl_status sl_partition_simulate(const sl_partition_costs *costs, const int *balance,
                                sl_simulation *out);

/* Micro-batches of `rows` rows as torch.chunk(most) cuts them: all of ceil(rows / most) but the
 * last, which has the rest. Returns their number; writes their rows to sizes[most], which may be
 * NULL. */
int sl_micro_batches(int64_t rows, int most, int64_t *sizes);

/* ---- Pipe ------------------------------------------------------------------------------- */

typedef struct sl_pipe_options {
    sl_module *model;          /* a sequential; borrowed */
    sl_loss *loss;             /* borrowed; NULL: the pipe can only run forward */
    int stages;                /* S, a multiple of virtual_stages */
    int virtual_stages;        /* V, stages of a rank; 0: 1 */
    const int *placement;      /* [stages] the rank of each stage, borrowed; NULL: the table's or
                                  the schedule's own */
    sl_device *const *devices; /* [stages / virtual_stages] the ranks', borrowed; those of other
                                  ranks of the group may be NULL */
    const int *balance;        /* [stages] modules per stage; NULL: sl_partition by LAYERS for three
                                  modules and more where it can, else by PARAMETERS */
    int chunks;                /* micro-batches of an accumulation step, which runs the table once;
                                  0: as many as the table has (1 without a table) */
    int accumulate;            /* gradient accumulation steps of a batch, which is cut into chunks *
                                  accumulate micro-batches at most. The results are those of as many
                                  chunks in one step; only one step's activations are held. 65,536
                                  at most; 0: 1 */
    int slices; /* sequence slices of a micro-batch [N, T, ...] in training (sluice/schedule.h),
                   which needs causal modules (sl_module_can_continue) and CPUs; 0: as many as the
                   table has (1 without a table). Results depend on their number, to rounding. A
                   batch with fewer positions is not cut; one with further inputs is refused */
    sl_recompute recompute; /* zero value: except_last */
    /* The order of computation: a table, else what the writer writes, else the schedule of that
     * name (sl_schedule_names; NULL: the first). */
    const char *schedule;       /* borrowed as long as the pipe */
    const sl_schedule *table;   /* copied; of a batch with fewer micro-batches than it has, those
                                   that are not there are left out */
    sl_schedule_writer writer;  /* called for each number of micro-batches that there is */
    const void *writer_context; /* the writer's; borrowed as long as the pipe */
    sl_precision precision;     /* of all products and of what stages send each other */
    uint64_t seed;              /* of initial values, dropout and rounding (sluice/optim.h) */
    bool no_init;               /* values are undefined (they will be loaded) */
    bool inference;             /* no gradients: sl_pipe_train is refused */

    /* Not 0: training splits the last module, a linear layer that cross entropy takes over, over
     * all ranks by its classes (sl_schedule_split_head). They are cut into so many blocks (or as
     * many as there are, if these are fewer), at least as many as ranks, of which each rank has
     * some. Results depend on their number, to rounding, and on nothing else of the split. In
     * one process the parameters stay where they are without it. In several, each rank owns its
     * part of them, and of the embedding that the head is tied to: the set of its first stage
     * begins with parameters of their names and its own rows; sets of its other stages have
     * nothing of them. Of such an embedding the first stage has the rows of a batch. Evaluation
     * runs the whole head in the last stage, which has a copy for it where ranks own parts. CPUs
     * only; a head that is frozen, has an adapter, or is tied to anything but the embedding of the
     * first module is refused with SL_ERR_UNSUPPORTED. */
    int head_blocks;
    int64_t first_bucket_bytes, bucket_bytes; /* as in sl_parameter_set_options */

    /* Stages in several processes (or threads). Every rank of the group has a pipe with the same
     * options, devices apart, and a model built alike; it has parameters, devices and threads for
     * its own stages alone. */
    sl_group *group;        /* borrowed while the pipe is created; NULL: all stages are here */
    const int *group_ranks; /* [stages / virtual_stages] each pipeline rank's rank of the group,
                               borrowed; NULL: spread evenly, neighbours together */
} sl_pipe_options;

/* Places every stage's parameters on its device and starts the workers. Errors: SL_ERR_INVALID, in
 * the words of PyTorch where it has some, for a model that is not a sequential; negative chunks; a
 * balance whose length or sum is wrong; more stages than modules; the first module that expects
 * inputs of another width than the one before it gives, as far as the modules say
 * (sl_module_ops.widths); a skip connection that has not one stash and one later pop
 * (sl_module_add_stash). */
sl_status sl_pipe_create(const sl_pipe_options *options, sl_pipe **out);
void sl_pipe_destroy(sl_pipe **pipe);

/* A batch that sl_pipe_forward, _train and _evaluate refuse with SL_ERR_INVALID: one without rows;
 * targets, or a further input, whose rows do not match those of `input`; for a loss, no targets.
 * Other errors of the three are those of modules and of the loss. In a group they also
 * return SL_ERR_CANCELLED where a process has left, has died or is late, and SL_ERR_INVALID where
 * ranks call different functions.
 *
 * In a group, N, `step`, `first_sample` and `same_weights` are those of the first stage's rank, and
 * `weight` and `last_position` those of the last stage's; `evaluation` must be the same on all. */
typedef struct sl_pipe_batch {
    const sl_tensor *input; /* [N, …], N at least 1; borrowed; read where the first stage is */
    const sl_input *inputs; /* [input_count] further ones, borrowed, for every rank's stages. One
                               that is not `whole` is cut along dimension 0 into as many
                               micro-batches as `input` */
    int input_count;
    const sl_tensor *targets; /* [N, …]; borrowed; read where the last stage is */
    uint64_t step;            /* the training step's number, which seeds dropout */
    int64_t first_sample;     /* global number of row 0; replicas differ here */
    double weight;            /* of the batch's gradient; 0: 1 */
    bool evaluation;          /* modules in evaluation mode: no dropout; nothing is recomputed */
    bool same_weights;        /* the caller promises that no parameter has changed since the pipe's
                                 last successful call. Values are then not converted to bf16 again,
                                 and tied values are not sent to other processes again (but for the
                                 rows of an embedding that is cut) */
    bool last_position;       /* (sl_pipe_forward alone) the output of [N, T, …] is that of each
                                 row's last position, [N, 1, …]. A linear layer that ends the model
                                 runs for these alone */
    double *row_losses;       /* (optional, with a loss) [N] set to the sum of each row's terms,
                                 without the weight, or NaN where the loss does not give equally
                                 many numbers for each row; in a group on all ranks or on none */
    sl_cache *const *caches;  /* (optional, sl_pipe_forward alone) [N], borrowed; see there */
    const int64_t *lengths; /* (optional, with a loss) [N] borrowed, on every rank: how many of the
                               T positions each row has. The input, the targets and further inputs
                               that are not `whole` are [N, T, …], and of each a micro-batch has as
                               many positions as its longest row, at least 1. The others must be
                               without terms of the loss */
} sl_pipe_batch;

/* Forward in evaluation mode, without targets: *output [N, …] is the micro-batches' outputs one
 * after the other, on the last stage's device; the caller owns it; NULL where the last stage is on
 * another rank of the group. It shares the input's storage where no module makes a tensor of its
 * own.
 *
 * With caches, which were created for the pipe's model (sl_cache_create), row n of the input
 * [N, T, …] is the T positions that follow those in caches[n]: *output is that of these alone, and
 * the caches have them afterwards. In a group each rank has caches of its own, used for the same
 * rows. A cache must not outlive the pipe. Errors: SL_ERR_INVALID for positions that a cache has no
 * room for, a row without a cache or with another row's, or caches on some ranks alone. */
sl_status sl_pipe_forward(sl_pipe *pipe, const sl_pipe_batch *batch, sl_tensor **output);

/* One training step's forward and backward by the schedule's table (without recomputation for a
 * batch in evaluation mode, as under PyTorch's eval(): gradients without dropout). Adds the
 * gradient of the mean over all terms of the batch, times the batch's weight, to the parameters'
 * gradients, and gives that mean, without the weight. NaN is a value here, not an error. Errors:
 * SL_ERR_INVALID for a pipe without a loss, or one for inference. */
sl_status sl_pipe_train(sl_pipe *pipe, const sl_pipe_batch *batch, double *mean_loss);

/* The loss in evaluation mode: sum over the terms, and their number. Errors: SL_ERR_INVALID for a
 * pipe without a loss, or a batch with a cache. */
sl_status sl_pipe_evaluate(sl_pipe *pipe, const sl_pipe_batch *batch, double *loss_sum,
                           int64_t *terms);

void sl_pipe_zero_grad(sl_pipe *pipe);

/* Runs fn(stage, arg) for every stage on its rank's worker, ranks at the same time, and waits: for
 * the optimizer. Stages of a rank or of one device take turns, so fn must not wait for another
 * stage. The lowest stage's error is returned, with "[stage 1] " in front. In a group, every rank
 * calls it, fn runs for the rank's own stages, and all get the same status. */
sl_status sl_pipe_run_on_stages(sl_pipe *pipe, sl_status (*fn)(int stage, void *arg), void *arg);

/* In a group: ends the other ranks' calls, and every later one, with this thread's error; for a
 * rank that will not make the call that the others wait for. Returns the error that broke the pipe
 * first. With SL_OK, and without a group, it does nothing and returns `error`. */
sl_status sl_pipe_abort(sl_pipe *pipe, sl_status error);

/* ---- What it consists of ---------------------------------------------------------------- */

int sl_pipe_stages(const sl_pipe *pipe);
int sl_pipe_ranks(const sl_pipe *pipe);
int sl_pipe_rank(const sl_pipe *pipe, int stage); /* the stage's rank */
sl_module *sl_pipe_model(const sl_pipe *pipe);
/* The pipe's own handle of its group, for what its ranks do together between calls of its
 * functions; NULL: it has none. */
sl_group *sl_pipe_group(const sl_pipe *pipe);
/* NULL for a stage on another rank of the group. */
sl_device *sl_pipe_device(const sl_pipe *pipe, int stage);
sl_parameter_set *sl_pipe_parameters(const sl_pipe *pipe, int stage);
/* Modules first … first + count - 1 of the model. */
void sl_pipe_stage_modules(const sl_pipe *pipe, int stage, int *first, int *count);

/* When each action of the last sl_pipe_train ran (of its last accumulation step): seconds
 * since its start, in the table's order (rank 0's row, rank 1's ...); of a step that failed, those
 * that ended well; in a group, those of this rank's stages. Lives until the next call. Has the form
 * that sl_schedule_simulate gives. */
int sl_pipe_timeline(const sl_pipe *pipe, const sl_timeline_entry **entries);

/* The seconds that the last sl_pipe_train (its last accumulation step) took, and the sum of all its
 * actions' times; in a group, of all ranks' actions. */
void sl_pipe_step_times(const sl_pipe *pipe, double *seconds, double *busy_seconds);

/* Where the time of the last sl_pipe_train (of its last accumulation step) went; free it with
 * sl_utilization_clear. In a group, every rank calls it and gets the same: the timelines of all
 * ranks, as `measured`, on the clock of the group's first rank and since the first start. The
 * clocks are compared in the call; another rank's times are wrong by at most half the shortest of 8
 * round trips. For the prediction, the cost of each link between processes is half the shortest of
 * 4 round trips of a message of the tensor's size, at most 1 MiB and scaled up for a larger one;
 * the pipe's first call measures it. Ranks with cores in common share them all in the prediction.
 * Errors: SL_ERR_INVALID where no step has run, or the last one failed. */
sl_status sl_pipe_get_utilization(sl_pipe *pipe, sl_utilization *out);

SL_API_END

#endif
