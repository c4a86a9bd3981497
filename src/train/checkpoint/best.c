#include "train/checkpoint/checkpoints.h"

#include <stdlib.h>

typedef struct stage_copy {
    int count;
    sl_tensor **buckets; /* [count] */
} stage_copy;

struct sli_best {
    const sl_device *device; /* the first replica's, of stage 0 */
    bool shared, kept;
    int stages;
    stage_copy copies[]; /* [stages] */
};

sl_status sli_best_create(const sl_device *device, int stages, bool shared, sli_best **out)
{
    *out = calloc(1, sizeof **out + (size_t)stages * sizeof(stage_copy));
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the best parameters' record");
    (*out)->device = device;
    (*out)->shared = shared;
    (*out)->stages = stages;
    return SL_OK;
}

void sli_best_destroy(sli_best **best)
{
    if (!*best)
        return;
    for (int s = 0; s < (*best)->stages; s++) {
        stage_copy *copy = &(*best)->copies[s];
        for (int b = 0; b < copy->count; b++)
            sl_tensor_destroy(&copy->buckets[b]);
        free(copy->buckets);
    }
    free(*best);
    *best = NULL;
}

static sl_status allocate_stage(stage_copy *copy, sl_parameter_set *set)
{
    int count = sl_parameter_set_bucket_count(set);
    copy->buckets = calloc((size_t)count + 1, sizeof(sl_tensor *));
    if (!copy->buckets)
        return sl_error(SL_ERR_MEMORY, "no memory for the best parameters' record");
    copy->count = count;
    for (int b = 0; b < count; b++)
        SL_TRY(sl_tensor_create(sl_parameter_set_device(set), SL_MEMORY_PARAMETERS, SL_F32,
                                sl_tensor_shape(sl_parameter_set_bucket_values(set, b)),
                                &copy->buckets[b]));
    return SL_OK;
}

/* One replica's use of the copy. */
typedef struct use {
    stage_copy *copies; /* [stages] */
    sl_pipe *pipe;
    bool restores;
} use;

static sl_status copy_stage(int stage, void *arg)
{
    const use *of = arg;
    stage_copy *copy = &of->copies[stage];
    sl_parameter_set *set = sl_pipe_parameters(of->pipe, stage);
    if (!copy->buckets)
        SL_TRY(allocate_stage(copy, set));
    for (int b = 0; b < copy->count; b++) {
        sl_tensor *kept = copy->buckets[b], *values = sl_parameter_set_bucket_values(set, b);
        SL_TRY(of->restores ? sl_tensor_copy(values, kept) : sl_tensor_copy(kept, values));
    }
    return SL_OK;
}

bool sli_best_is_shared(const sli_best *best)
{
    return best->shared;
}

sl_status sli_best_keep(sli_best *best, sl_pipe *pipe)
{
    if (sl_pipe_device(pipe, 0) != best->device)
        return SL_OK;
    SL_TRY(sl_pipe_run(pipe, copy_stage, &(use){best->copies, pipe, false}));
    best->kept = true;
    return SL_OK;
}

sl_tensor *sli_best_bucket(const sli_best *best, int stage, int bucket)
{
    return best->copies[stage].buckets[bucket];
}

sl_status sli_best_restore(const sli_best *best, sl_pipe *pipe)
{
    use of = {(stage_copy *)best->copies, pipe, true};
    return best->kept ? sl_pipe_run(pipe, copy_stage, &of) : SL_OK;
}
