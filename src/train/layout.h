/* The layout of a run: its replicas and stages, the rows of each replica, the modules and the
 * device of each stage.
 *
 * The devices of a host are in the order of its replicas: pipeline rank p of the host's replica r
 * has device r * ranks + p. By default they are cpu:0, cpu:1 and so on; `devices` may be
 *
 *     cpu:0,cpu:1,cpu:2,cpu:3      divided evenly: two replicas have cpu:0,cpu:1 and cpu:2,cpu:3
 *     cpu:0,cpu:1;cpu:2,cpu:3      the same, with a list for each replica */
#ifndef SLI_TRAIN_LAYOUT_H
#define SLI_TRAIN_LAYOUT_H

#include "sluice/train.h"

/* Replicas on this host. */
int sli_layout_local_replicas(const sl_train_options *options);

/* Shards of the training text: what the options say, or one for each replica. */
int sli_layout_shards(const sl_train_options *options);

/* A replica's rows of a batch, which has the rows of all shards. Replicas divide it into contiguous
 * ranges as evenly as possible; the first ranges are one row longer. */
typedef struct sli_rows {
    int64_t first, count;
} sli_rows;
sli_rows sli_layout_rows(const sl_train_options *options, int replica);

/* The turns in which a batch goes through the pipe: what the options say, or 1. */
int sli_layout_turns(const sl_train_options *options);

/* The number of micro-batches of all turns for so many rows. They are at most as large as those of
 * one shard, so that they need no more memory, and at least as many, so that the bubble does not
 * grow. */
int sli_layout_chunks(const sl_train_options *options, int64_t rows);

/* Pipeline ranks of each replica: what the options say, or as many as `balance` or `devices` has;
 * and the stages on them. */
int sli_layout_ranks(const sl_train_options *options);
int sli_layout_stages(const sl_train_options *options);

/* The rank of each stage, in `room` or NULL: the table's or the schedule's own. */
sl_status sli_layout_placement(const sl_train_options *options, int room[SL_MAX_STAGES],
                               const int **out);

/* The order of computation for so many micro-batches, which the caller frees. */
sl_status sli_layout_table(const sl_train_options *options, int micros, sl_schedule **out);

/* The number of modules of each stage, into balance[0 … *stages - 1]. */
sl_status sli_layout_balance(const sl_train_options *options, const sl_module *model, int *balance,
                             int *stages);

/* Refuses numbers of stages, replicas and devices that contradict each other. */
sl_status sli_layout_check(const sl_train_options *options);

/* The names of the host's devices, separated by commas, malloc'ed. */
sl_status sli_layout_devices(const sl_train_options *options, char **out);

#endif
