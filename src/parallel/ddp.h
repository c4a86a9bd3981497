/* A replica under DistributedDataParallel, for the files that make it work. */
#ifndef SLI_PARALLEL_DDP_H
#define SLI_PARALLEL_DDP_H

#include "parallel/reducer.h"
#include "sluice/ddp.h"

struct sl_ddp {
    sl_group *group; /* of all replicas; everything that concerns no single stage goes here */
    sl_pipe *pipe;   /* NULL: a module */
    sl_module *module;
    sl_parameter_set *parameters;
    bool broadcasts_buffers; /* and there are some */
    bool find_unused_parameters;

    int stage_count;        /* 1 for a module */
    sl_group **groups;      /* [stage_count] the same stages of all replicas */
    sli_reducer **reducers; /* [stage_count] */
    int trained_count;      /* of all stages */
    int *missing;           /* [trained_count] room */

    sl_ddp_hook hook; /* NULL: the average */
    void *hook_arg;
    bool syncs;     /* the mode of what comes */
    bool exchanges; /* over a module: a forward that syncs has come, and no exchange since */

    bool joins; /* between join_begin and join_end */
    sl_ddp_join_options join;
    int active; /* ranks that still have data, as last announced */

    double start; /* of the step's backward */
    bool has_rebuilt_order;
    sl_ddp_log log;
    sl_ddp_bucket_log *bucket_logs;
};

sl_parameter_set *sli_ddp_set(const sl_ddp *ddp, int stage);

/* Checks that all ranks have the same parameters in the same stages and buckets, and the same
 * options (ddp_verify.c). */
sl_status sli_ddp_verify(const sl_ddp *ddp);

/* Everybody's values become rank `root`'s: all of them, or only the buffers. */
sl_status sli_ddp_broadcast(const sl_ddp *ddp, int root, bool only_buffers);

/* A step's parts, in which all ranks must take part. */
sl_status sli_ddp_sync_buffers(const sl_ddp *ddp, int root);
void sli_ddp_begin(sl_ddp *ddp);
sl_status sli_ddp_end(sl_ddp *ddp);

/* What a rank is about to exchange. */
typedef enum sli_ddp_phase { SLI_DDP_FORWARD, SLI_DDP_BACKWARD } sli_ddp_phase;

/* Between join_begin and join_end: tells the ranks that are out of data what comes, and learns how
 * many are not; *root is the first of these. Otherwise there is nobody to tell, and root is 0. */
sl_status sli_ddp_announce(sl_ddp *ddp, sli_ddp_phase phase, int *root);

#endif
