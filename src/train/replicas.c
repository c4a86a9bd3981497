#include "train/replicas.h"

#include <stdio.h>
#include <stdlib.h>

sl_status sli_replicas_create(sl_group *group, sl_pipe *pipe, sli_replicas *out)
{
    *out = (sli_replicas){.group = group,
                          .pipe = pipe,
                          .rank = group ? sl_group_rank(group) : 0,
                          .count = group ? sl_group_size(group) : 1};
    out->memory = calloc((size_t)out->count * (size_t)sl_pipe_stages(pipe), sizeof *out->memory);
    if (!out->memory)
        return sl_error(SL_ERR_MEMORY, "no memory for the record of %d replicas", out->count);
    if (!group)
        return SL_OK;
    /* The model's buffers never change. */
    const sl_ddp_options options = {.group = group, .pipe = pipe, .no_buffer_broadcast = true};
    return sl_ddp_create(&options, &out->ddp);
}

void sli_replicas_abort(const sli_replicas *replicas, sl_status error)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", sl_error_text());
    if (replicas->group) /* first: here, its rank is the one to blame */
        sl_group_abort(replicas->group, error, text);
    for (int s = 0; replicas->ddp && s < sl_pipe_stages(replicas->pipe); s++)
        sl_group_abort(sl_ddp_group(replicas->ddp, s), error, text);
    sl_error(error, "%s", text); /* whatever aborting left */
}

void sli_replicas_clear(sli_replicas *replicas)
{
    sl_ddp_destroy(&replicas->ddp);
    free(replicas->memory);
    replicas->memory = NULL;
}

sl_status sli_replicas_train(sli_replicas *replicas, const sl_pipe_batch *batch, double *loss)
{
    return replicas->ddp ? sl_ddp_train(replicas->ddp, batch, loss)
                         : sl_pipe_train(replicas->pipe, batch, loss);
}

sl_status sli_replicas_mean(const sli_replicas *replicas, double *value)
{
    if (!replicas->group)
        return SL_OK;
    return sl_group_all_reduce(replicas->group, value, 1, SL_F64, SL_REDUCE_AVERAGE, NULL);
}

sl_status sli_replicas_sum(const sli_replicas *replicas, double *values, int64_t count)
{
    if (!replicas->group)
        return SL_OK;
    return sl_group_all_reduce(replicas->group, values, count, SL_F64, SL_REDUCE_SUM, NULL);
}

sl_status sli_replicas_memory(const sli_replicas *replicas)
{
    _Static_assert(sizeof(sl_stage_memory) % sizeof(int64_t) == 0, "records are words");
    int stages = sl_pipe_stages(replicas->pipe);
    int64_t words = stages * (int64_t)(sizeof(sl_stage_memory) / sizeof(int64_t));
    sl_stage_memory *own = replicas->memory + (size_t)replicas->rank * (size_t)stages;
    for (int s = 0; s < stages; s++) {
        const sl_device *device = sl_pipe_device(replicas->pipe, s);
        own[s] = (sl_stage_memory){.rank = replicas->rank, .stage = s};
        snprintf(own[s].device, sizeof own[s].device, "%s", sl_device_name(device));
        sl_device_memory(device, &own[s].stats);
    }
    if (!replicas->group)
        return SL_OK;
    return sl_group_all_gather(replicas->group, own, replicas->memory, words, SL_I64, NULL);
}

bool sli_replicas_speak(const sli_replicas *replicas, sl_status *status)
{
    if (replicas->rank == 0)
        return true;
    *status = sl_group_barrier(replicas->group, NULL);
    return false;
}
