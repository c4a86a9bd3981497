#include "train/best.h"

#include <stdlib.h>

typedef struct stage_copy {
    int count;
    sl_tensor **buckets; /* [count] */
} stage_copy;

struct sli_best {
    sl_pipe *pipe;
    bool kept;
    int stages;
    stage_copy copies[]; /* [stages] */
};

sl_status sli_best_create(sl_pipe *pipe, sli_best **out)
{
    int stages = sl_pipe_stages(pipe);
    *out = calloc(1, sizeof **out + (size_t)stages * sizeof(stage_copy));
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the best parameters' record");
    (*out)->pipe = pipe;
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

static sl_status keep_stage(int stage, void *arg)
{
    sli_best *best = arg;
    stage_copy *copy = &best->copies[stage];
    sl_parameter_set *set = sl_pipe_parameters(best->pipe, stage);
    if (!copy->buckets)
        SL_TRY(allocate_stage(copy, set));
    for (int b = 0; b < copy->count; b++)
        SL_TRY(sl_tensor_copy(copy->buckets[b], sl_parameter_set_bucket_values(set, b)));
    return SL_OK;
}

static sl_status restore_stage(int stage, void *arg)
{
    sli_best *best = arg;
    stage_copy *copy = &best->copies[stage];
    sl_parameter_set *set = sl_pipe_parameters(best->pipe, stage);
    for (int b = 0; b < copy->count; b++)
        SL_TRY(sl_tensor_copy(sl_parameter_set_bucket_values(set, b), copy->buckets[b]));
    return SL_OK;
}

sl_status sli_best_keep(sli_best *best)
{
    SL_TRY(sl_pipe_run(best->pipe, keep_stage, best));
    best->kept = true;
    return SL_OK;
}

bool sli_best_kept(const sli_best *best)
{
    return best->kept;
}

sl_tensor *sli_best_bucket(const sli_best *best, int stage, int bucket)
{
    return best->copies[stage].buckets[bucket];
}

sl_status sli_best_restore(sli_best *best)
{
    return best->kept ? sl_pipe_run(best->pipe, restore_stage, best) : SL_OK;
}
