#include "train/peers.h"

#include <stdio.h>
#include <stdlib.h>

sl_status sli_peers_create(sl_group *group, sl_pipe *pipe, sli_peers *out)
{
    *out = (sli_peers){.group = group,
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

void sli_peers_abort(const sli_peers *peers, sl_status error)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", sl_error_text());
    if (peers->group) /* first: here, its rank is the one to blame */
        sl_group_abort(peers->group, error, text);
    for (int s = 0; peers->ddp && s < sl_pipe_stages(peers->pipe); s++)
        sl_group_abort(sl_ddp_group(peers->ddp, s), error, text);
    sl_error(error, "%s", text); /* whatever aborting left */
}

void sli_peers_clear(sli_peers *peers)
{
    sl_ddp_destroy(&peers->ddp);
    free(peers->memory);
    peers->memory = NULL;
}

sl_status sli_peers_train(sli_peers *peers, const sl_pipe_batch *batch, double *loss)
{
    return peers->ddp ? sl_ddp_train(peers->ddp, batch, loss)
                      : sl_pipe_train(peers->pipe, batch, loss);
}

sl_status sli_peers_mean(const sli_peers *peers, double *value)
{
    if (!peers->group)
        return SL_OK;
    return sl_group_all_reduce(peers->group, value, 1, SL_F64, SL_REDUCE_AVERAGE, NULL);
}

sl_status sli_peers_sum(const sli_peers *peers, double *values, int64_t count)
{
    if (!peers->group)
        return SL_OK;
    return sl_group_all_reduce(peers->group, values, count, SL_F64, SL_REDUCE_SUM, NULL);
}

sl_status sli_peers_memory(const sli_peers *peers)
{
    _Static_assert(sizeof(sl_stage_memory) % sizeof(int64_t) == 0, "records are words");
    int stages = sl_pipe_stages(peers->pipe);
    int64_t words = stages * (int64_t)(sizeof(sl_stage_memory) / sizeof(int64_t));
    sl_stage_memory *own = peers->memory + (size_t)peers->rank * (size_t)stages;
    for (int s = 0; s < stages; s++) {
        const sl_device *device = sl_pipe_device(peers->pipe, s);
        own[s] = (sl_stage_memory){.rank = peers->rank, .stage = s};
        snprintf(own[s].device, sizeof own[s].device, "%s", sl_device_name(device));
        sl_device_memory(device, &own[s].stats);
    }
    if (!peers->group)
        return SL_OK;
    return sl_group_all_gather(peers->group, own, peers->memory, words, SL_I64, NULL);
}

bool sli_peers_speak(const sli_peers *peers, sl_status *status)
{
    if (peers->rank == 0)
        return true;
    *status = sl_group_barrier(peers->group, NULL);
    return false;
}
