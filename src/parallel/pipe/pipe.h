/* What a pipe consists of; and how its ranks and stages are set to work (pipe.c). */
#ifndef SLI_PARALLEL_PIPE_PIPE_H
#define SLI_PARALLEL_PIPE_PIPE_H

#include "parallel/pipe/processes/pipe_group.h"
#include "parallel/pipe/rank.h"
#include "sluice/pipe.h"

struct sl_pipe {
    sl_module *model;
    sl_loss *loss;    /* NULL: forward only */
    int batch_micros; /* most micro-batches of a batch */
    int chunks;       /* most of an accumulation step, which runs a table once */
    int slices;       /* of a micro-batch in training; 1: it is whole */
    int table_micros; /* chunks * slices: the micro-batches, or slices, that a table numbers */
    sl_recompute recompute;
    sl_precision precision;
    uint64_t seed;
    int64_t first_bucket_bytes, bucket_bytes;
    bool no_init, inference;
    bool has_ties;        /* some parameter is tied to another */
    bool has_remote_ties; /* of stages in different processes */

    const char *schedule;
    sl_schedule_writer writer; /* NULL: the library's, of `schedule` */
    const void *writer_context;
    sl_schedule *order; /* of computation, for `chunks` micro-batches: says where the stages are */
    bool is_given;      /* `order` is the caller's table: fewer micro-batches are those of it */

    sl_stage_backward *backward; /* [stage_count] what of the tables is wanted, by what is frozen */

    int stage_count, rank_count;
    sli_pipe_group *group; /* NULL: all ranks are in this process */
    sli_stage *stages;     /* [stage_count] */
    sli_rank *ranks;       /* [rank_count] */
    int *rank_stages;      /* [stage_count] what ranks have as `own` */
    sli_skip *skips;       /* [skip_count] those between two stages */
    size_t skip_capacity;
    sli_channel **channels; /* [channel_count] two between neighbours, and two for each skip; those
                               of other processes among them */
    int skip_count, channel_count;
    int head_blocks;         /* of a split head; 0: it is not split */
    sli_head_part *parts;    /* [rank_count] of it; NULL: likewise */
    sl_parameter *embedding; /* that the head is tied to; NULL: it is not */
    bool marks_head;         /* it is cut, or has block terms, by this pipe */
    bool head_is_cut;        /* each rank owns its part's parameters */
    bool has_whole_head;     /* where it is cut: the last stage has a copy of all, for evaluation;
                                the same in every process */
    bool made_whole_head;    /* this process has memory for that copy, which the pipe frees */
    int32_t *words;          /* [word_count] of a cut embedding, of the batch (pipe_embedding.c) */
    int64_t word_count;
    pthread_mutex_t *device_locks; /* [rank_count], of which one for each distinct device */
    int device_lock_count;

    /* Tables of each kind by number of micro-batches (1 … chunks, at [number - 1]): made when
     * first needed. */
    sli_table *tables[SLI_TABLE_KINDS];

    sli_micro *micros; /* [batch_micros * slices], of the step under way */
    int64_t *sizes;    /* [batch_micros] */
    sli_failure failure;
    sli_action_moments *moments; /* of the step under way; NULL: none */
    int moment_count;
    sl_timeline_entry *trace; /* of the last sl_pipe_train; NULL: none */
    int trace_count;
    double trace_start;        /* of its step, on sli_clock_seconds' clock */
    double trace_seconds;      /* from then until all ranks had ended */
    double trace_busy_seconds; /* the sum of all actions' times, also in other processes */
    double *links; /* [stages - 1] seconds, as in sl_cost_model; NULL: not probed yet, or there is
                      no group */
    struct sli_tensors *tensors; /* of sl_pipe_get_state; NULL: none */
};

static inline const sli_stage *sli_last_stage(const sl_pipe *pipe)
{
    return &pipe->stages[pipe->stage_count - 1];
}

/* Runs fn(rank, arg) on the worker of every rank of this process at the same time, and waits for
 * all of them. */
void sli_pipe_run_ranks(sl_pipe *pipe, void (*fn)(sli_rank *rank, void *arg), void *arg);

/* Ends a run of ranks: takes the pipe's failure, and returns the same error in every process.
 * `ran_table`: it was an accumulation step, so that the link between processes has one under way.
 * *busy_seconds (may be NULL), the sum of this process's actions' times, becomes that of all
 * processes. */
sl_status sli_pipe_end_run(sl_pipe *pipe, bool ran_table, double *busy_seconds);

/* Runs fn(stage, arg) for every stage of this process as sl_pipe_run_on_stages does. Errors stay in
 * the pipe's failure, under their stages' numbers. */
void sli_pipe_call_stages(sl_pipe *pipe, sl_status (*fn)(int stage, void *arg), void *arg);

/* sl_pipe_run_on_stages for this process alone: the others neither call it nor have its status. */
sl_status sli_pipe_run_here(sl_pipe *pipe, sl_status (*fn)(int stage, void *arg), void *arg);

/* The stage that the module is in, which is one of the model's. */
const sli_stage *sli_pipe_find_stage(const sl_pipe *pipe, const sl_module *module);

/* As sl_pipe_train; observers[s] (may be NULL) is told of the modules of stage s whose gradients
 * are complete, on the thread of its rank, during the action that completes the stage's. */
sl_status sli_pipe_train(sl_pipe *pipe, const sl_pipe_batch *batch,
                         const sli_pass_observer *const *observers, double *mean_loss);

#endif
