/* The best plans of a run on this machine.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_APP_PLAN_H
#define SLUICE_APP_PLAN_H

#include "sluice/app/train.h"

SL_API_BEGIN

/* Options of a run that are not searched; flags, which can be combined. Devices, a table, virtual
 * stages, a placement and accumulation steps are never searched. */
typedef enum sl_plan_kept {
    SL_KEEP_REPLICAS = 1,
    SL_KEEP_PIPELINE_RANKS = 2,
    SL_KEEP_SCHEDULE = 4,
    SL_KEEP_CHUNKS = 8,
    SL_KEEP_RECOMPUTE = 16,
    SL_KEEP_BALANCE = 32, /* SL_BALANCE_AUTO is a search as well */
    SL_KEEP_ZERO = 64,
    SL_KEEP_SHARDS = 128,
    SL_KEEP_BATCH_SIZE = 256
} sl_plan_kept;

typedef struct sl_plan_search_options {
    const sl_train_options *run; /* with `data`, they are read, and say what the model's vocabulary
                                    and the longest row are; else model.ntokens and bptt */
    unsigned kept;               /* sl_plan_kept */
    int64_t batch_tokens; /* tokens of a step, the same in all plans: a multiple of bptt; 0: those
                             of batch_size rows of each of `shards` (0: 1) */
} sl_plan_search_options;

/* The bytes are enough for the names of as many devices as a list can have. */
enum { SL_PLANS_FOUND = 5, SL_PLAN_DEVICES_BYTES = 8192 };

/* A plan that fits the memory. */
typedef struct sl_found_plan {
    sl_train_options options; /* the run's, with what was searched; `devices` may point into this
                                 struct, which is therefore not to be copied */
    char devices[SL_PLAN_DEVICES_BYTES];
    sl_step_costs costs;
    double tokens_per_s;
    int64_t memory_bytes; /* of this host */
} sl_found_plan;

/* Profiles this machine, and searches replicas, pipeline ranks, schedule, chunks, recomputation,
 * ZeRO, how pipeline ranks share the cores, and the cut by time, as far as memory allows. Ranks are
 * threads of one process, at most one for each core. plans[0 ... *count - 1] are the best, with the
 * shortest step first, each of another shape (replicas, pipeline ranks, schedule). A replica has
 * one shard, unless `kept` says otherwise. Takes about as long as a few training steps.
 *
 * Errors: SL_ERR_MEMORY where no layout fits: what the smallest needs, and what there is;
 * SL_ERR_INVALID or SL_ERR_UNSUPPORTED where no layout has these options: why the last one that was
 * tried has not; those of reading the data and of sl_profile_modules. */
sl_status sl_plan_search(const sl_plan_search_options *options, sl_found_plan plans[SL_PLANS_FOUND],
                         int *count);

SL_API_END

#endif
