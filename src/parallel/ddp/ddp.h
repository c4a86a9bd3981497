/* A replica under DistributedDataParallel. Three layers, each of which calls those below alone:
 *
 *     ddp_steps.c    training steps, and ranks with different numbers of batches
 *     ddp.c          the replica: its creation, the exchange of one step, the log
 *     ddp_verify.c   do all ranks have the same replica? */
#ifndef SLI_PARALLEL_DDP_DDP_H
#define SLI_PARALLEL_DDP_DDP_H

#include "parallel/ddp/reducer.h"
#include "sluice/ddp.h"

struct sl_ddp {
    sl_group *group; /* of all replicas, for everything that concerns no single stage; where a
                        replica is in several processes, of those with the same stages */
    sl_pipe *pipe;   /* NULL: a module */
    sl_module *module;
    bool broadcasts_buffers; /* false also where there are none */
    bool find_unused_parameters;
    sl_precision comm_precision;
    bool nccl;
    int shards, first_shard, shard_count; /* of a step; this rank's */
    int shard;                            /* of this rank's, the next one to train on */

    int stage_count;                     /* of those in this process; 1 for a module */
    int *stages;                         /* [stage_count] their indexes, ascending */
    sl_parameter_set **sets;             /* [stage_count] borrowed */
    sl_group **groups;                   /* [stage_count] the same stage of all replicas */
    sl_group **device_groups;            /* [stage_count] over them, by NCCL; NULL: none */
    sli_reducer **reducers;              /* [stage_count] */
    const sli_pass_observer **observers; /* [stages of the pipe] the reducers'; NULL: no such */

    sl_ddp_hook hook; /* NULL: the average */
    void *hook_arg;
    bool syncs;     /* as sl_ddp_set_sync left it */
    bool exchanges; /* over a module: the next backward exchanges gradients */

    bool joins; /* between join_begin and join_end */
    sl_ddp_join_options join;
    int active; /* ranks that have data, as of the last announcement */

    double start; /* of the step's backward, on sli_clock_seconds' clock */
    bool has_rebuilt_order;
    sl_ddp_log log;
    sl_ddp_bucket_log *bucket_logs; /* [log.bucket_count] */
};

/* ---- ddp_verify.c ----------------------------------------------------------------------- */

/* Called by every rank with its options. Errors, on every rank: SL_ERR_INVALID, which says what
 * differs. */
sl_status sli_ddp_verify(const sl_ddp *ddp, int64_t options);

/* ---- ddp.c ------------------------------------------------------------------------------ */

/* As sl_ddp_group, but the group over it by NCCL; NULL also without NCCL. */
sl_group *sli_ddp_device_group(const sl_ddp *ddp, int stage);

/* Every rank gets rank `root`'s values: all of them, or only the buffers. Called by every rank. */
sl_status sli_ddp_broadcast(const sl_ddp *ddp, int root, bool only_buffers);

/* Starts a step's exchange. Buckets are sent when the reducers' observers report their gradients;
 * the end sends the others and waits for all. Called by every rank. */
void sli_ddp_begin_exchange(sl_ddp *ddp);
sl_status sli_ddp_end_exchange(sl_ddp *ddp);

/* Adds the gradients of a shard that is not this rank's last one to the sums. */
sl_status sli_ddp_add_shard(sl_ddp *ddp);

/* Refuses more shards than ranks, for `what`, which is not possible with them. */
sl_status sli_ddp_check_no_shards(const sl_ddp *ddp, const char *who, const char *what);

/* Instead of the end, after backward's error, whose text is the calling thread's: ends the other
 * ranks' steps with it. Returns `error`. */
sl_status sli_ddp_abort_exchange(sl_ddp *ddp, sl_status error);

/* Errors: SL_ERR_INVALID if the last step gave some trained parameter no gradient, unless that is
 * allowed. */
sl_status sli_ddp_check_gradients(const sl_ddp *ddp);

#endif
