/* What a pipe consists of. */
#ifndef SLI_PARALLEL_PIPE_PIPE_H
#define SLI_PARALLEL_PIPE_PIPE_H

#include "parallel/pipe/processes/pipe_group.h"
#include "parallel/pipe/rank.h"
#include "sluice/pipe.h"

/* What a table is for. */
typedef enum sli_table_kind {
    SLI_TABLE_FORWARD,
    SLI_TABLE_TRAINING,
    SLI_TABLE_GRADIENT, /* backward in evaluation mode: as training, without recomputation */
    SLI_TABLE_KINDS
} sli_table_kind;

/* What processes compare in place of a table's kind where a forward has a loss. */
enum { SLI_LINK_EVALUATION = SLI_TABLE_KINDS };

/* What a rank's worker is asked to do. */
typedef struct sli_rank_call {
    void (*fn)(sli_rank *rank, void *arg);
    sli_rank *rank;
    void *arg;
} sli_rank_call;

struct sl_pipe {
    sl_module *model;
    sl_loss *loss;    /* NULL: forward only */
    int batch_micros; /* most micro-batches of a batch: the options' `chunks` */
    int step_micros;  /* most of an accumulation step, which runs a table once */
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
    sl_schedule
        *order;    /* of computation, for `step_micros` micro-batches: says where the stages are */
    bool is_given; /* `order` is the caller's table: fewer micro-batches are those of it */

    int stage_count, rank_count;
    sli_pipe_group *group; /* NULL: all ranks are in this process */
    sli_stage *stages;     /* [stage_count] */
    sli_rank *ranks;       /* [rank_count] */
    int *rank_stages;      /* [stage_count] what ranks have as `own` */
    sli_rank_call *calls;  /* [rank_count], of those at work */
    sli_skip *skips;       /* [skip_count] those between two stages */
    size_t skip_capacity;
    sli_channel **channels; /* [channel_count] two between neighbours, and two for each skip; those
                               of other processes among them */
    int skip_count, channel_count;
    pthread_mutex_t *device_locks; /* [rank_count], of which one for each distinct device */
    int device_lock_count;

    /* Tables of each kind by number of micro-batches (1 … step_micros, at [number - 1]): made when
     * first needed. */
    sli_table *tables[SLI_TABLE_KINDS];

    sli_micro *micros; /* [batch_micros], of the step under way */
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

/* ---- Tables (pipe_table.c) --------------------------------------------------------------- */

/* Has the table the pipe's size and this placement (NULL: any)? The caller's own may have more
 * micro-batches. */
sl_status sli_pipe_check_table(const sl_pipe *pipe, const sl_schedule *table, const int *placement,
                               int micros);

/* What the writer writes for `micros` micro-batches, not validated. SL_ERR_INVALID for a table of
 * another size or placement (NULL: any). */
sl_status sli_pipe_write_order(const sl_pipe *pipe, const int *placement, int micros,
                               sl_schedule **out);

/* The table of a kind for `micros` micro-batches. */
sl_status sli_pipe_find_table(sl_pipe *pipe, sli_table_kind kind, int micros,
                              const sli_table **out);

/* [count] of one kind; NULL is allowed. */
void sli_tables_destroy(sli_table *tables, int count);

/* ---- Steps (pipe_step.c) ------------------------------------------------------------------- */

/* What can be said of the arguments before the rows are known everywhere. */
sl_status sli_pipe_check_batch(const char *who, const sl_pipe *pipe, const sl_pipe_batch *batch,
                               bool has_loss);

/* Runs a step of which `who`, `backward`, `training`, `loss`, `scale` and `observers` are set, with
 * `status` of what was done before: every process calls it, also after an error. On success, what
 * came out is the caller's: step->output or step->row_losses. */
sl_status sli_pipe_run_step(sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step,
                            sl_status status);

/* The same with the pipe's loss, whose sum and number of terms every process gets. */
sl_status sli_pipe_run_with_loss(sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step,
                                 sl_status status, double *sum, int64_t *terms);

/* ---- Ranks and stages ---------------------------------------------------------------------- */

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

/* Checks the skip connections that the model's modules declare, and leaves in pipe->skips those
 * between two stages (skip.c), when the stages have their modules. */
sl_status sli_pipe_find_skips(sl_pipe *pipe);

/* Finds tied parameters, and refuses those of devices that do not share memory (tied.c). */
sl_status sli_pipe_check_ties(sl_pipe *pipe);

/* Gives tied parameters to the stages that use them (tied.c), when all sets of this process have
 * been created: their owners' tensors, or copies of those of another process. */
sl_status sli_pipe_place_tied(sl_pipe *pipe);
void sli_pipe_destroy_tied(sl_pipe *pipe); /* the copies */
void sli_pipe_zero_tied(sl_pipe *pipe);    /* their gradients */

/* Gives the copies their owners' values. Every process calls it. */
sl_status sli_pipe_exchange_tied(sl_pipe *pipe);

/* Sums the gradients of tied parameters, when no action runs any more. */
sl_status sli_pipe_sum_tied(sl_pipe *pipe);

/* The timelines of all ranks, in the table's order and on one clock, on every rank of the group;
 * the caller frees it. By the clocks' error, an action may seem to start up to *clock_error
 * seconds before a result that it needs. Every rank calls it with its `status`, and gets the first
 * rank's error. (pipe_timeline.c)
 */
sl_status sli_pipe_gather_timeline(const sl_pipe *pipe, sl_status status, sl_timeline_entry **out,
                                   int *count, double *clock_error);

/* As sl_pipe_train; observers[s] (may be NULL) is told of the modules of stage s whose gradients
 * are complete, on the thread of its rank, during the action that completes the stage's. */
sl_status sli_pipe_train(sl_pipe *pipe, const sl_pipe_batch *batch,
                         const sli_pass_observer *const *observers, double *mean_loss);

#endif
