/* The layout of a run: replicas and stages, modules and devices. */
#ifndef SLI_TRAIN_PLAN_LAYOUT_H
#define SLI_TRAIN_PLAN_LAYOUT_H

#include "sluice/app/train.h"

/* What one rank of a run has: a replica, all in one process, or some pipeline ranks of one. Ranks
 * are threads of one process, each a replica, or processes. */
typedef struct sli_layout {
    int replica;
    int rank_in_replica, ranks_per_replica; /* 1 rank: it has all pipeline ranks */
    int first, count;                       /* its pipeline ranks */
} sli_layout;

sli_layout sli_layout_of_rank(const sl_train_options *options, int rank);

/* Ranks on this host, and the pipeline ranks of each. */
int sli_layout_host_ranks(const sl_train_options *options);
int sli_layout_pipeline_ranks_of_rank(const sl_train_options *options);

/* Shards of the training text: what the options say, or one for each replica. */
int sli_layout_shards(const sl_train_options *options);

/* The accumulation steps in which a shard's batch goes through the pipe: what the options say, or
 * 1; and the micro-batches of all of them. */
int sli_layout_accumulation_steps(const sl_train_options *options);
int sli_layout_micros(const sl_train_options *options);

/* Pipeline ranks of each replica: what the options say, or as many as `balance` or `devices` has;
 * and the stages on them. */
int sli_layout_pipeline_ranks(const sl_train_options *options);
int sli_layout_stages(const sl_train_options *options);

/* The rank of each stage, in `room` or NULL: the table's or the schedule's own. */
sl_status sli_layout_placement(const sl_train_options *options, int room[SL_MAX_STAGES],
                               const int **out);

/* The order of computation for `micros` micro-batches, which the caller frees. */
sl_status sli_layout_table(const sl_train_options *options, int micros, sl_schedule **out);

/* The number of modules of each stage, into balance[0 … *stages - 1]. */
sl_status sli_layout_balance(const sl_train_options *options, const sl_module *model, int *balance,
                             int *stages);

/* Refuses numbers of stages, replicas, ranks and devices that contradict each other. */
sl_status sli_layout_check(const sl_train_options *options);

/* The names of the host's devices, separated by commas, malloc'ed. */
sl_status sli_layout_devices(const sl_train_options *options, char **out);

/* The same for ranks that all have the host's cores. */
sl_status sli_layout_shared_devices(const sl_train_options *options, char **out);

#endif
