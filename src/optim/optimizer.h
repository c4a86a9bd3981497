/* Optimizers that work on a slice of every bucket, and their state: for sharding it over ranks. */
#ifndef SLI_OPTIM_OPTIMIZER_H
#define SLI_OPTIM_OPTIMIZER_H

#include "sluice/optim.h"

/* Refuses what sl_optimizer_create refuses. */
sl_status sli_optimizer_check(const sl_optimizer_options *options);

/* `options` with AdamW's defaults in place of zeros. */
sl_optimizer_options sli_optimizer_filled(const sl_optimizer_options *options);

typedef struct sli_shard {
    int64_t start, count; /* elements of a bucket; the last slices may be short or empty */
} sli_shard;

/* Slice `part` of `parts` of a bucket. */
sli_shard sli_optimizer_shard(const sl_parameter_set *set, int bucket, int part, int parts);

/* As sl_optimizer_create, but with state for slice `part` of `parts` of every bucket, and steps
 * that change these values alone, to the same bits as a whole optimizer's. */
sl_status sli_optimizer_create_shard(const sl_optimizer_options *options, sl_parameter_set *set,
                                     int part, int parts, sl_optimizer **out);

int sli_optimizer_bucket_count(const sl_optimizer *optimizer);

/* 0 to 2 arrays a bucket; array i of a bucket is f32 [slice.count]. */
int sli_optimizer_state_arrays(const sl_optimizer *optimizer);
sl_tensor *sli_optimizer_state(const sl_optimizer *optimizer, int bucket, int array);

/* What torch.optim calls array i: "momentum_buffer"; "exp_avg" and "exp_avg_sq". */
const char *sli_optimizer_state_name(const sl_optimizer *optimizer, int array);

/* How many steps each trained parameter has taken, in the order of the buckets. */
const int64_t *sli_optimizer_steps(const sl_optimizer *optimizer, int *parameters);
void sli_optimizer_set_steps(sl_optimizer *optimizer, int64_t steps); /* of all */
/* Of parameters in the same number. */
void sli_optimizer_copy_steps(sl_optimizer *to, const sl_optimizer *from);
const sl_optimizer_options *sli_optimizer_options(const sl_optimizer *optimizer);

#endif
