/* Optimizers of one shard of every bucket, and their state: for sharding it over ranks. */
#ifndef SLI_OPTIM_OPTIMIZER_H
#define SLI_OPTIM_OPTIMIZER_H

#include "device/device.h"
#include "sluice/optim.h"

/* Refuses what sl_optimizer_create refuses. */
sl_status sli_optimizer_check(const sl_optimizer_options *options);

/* `options` with AdamW's defaults in place of zeros. */
sl_optimizer_options sli_optimizer_filled(const sl_optimizer_options *options);

typedef struct sli_shard {
    int64_t start, count; /* elements of a bucket; the last shards may be short or empty */
} sli_shard;

/* Shard `index` of the `shards` that a bucket is cut into. */
sli_shard sli_optimizer_shard(const sl_parameter_set *set, int bucket, int index, int shards);

/* The elements of a trained parameter that a shard has. */
typedef struct sli_shard_range {
    int bucket;
    int64_t first, count; /* of the parameter, row by row */
    int64_t offset;       /* of the first one, from the shard's start on */
} sli_shard_range;

sl_status sli_optimizer_range(const sl_parameter_set *set, const sl_parameter *parameter, int index,
                              int shards, sli_shard_range *out);

/* As sl_optimizer_create, but with state for shard `index` of `shards` of every bucket only. A step
 * changes the values in these shards only, to the same bits as an unsharded optimizer's. */
sl_status sli_optimizer_create_shard(const sl_optimizer_options *options, sl_parameter_set *set,
                                     int index, int shards, sl_optimizer **out);

/* 0 to 2 arrays a bucket; array i of a bucket is [shard.count], f32 or bf16. */
int sli_optimizer_arrays_of(const sl_optimizer_options *options);
sl_dtype sli_optimizer_dtype_of(const sl_optimizer_options *options);
sl_tensor *sli_optimizer_state(const sl_optimizer *optimizer, int bucket, int array);

/* What torch.optim calls array i: "momentum_buffer"; "exp_avg" and "exp_avg_sq". */
const char *sli_optimizer_array_name(const sl_optimizer_options *options, int array);

/* How many steps each trained parameter has taken, in the order of the buckets. */
int64_t *sli_optimizer_steps(const sl_optimizer *optimizer, int *parameters);
void sli_optimizer_set_steps(sl_optimizer *optimizer, int64_t steps); /* of all */
/* Both optimizers have the same number of parameters. */
void sli_optimizer_copy_steps(sl_optimizer *target, const sl_optimizer *source);
const sl_optimizer_options *sli_optimizer_options(const sl_optimizer *optimizer);

/* ---- The norm of gradients (clip.c) ------------------------------------------------------- */

/* Each trained parameter's term of the norm, in order of registration: the sum of |g| (L1), the sum
 * of g^2 (L2), or the largest |g| (INF); 0 where there is no gradient; none of a parameter that has
 * block terms. `terms` [size] gets them, *count how many there are: at most sl_parameter_set_count.
 * Must be called by the thread that drives the set's device. Errors: SL_ERR_INVALID if there are
 * more than `size`. */
sl_status sli_grad_norm_terms(sl_parameter_set *set, sl_grad_norm_kind kind, double *terms,
                              int size, int *count);

/* Those of any arrays of gradients. */
sl_status sli_grad_norm_array_terms(sl_device *device, sl_grad_norm_kind kind,
                                    const sli_norm_array *arrays, int count, double *terms);

/* The norm from the terms of all stages, in the model's order. It does not depend on how the model
 * is cut into stages. */
double sli_grad_norm_combine(sl_grad_norm_kind kind, const double *terms, int count);

/* torch.nn.utils.clip_grad_norm_'s coefficient: min(1, max_norm / (norm + 1e-6)). */
double sli_clip_coefficient(double norm, double max_norm);

#endif
