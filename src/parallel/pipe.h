/* What a pipe consists of. */
#ifndef SLI_PARALLEL_PIPE_H
#define SLI_PARALLEL_PIPE_H

#include "parallel/stage.h"
#include "parallel/worker.h"
#include "sluice/pipe.h"

/* What a table is for. */
typedef enum sli_table_kind {
    SLI_TABLE_FORWARD,
    SLI_TABLE_TRAINING,
    SLI_TABLE_GRADIENT, /* backward in evaluation mode: as training, without recomputation */
    SLI_TABLE_KINDS
} sli_table_kind;

/* What a stage's worker is asked to do. */
typedef struct sli_stage_call {
    void (*fn)(sli_stage *stage, void *arg);
    sli_stage *stage;
    void *arg;
} sli_stage_call;

struct sl_pipe {
    sl_module *model;
    sl_loss *loss; /* NULL: forward only */
    int chunks;
    sl_recompute recompute;
    sl_schedule_kind schedule;
    uint64_t seed;
    int64_t first_bucket_bytes, bucket_bytes;
    bool no_init, inference;

    int stage_count;
    sli_stage *stages;      /* [stage_count] */
    sli_worker **workers;   /* [stage_count] */
    sli_stage_call *calls;  /* [stage_count], of those at work */
    sli_channel **channels; /* [2 * (stage_count - 1)] forward and gradient, in turn */
    int channel_count;
    pthread_mutex_t *device_locks; /* [stage_count], of which one for each distinct device */
    int device_lock_count;

    /* Tables of each kind by number of micro-batches (1 … chunks, at [number - 1]): written and
     * validated when first needed. */
    sl_schedule **tables[SLI_TABLE_KINDS];

    sli_micro *micros; /* [chunks], of the step under way */
    int64_t *sizes;    /* [chunks] */
    sli_failure failure;
    sl_timeline_entry *trace; /* of the last sl_pipe_train, all stages together */
    int trace_count;
};

/* Runs fn(stage, arg) on every stage's worker at the same time, and waits for all of them. */
void sli_pipe_run_stages(sl_pipe *pipe, void (*fn)(sli_stage *stage, void *arg), void *arg);

/* Where the options' model is to be cut: modules per stage into balance[0 … stages - 1]. */
sl_status sli_pipe_choose_balance(const sl_pipe_options *options, int *balance);

#endif
