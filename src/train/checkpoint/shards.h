/* The optimizers' sharded state as a part of a checkpoint that all replicas write, each its own
 * slices.
 *
 *     a bucket    | 0.weight                | 1.bias | 2.weight           |
 *     slices      |- replica 0 -|--- replica 1 ---|------ replica 2 ------|
 *
 *     replica 0   0.weight.exp_avg@0
 *     replica 1   0.weight.exp_avg@112, 1.bias.exp_avg, 2.weight.exp_avg@0
 *     replica 2   2.weight.exp_avg@48
 *
 * What lies in one slice is a whole tensor; what lies in several is cut, as io/checkpoint/slices.h
 * says. Every replica computes the whole list, so that nobody need be told of it. */
#ifndef SLI_TRAIN_CHECKPOINT_SHARDS_H
#define SLI_TRAIN_CHECKPOINT_SHARDS_H

#include "io/checkpoint/writer.h"
#include "train/checkpoint/snapshot.h"
#include "train/replica.h"
#include "train/update.h"

typedef struct sli_shards {
    sl_checkpoint_part part; /* "optimizer", all replicas' items, replica by replica */
    sli_checkpoint_plan plan;
    sli_tensors own; /* this replica's of them, in its optimizers' memory */
    size_t own_first;
    /* What the above refer to: */
    sl_safetensors_item *items;
    int *owner_of; /* [part.count] */
    sl_metadata note;
} sli_shards;

/* The elements begin … end - 1 of a trained parameter that lie in a replica's slice of their
 * bucket, none where they end before they begin; `in_slice` is the place of the first of them
 * there. */
typedef struct sli_shard_range {
    int bucket;
    int64_t begin, end, in_slice;
} sli_shard_range;

sl_status sli_shard_find(const sl_parameter_set *set, const sl_parameter *parameter, int rank,
                         int ranks, sli_shard_range *out);

/* For the replica `replicas->rank`, whose optimizers are sharded over all. */
sl_status sli_shards_create(const sli_replica *replicas, const sli_update *update,
                            uint64_t shard_bytes, sli_shards **out);
void sli_shards_destroy(sli_shards **shards); /* NULL is allowed */

/* The copy of `own` becomes the data of the plan's items; borrowed. */
void sli_shards_take_data(sli_shards *shards, const sli_copied *copy);

/* The most files that a replica has. */
size_t sli_shards_most_files(const sli_shards *shards, int replicas);

#endif
