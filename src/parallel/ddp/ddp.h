/* A replica under DistributedDataParallel. Three layers, each of which calls those below alone:
 *
 *     ddp_steps.c    training steps, and ranks with different numbers of batches
 *     ddp.c          the replica: its creation, the exchange of one step, the log
 *     ddp_verify.c   do all ranks have the same replica? */
#ifndef SLI_PARALLEL_DDP_DDP_H
#define SLI_PARALLEL_DDP_DDP_H

#include "parallel/ddp/reducer.h"
#include "sluice/ddp.h"

typedef struct sli_ddp_stage {
    int index;
    sl_parameter_set *set;  /* borrowed */
    sl_group *group;        /* the same stage of all replicas */
    sl_group *device_group; /* over it, by NCCL; NULL: none */
    sli_reducer *reducer;
} sli_ddp_stage;

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
    sli_ddp_stage *stages;               /* [stage_count], by their indexes */
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

/* The exchange of a step, on every rank. After begin, a bucket is sent when the reducer's observer
 * has reported all its gradients. End sends the other buckets, and waits for all. */
void sli_ddp_begin_exchange(sl_ddp *ddp);
sl_status sli_ddp_end_exchange(sl_ddp *ddp);

/* Adds the gradients of one of this rank's shards to the sums. Its last shard is exchanged instead.
 */
sl_status sli_ddp_add_shard(sl_ddp *ddp);

/* Errors: SL_ERR_INVALID where there are more shards than ranks, which `what` does not allow. */
sl_status sli_ddp_check_no_shards(const sl_ddp *ddp, const char *who, const char *what);

/* Ends the exchange after an error of backward, the calling thread's: the other ranks' steps fail
 * with it too. Returns `error`. */
sl_status sli_ddp_abort_exchange(sl_ddp *ddp, sl_status error);

/* Errors: SL_ERR_INVALID if a trained parameter got no gradient in the last step, unless
 * find_unused_parameters allows it. */
sl_status sli_ddp_check_gradients(const sl_ddp *ddp);

#endif
