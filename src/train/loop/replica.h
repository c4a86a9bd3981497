/* One replica of a run: its model, its pipe, and the groups of its ranks. */
#ifndef SLI_TRAIN_LOOP_REPLICA_H
#define SLI_TRAIN_LOOP_REPLICA_H

#include "train/plan/plan.h"

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
    const sl_plan *plan;       /* borrowed */
    sl_rank_stats *rank_stats; /* [count * pipeline ranks], by replica and pipeline rank */
    sl_rank_stats *gathered;   /* the same in the order of ranks; in the memory of rank_stats */
} sli_replica;

/* Makes the task's model and loss, and the pipe. `devices` [pipeline ranks],
 * those of other ranks NULL, are borrowed. `values` = false leaves the parameters undefined; else
 * the first replica's are random, or those of `init` (NULL: none). Cleared by sli_replica_clear,
 * also after an error. */
sl_status sli_replica_create(const sl_plan *plan, const sl_train_task *task, sl_group *all,
                             sl_device *const *devices, bool values, const sl_saved_model *init,
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

/* Adds to the times of this rank's entries of `rank_stats`. */
void sli_replica_add_checkpoint_time(const sli_replica *replica, double seconds);

/* That of a stage that this rank has; NULL: it has none. */
sl_device *sli_replica_device(const sli_replica *replica);

/* Calls the task's load_rows; the caller destroys the tensors, also after an error. Errors: the
 * task's; SL_ERR_INVALID where it gives another number of rows. */
sl_status sli_task_load(const sl_train_task *task, const sl_train_rows *rows,
                        sl_device *input_device, sl_device *target_device, sl_tensor **input,
                        sl_tensor **targets);

/* Whether the rank, if it has a stage, needs rows: as its replica's first rank, or for the first or
 * the last stage. */
bool sli_replica_needs_rows(const sli_replica *replica);

/* sli_task_load to the devices of the rank's pipe, where it needs rows. Else both are NULL. */
sl_status sli_replica_load(const sli_replica *replica, const sl_train_task *task,
                           const sl_train_rows *rows, sl_tensor **input, sl_tensor **targets);

#endif
