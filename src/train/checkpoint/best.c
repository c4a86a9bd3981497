/* The parameters that did best in validation: a copy on their devices. */
#include "core/error.h"
#include "train/checkpoint/checkpoints.h"

#include <stdlib.h>

sl_status sli_best_create(int stages, bool shared, sli_best **out)
{
    *out = calloc(1, sizeof **out + (size_t)stages * sizeof *(*out)->copies);
    if (!*out)
        return sli_no_memory(NULL, "the best parameters");
    (*out)->shared = shared;
    (*out)->stages = stages;
    return SL_OK;
}

void sli_best_destroy(sli_best **best)
{
    if (!*best)
        return;
    for (int s = 0; s < (*best)->stages; s++) {
        for (sl_tensor **bucket = (*best)->copies[s]; bucket && *bucket; bucket++)
            sl_tensor_destroy(bucket);
        free((*best)->copies[s]);
    }
    free(*best);
    *best = NULL;
}

/* One replica's use of the copy. */
typedef struct best_copy {
    sl_tensor ***copies; /* [stages] */
    sl_pipe *pipe;
    bool restores;
} best_copy;

static sl_status copy_stage(int stage, void *arg)
{
    const best_copy *copy = arg;
    sl_parameter_set *set = sl_pipe_parameters(copy->pipe, stage);
    int count = sl_parameter_set_bucket_count(set);
    sl_tensor **copies = copy->copies[stage];
    if (!copies)
        copies = copy->copies[stage] = calloc((size_t)count + 1, sizeof(sl_tensor *));
    if (!copies)
        return sli_no_memory(NULL, "the best parameters");
    for (int b = 0; b < count; b++) {
        sl_tensor *values = sl_parameter_set_bucket_values(set, b);
        if (!copies[b])
            SL_TRY(sl_tensor_create(sl_parameter_set_device(set), SL_MEMORY_PARAMETERS, SL_F32,
                                    sl_tensor_shape(values), &copies[b]));
        SL_TRY(copy->restores ? sl_tensor_copy(values, copies[b])
                              : sl_tensor_copy(copies[b], values));
    }
    return SL_OK;
}

sl_status sli_best_keep(sli_best *best, const sli_replica *replica)
{
    sl_pipe *pipe = replica->pipe;
    if (best->shared && replica->index > 0)
        return SL_OK;
    SL_TRY(sl_pipe_run_on_stages(pipe, copy_stage, &(best_copy){best->copies, pipe, false}));
    best->kept = true;
    return SL_OK;
}

sl_status sli_best_restore(const sli_best *best, sl_pipe *pipe)
{
    best_copy copy = {(sl_tensor ***)best->copies, pipe, true};
    return best->kept ? sl_pipe_run_on_stages(pipe, copy_stage, &copy) : SL_OK;
}
