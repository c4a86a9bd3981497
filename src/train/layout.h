/* Where a run's replicas are: how many there are, and which devices the stages of each one have.
 *
 * A host's devices stand in one list, replica by replica: stage s of the host's replica r has
 * device r * stages + s of it. The list is what `devices` says,
 *
 *     cpu:0,cpu:1,cpu:2,cpu:3      divided evenly: two replicas have cpu:0,cpu:1 and cpu:2,cpu:3
 *     cpu:0,cpu:1;cpu:2,cpu:3      the same, with a part for each replica
 *
 * or, by default, cpu:0, cpu:1, … */
#ifndef SLI_TRAIN_LAYOUT_H
#define SLI_TRAIN_LAYOUT_H

#include "sluice/train.h"

/* Replicas on this host. */
int sli_layout_local_replicas(const sl_train_options *options);

/* Shards of the training text: what the options say, or one for each replica. */
int sli_layout_shards(const sl_train_options *options);

/* The rows of a batch that a replica has, among those of all shards: a run of them, as even as
 * possible, the first replicas having one more. */
typedef struct sli_rows {
    int64_t first, count;
} sli_rows;
sli_rows sli_layout_rows(const sl_train_options *options, int replica);

/* Micro-batches for so many rows: not larger than a shard's would be, so that they need no more
 * memory, and not fewer, so that the stages idle no longer. */
int sli_layout_chunks(const sl_train_options *options, int64_t rows);

/* Stages of each replica: what the options say, or as many as the balance or the devices have. */
int sli_layout_stages(const sl_train_options *options);

/* Modules per stage by the options' rule, into balance[0 … *stages - 1], and the number of stages.
 */
sl_status sli_layout_balance(const sl_train_options *options, const sl_module *model, int *balance,
                             int *stages);

/* Refuses numbers of stages, replicas and devices that do not go together, in one sentence. */
sl_status sli_layout_check(const sl_train_options *options);

/* The host's list, with commas alone; the caller frees it. */
sl_status sli_layout_devices(const sl_train_options *options, char **out);

#endif
