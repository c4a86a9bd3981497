/* DistributedDataParallel: replicas that train on their own shards of the data and stay equal.
 *
 * Counterpart of torch.nn.parallel.DistributedDataParallel. Each rank of a group has a replica: a
 * pipe, or a module with its parameter set. All start with rank 0's values; after every step all
 * have the same gradients, the average of what each one's data gave, and so the same weights.
 *
 * The average is taken bucket by bucket (the parameter set's own buckets: nothing is copied) on a
 * communication thread, while backward goes on. In a pipe a gradient is complete after the last
 * micro-batch's backward, and each stage exchanges its buckets with the same stage of the other
 * replicas. Ranks may be threads or processes. All ranks must call the same functions here in the
 * same order; a replica's functions are called by one thread at a time.
 *
 * When a step fails on one rank, the error reaches all: the others' step ends with "rank R: …". The
 * exchange cannot be used again then; it can be destroyed. NULL is refused (SL_ERR_INVALID names
 * the argument) unless a comment allows it. */
#ifndef SLUICE_DDP_H
#define SLUICE_DDP_H

#include "sluice/group.h"
#include "sluice/pipe.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_ddp sl_ddp;

typedef struct sl_ddp_options {
    sl_group *group; /* one rank a replica; borrowed */
    /* What is replicated; borrowed. Either a pipe, or a module and the set that all of its
     * parameters are in. */
    sl_pipe *pipe;
    sl_module *module;
    sl_parameter_set *parameters;
    bool no_buffer_broadcast;    /* broadcast_buffers=False: buffers stay what each rank makes them;
                                    else each training step starts with rank 0's */
    bool find_unused_parameters; /* a trained parameter may get no gradient: on some ranks, it
                                    counts as 0 there; on all, it has none, and optimizers leave it
                                    as it is. Else it is an error */
} sl_ddp_options;

/* Copies rank 0's parameters and buffers to all ranks. Called by all ranks. Errors: SL_ERR_INVALID
 * for a replica without trained parameters or gradients, or with some that are not in the set, and,
 * on all ranks, for ranks whose replicas or options differ, which names what differs. */
sl_status sl_ddp_create(const sl_ddp_options *options, sl_ddp **out);
void sl_ddp_destroy(sl_ddp **ddp); /* NULL is allowed */

/* ---- Steps ------------------------------------------------------------------------------ */

/* Over a pipe: sl_pipe_train, with averaged gradients at the end. `mean_loss` is this rank's.
 * Batches of different sizes count the same, the gradient being the mean of the ranks' means,
 * unless their weights say otherwise: with each one's terms * ranks / terms of all, it is the
 * gradient of the mean over all terms.
 *
 * Errors: SL_ERR_INVALID for parameters that got no gradient since the last zero_grad, unless
 * find_unused_parameters ("Parameter indices which did not receive grad for rank 0: 1"); all ranks
 * have finished the exchange then, and the next step may follow. */
sl_status sl_ddp_train(sl_ddp *ddp, const sl_pipe_batch *batch, double *mean_loss);

/* Over a module: its forward, and its backward with averaged gradients at the end. A pass that does
 * not keep takes part in nothing. Errors as sl_ddp_train. */
sl_status sl_ddp_forward(sl_ddp *ddp, sl_pass *pass, const sl_tensor *in, sl_tensor **out);
sl_status sl_ddp_backward(sl_ddp *ddp, sl_pass *pass, sl_tensor *grad_out, sl_tensor **grad_in);

/* sync = false is torch's no_sync: until it is true again, steps add to this rank's own gradients.
 * The next step after that averages all that has come together.
 *
 * With a module, sync is read at forward, as in PyTorch. A syncing forward (on a pass that keeps)
 * makes the next backward average, even if that is another forward's. Example: forward, forward,
 * backward (averages), backward (local). */
void sl_ddp_set_sync(sl_ddp *ddp, bool sync);

/* The group in which stage `stage` (0 for a module) exchanges its gradients: this rank's handle,
 * which lives as long as `ddp` and must not be used during a step. */
sl_group *sl_ddp_group(const sl_ddp *ddp, int stage);

/* ---- Uneven inputs ---------------------------------------------------------------------- */

typedef struct sl_ddp_join_options {
    bool divide_by_active; /* divide_by_initial_world_size=False: sums are divided by the number of
                              ranks that still have data, not by that of all ranks */
    bool fail_at_first;    /* throw_on_early_termination: once a rank is out of data, all fail */
} sl_ddp_join_options;

/* torch's `with ddp.join()`: between these two calls ranks may train on different numbers of
 * batches. A rank that has no more calls join_end, which takes part in the others' exchanges with
 * gradients of 0 until all have come there. All ranks then have the weights and buffers of the last
 * one to come. A forward that fails between them breaks the options' group. `options` may be NULL.
 *
 * An error of the exchange ends the join on all ranks, without join_end; that of fail_at_first
 * (SL_ERR_CANCELLED, which names the first rank that is out of data) leaves everything fit for
 * another join. */
sl_status sl_ddp_join_begin(sl_ddp *ddp, const sl_ddp_join_options *options);
sl_status sl_ddp_join_end(sl_ddp *ddp);

/* ---- Communication hooks ---------------------------------------------------------------- */

typedef struct sl_ddp_bucket {
    sl_group *group; /* of all replicas' same stage */
    int stage, index;
    float *grads; /* [count], host memory: this rank's gradients, padding among them */
    int64_t count;
    void *scratch; /* the hook's own, malloc'ed: the same bucket finds it again in the next step; it
                      is freed with the ddp. NULL at first */
} sl_ddp_bucket;

/* Makes this rank's gradients of a bucket everybody's. Runs on the communication thread of the
 * stage and may block; every rank's is called for the same buckets in the same order. */
typedef sl_status (*sl_ddp_hook)(void *arg, sl_ddp_bucket *bucket);

/* Replaces averaging by `hook`, on every rank, before the first step. Errors: SL_ERR_INVALID the
 * second time. */
sl_status sl_ddp_register_hook(sl_ddp *ddp, sl_ddp_hook hook, void *arg);

/* The average, as without a hook; and one that sends bf16: half the bytes, gradients rounded to 8
 * bits before, and after, sums that are taken in f32. `arg` is not used. */
sl_status sl_ddp_average_hook(void *arg, sl_ddp_bucket *bucket);
sl_status sl_ddp_bf16_hook(void *arg, sl_ddp_bucket *bucket);

/* ---- What it did ------------------------------------------------------------------------ */

typedef struct sl_ddp_bucket_log {
    int stage, index; /* of the parameter set */
    int parameters;
    int64_t bytes;
    double ready; /* the bucket's last gradient came; seconds since the start of */
    double reduce_start, reduce_end; /* backward (over a pipe: of the step) */
} sl_ddp_bucket_log;

/* The last step that averaged. */
typedef struct sl_ddp_log {
    int64_t steps; /* that averaged, so far */
    bool order_rebuilt;
    int bucket_count;
    const sl_ddp_bucket_log *buckets; /* stage by stage, in the order in which they are sent */
    double backward_end;              /* this rank has its own gradients; seconds as above */
    double reduce_seconds;            /* of exchanges, all buckets together */
    double overlap_seconds;           /* of them, before backward_end */
    double wait_seconds; /* from backward_end to the end of the last exchange: what is not hidden */
} sl_ddp_log;

/* Lives until the next step. */
const sl_ddp_log *sl_ddp_get_log(const sl_ddp *ddp);

/* The log as text, one line a bucket. */
void sl_ddp_print_log(const sl_ddp *ddp, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
