/* Parameters that modules of several stages use (nn/tied.c), such as a decoder's weight that is the
 * embedding's.
 *
 *     stage 0   embedding   value   grad += ◀──┐ the owner's rank, when all rows have ended
 *                             │                │
 *     stage S-1  decoder     (the same)   grad ┘
 *
 * The stage of the parameter that the others are tied to owns it: value, gradient, optimizer.
 * Stages that share a parameter are in one process (check_tie), so the value does not travel: the
 * other stages use the owner's tensor under a handle of their own device. While stages
 * run, nothing writes it; while the optimizer runs, nothing reads it.
 *
 * A stage cannot know when another one has added its last gradient, and a table that made the owner
 * wait for it could deadlock where both are of one rank. So the sum comes after the table, when
 * every row has ended. Under DDP, the bucket of such a gradient is sent after that. */
#include "parallel/pipe.h"

#include "tensor/tensor.h"

const sli_stage *sli_pipe_find_stage(const sl_pipe *pipe, const sl_module *module)
{
    const sli_stage *stage = pipe->stages;
    int index = sli_module_index_in(pipe->model, module);
    while (index >= stage->first + stage->count)
        stage++;
    return stage;
}

static sl_status check_memory(const sl_parameter *tied, const sli_stage *owner,
                              const sli_stage *user)
{
    if (!owner->device || owner->device == user->device ||
        (sli_device_has_host_memory(owner->device) && sli_device_has_host_memory(user->device)))
        return SL_OK;
    return sl_error(SL_ERR_UNSUPPORTED,
                    "sl_pipe_create: %s of stage %d on %s is tied to %s of stage %d on %s: both "
                    "stages must be on one device, or on CPUs",
                    tied->path, user->index, sl_device_name(user->device), tied->tied_to->path,
                    owner->index, sl_device_name(owner->device));
}

static sl_status check_tie(sl_parameter *tied, void *arg)
{
    sl_pipe *pipe = arg;
    const sli_stage *owner = sli_pipe_find_stage(pipe, tied->tied_to->module);
    const sli_stage *user = sli_pipe_find_stage(pipe, tied->module);
    pipe->has_ties = true;
    if (owner->group_rank == user->group_rank)
        return check_memory(tied, owner, user);
    return sl_error(SL_ERR_UNSUPPORTED,
                    "sl_pipe_create: %s of stage %d is tied to %s of stage %d, so both stages must "
                    "be on one rank of the group",
                    tied->path, user->index, tied->tied_to->path, owner->index);
}

sl_status sli_pipe_check_ties(sl_pipe *pipe)
{
    return sli_module_for_each_tie(pipe->model, check_tie, pipe);
}

static sl_status place_tied(sl_parameter *tied, void *arg)
{
    const sl_pipe *pipe = arg;
    sl_device *device = sli_pipe_find_stage(pipe, tied->module)->device;
    if (!device)
        return SL_OK;
    sli_tensor_hand_over(tied->value, device);
    if (tied->bf16)
        sli_tensor_hand_over(tied->bf16, device);
    if (tied->grad)
        sli_tensor_hand_over(tied->grad, device);
    return SL_OK;
}

void sli_pipe_place_tied(sl_pipe *pipe)
{
    (void)sli_module_for_each_tie(pipe->model, place_tied, pipe); /* has no errors */
}

static void sum_on_rank(sli_rank *rank, void *arg)
{
    sl_pipe *pipe = arg;
    for (int i = 0; i < rank->own_count; i++) {
        const sli_stage *stage = &pipe->stages[rank->own[i]];
        sl_status status = SL_OK;
        pthread_mutex_lock(rank->device_lock);
        for (int m = 0; m < stage->count && status == SL_OK; m++)
            status = sli_module_sum_tied(sl_module_child(pipe->model, stage->first + m));
        pthread_mutex_unlock(rank->device_lock);
        sl_error_context(status, "[stage %d] ", stage->index);
        sli_failure_raise(&pipe->failure, stage->index, status);
    }
}

sl_status sli_pipe_sum_tied(sl_pipe *pipe)
{
    if (!pipe->has_ties)
        return SL_OK;
    sli_pipe_run_ranks(pipe, sum_on_rank, pipe);
    return sli_pipe_end_run(pipe, false);
}
