/* DistributedDataParallel: replicas that train on different data and keep equal weights.
 *
 * Counterpart of torch.nn.parallel.DistributedDataParallel. Each rank of a group has a replica: a
 * pipe, or a module with its parameter set. All start with rank 0's values. After every step all
 * have the same gradients, the average of the ranks' own, and so the same weights.
 *
 * A communication thread averages the gradients bucket by bucket while backward goes on. The
 * buckets are the parameter set's own, so nothing is copied. In a pipe, a gradient is complete
 * after the last micro-batch's backward, and each stage exchanges its buckets with the same stage
 * of the other replicas.
 *
 * A replica's pipe may have its stages on several ranks (sl_pipe_options.group). Each of these
 * ranks then has an sl_ddp over a group of its own: the ranks with the same stages, one of each
 * replica. All of them call the functions below together, and get the same status.
 *
 *     replica 0   rank 0: stages 0 1   rank 1: stages 2 3      groups of the pipes: {0 1}, {2 3}
 *     replica 1   rank 2: stages 0 1   rank 3: stages 2 3      groups of sl_ddp:    {0 2}, {1 3}
 *
 * Ranks may be threads or processes. All ranks must call the functions below in the same order; one
 * thread at a time may call a replica's functions.
 *
 * When a step fails on one rank, it fails on all: the other ranks get the error "rank R: …". After
 * that the sl_ddp can only be destroyed, except after the errors of sl_ddp_train and of a join
 * whose comment says otherwise. NULL is refused (sluice/status.h). */
#ifndef SLUICE_DDP_H
#define SLUICE_DDP_H

#include "sluice/group.h"
#include "sluice/pipe.h"

#include <stdio.h>

SL_API_BEGIN

typedef struct sl_ddp sl_ddp;

typedef struct sl_ddp_options {
    sl_group *group; /* one rank for each replica; borrowed */
    /* The replica; borrowed. Either a pipe, or a module and the set that has all its parameters. */
    sl_pipe *pipe;
    sl_module *module;
    sl_parameter_set *parameters;
    /* broadcast_buffers=False: each rank keeps its own buffers. Otherwise each training step starts
     * with rank 0's. */
    bool no_buffer_broadcast;
    /* A trained parameter may get no gradient. If it gets one on some ranks, it counts as 0 on the
     * others; if on none, it has no gradient, and optimizers skip it. Without this option it is an
     * error. */
    bool find_unused_parameters;
    /* In how many shards the batch of a step is cut, at least one for each rank; 0: as many. Rank r
     * trains on neighbouring shards (sl_ddp_shards), one after the other. The average is over
     * shards, added in the order of one binary tree over all of them: with the same shards it has
     * the same bits for any number of ranks. More shards than ranks need a pipe, without
     * find_unused_parameters, a hook or a join. The same on all ranks. */
    int shards;
    /* SL_PRECISION_BF16: each rank's gradients are rounded to bf16, summed in f32, and the average
     * is rounded again, which halves the bytes that ranks exchange. The same on all ranks; a hook
     * replaces it. */
    sl_precision comm_precision;
    /* Exchange gradients, buffers, the parameters at creation, and the weights that
     * sl_pipe_optimizer_step shards, between CUDA devices by NCCL instead of
     * through host memory. Results are bit-identical. Each rank needs a GPU of its own. Hooks and
     * divide_by_active still use host memory. */
    bool nccl;
} sl_ddp_options;

/* Copies rank 0's parameters and buffers to all ranks. Called by all ranks. Errors: SL_ERR_INVALID
 * for a replica without trained parameters, without gradients, or with parameters outside the set;
 * and, on all ranks, if their replicas or options differ: the error says in what. */
sl_status sl_ddp_create(const sl_ddp_options *options, sl_ddp **out);
void sl_ddp_destroy(sl_ddp **ddp);

/* ---- Steps ------------------------------------------------------------------------------ */

/* Over a pipe: sl_pipe_train, after which the gradients are averaged. `mean_loss` is this rank's.
 *
 * On a rank with several shards, a step is one call for each of them, in their order, each after
 * sl_pipe_zero_grad: the gradients are the shard's own until the last call averages them.
 *
 * The result is the mean of the shards' mean gradients, so shards of different sizes count the
 * same. For the gradient of the mean over all terms, give each batch the weight own terms * shards
 * / all shards' terms.
 *
 * Errors: those of sl_pipe_train; SL_ERR_INVALID for parameters that got no gradient since the last
 * zero_grad, unless find_unused_parameters is set ("Parameter indices which did not receive grad
 * for rank 0: 1": counted, as in PyTorch, among the trained parameters that this process has).
 * After this last error the next step may follow: all ranks have finished the exchange.
 */
sl_status sl_ddp_train(sl_ddp *ddp, const sl_pipe_batch *batch, double *mean_loss);

/* This rank's shards: *first, …, *first + *count - 1. */
void sl_ddp_shards(const sl_ddp *ddp, int *first, int *count);

/* Over a module: its forward, and its backward, after which the gradients are averaged. A forward
 * on a pass that does not keep is this rank's alone. Errors: as sl_ddp_train. */
sl_status sl_ddp_forward(sl_ddp *ddp, sl_pass *pass, const sl_tensor *in, sl_tensor **out);
sl_status sl_ddp_backward(sl_ddp *ddp, sl_pass *pass, sl_tensor *grad_out, sl_tensor **grad_in);

/* sync = false is torch's no_sync: until it is set to true again, steps add to this rank's own
 * gradients and exchange nothing. The first step after that averages the accumulated gradients.
 *
 * With a module, forward reads the setting, as in PyTorch. A forward with sync, on a pass that
 * keeps, makes the next backward average, even if that belongs to another forward. Example:
 * forward, forward, backward (averages), backward (does not). */
void sl_ddp_set_sync(sl_ddp *ddp, bool sync);

/* This rank's handle of the group in which stage `stage` (0 for a module) exchanges its gradients;
 * NULL where the stage is on another rank of the pipe's group. It lives as long as `ddp` and must
 * not be used during a step. */
sl_group *sl_ddp_group(const sl_ddp *ddp, int stage);

/* ---- Uneven inputs ---------------------------------------------------------------------- */

typedef struct sl_ddp_join_options {
    bool divide_by_active; /* divide_by_initial_world_size=False: sums are divided by the number of
                              ranks that still have data, not by the number of all ranks */
    bool fail_at_first;    /* throw_on_early_termination: all ranks fail once one is out of data */
} sl_ddp_join_options;

/* torch's `with ddp.join()`: between these two calls ranks may train on different numbers of
 * batches. A rank that is out of data calls join_end. That takes part in the other ranks'
 * exchanges, with gradients of 0, until every rank is out of data. All ranks then get the weights
 * and buffers of the last one. A forward that fails during a join breaks the group of
 * sl_ddp_options. `options` may be NULL.
 *
 * An error of the exchange ends the join on all ranks, and join_end must not be called. After the
 * error of fail_at_first (SL_ERR_CANCELLED, which names the first rank that is out of data),
 * another join may begin. With more shards than ranks there is no join (SL_ERR_INVALID). */
sl_status sl_ddp_join_begin(sl_ddp *ddp, const sl_ddp_join_options *options);
sl_status sl_ddp_join_end(sl_ddp *ddp);

/* ---- Communication hooks ---------------------------------------------------------------- */

typedef struct sl_ddp_bucket {
    sl_group *group; /* the same stage of all replicas */
    int stage, index;
    float *grads; /* [count], host memory: this rank's gradients, padding included */
    int64_t count;
    void *scratch; /* NULL at first; the hook may put malloc'ed memory here, which this bucket has
                      again in the next step, and which is freed with the sl_ddp */
} sl_ddp_bucket;

/* Replaces this rank's gradients of a bucket by the result of the exchange. Runs on the stage's
 * communication thread and may block. It is called for the same buckets in the same order on every
 * rank. */
typedef sl_status (*sl_ddp_hook)(void *arg, sl_ddp_bucket *bucket);

/* Uses `hook` instead of averaging. Called on every rank before the first step. Errors:
 * SL_ERR_INVALID for a second call, and for more shards than ranks. */
sl_status sl_ddp_register_hook(sl_ddp *ddp, sl_ddp_hook hook, void *arg);

/* The average in f32, for hooks that do more than this. `arg` is unused. */
sl_status sl_ddp_average_hook(void *arg, sl_ddp_bucket *bucket);

/* ---- The log ---------------------------------------------------------------------------- */

typedef struct sl_ddp_bucket_log {
    int stage, index; /* of the parameter set */
    int parameters;
    int64_t bytes; /* of its elements as they are exchanged */
    /* Seconds since the start of backward (with a pipe: of the step). */
    double ready; /* the bucket's last gradient was complete */
    double reduce_start, reduce_end;
} sl_ddp_bucket_log;

/* Times of the last step that averaged. */
typedef struct sl_ddp_log {
    int rank, ranks; /* of the group */
    int64_t steps;   /* that averaged, so far */
    bool order_rebuilt;
    int bucket_count;
    const sl_ddp_bucket_log *buckets; /* stage by stage, in the order of sending */
    double backward_end;              /* when this rank had its own gradients; seconds as above */
    double reduce_seconds;            /* of all buckets' exchanges together */
    double overlap_seconds;           /* of these, before backward_end */
    double wait_seconds;              /* from backward_end to the end of the last exchange */
} sl_ddp_log;

/* The log lives as long as `ddp`; each step that averages overwrites it. */
const sl_ddp_log *sl_ddp_get_log(const sl_ddp *ddp);

/* Writes the log as text, one line for each bucket. */
void sl_ddp_log_print(const sl_ddp_log *log, FILE *file);

SL_API_END

#endif
