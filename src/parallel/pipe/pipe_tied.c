/* Parameters that modules of several stages use (nn/tied.c), such as a decoder's weight that is the
 * embedding's.
 *
 *     stage 0   embedding   value   grad += ◀──┐ the owner's rank, when all rows have ended
 *                             │                │
 *     stage S-1  decoder     (the same)   grad ┘
 *
 * The stage of the parameter that the others are tied to owns it (but for an embedding that is cut
 * with a split head, pipe_head_values.c): value, gradient, optimizer.
 * Stages of its process use the owner's tensor under a handle of their own device. While stages
 * run, nothing writes it; while the optimizer runs, nothing reads it. Another process has a copy of
 * the value, which it gets before the first batch after a change, and a gradient of its own, which
 * it sends to the owner's process after the table. That one holds as many gradients as if all
 * stages were there, and adds them in the same order.
 *
 * A stage cannot know when another one has added its last gradient, and a table that made the owner
 * wait for it could deadlock where both are of one rank. So the sum comes after the table, when
 * every row has ended. Under DDP, the bucket of such a gradient is sent after that. */
#include "parallel/pipe/pipe_tied.h"

#include "parallel/pipe/pipe.h"

#include "tensor/tensor.h"

/* Parts of a split head have what is cut (pipe_head_values.c). */
static bool is_cut(const sl_parameter *tied)
{
    return tied->tied_to->is_cut;
}

static sl_status check_memory(const sl_parameter *tied, const sli_stage *owner,
                              const sli_stage *user)
{
    if (!owner->device || owner->device == user->device ||
        (sl_device_has_host_memory(owner->device) && sl_device_has_host_memory(user->device)))
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
    if (is_cut(tied))
        return SL_OK;
    pipe->has_ties = true;
    pipe->has_remote_ties |= owner->group_rank != user->group_rank;
    return owner->group_rank == user->group_rank ? check_memory(tied, owner, user) : SL_OK;
}

sl_status sli_pipe_check_ties(sl_pipe *pipe)
{
    return sli_module_for_each_tie(pipe->model, check_tie, pipe);
}

/* Has this process just the stage that owns the parameter (`of_owner`), or just the one that uses
 * it? *rank: the other one's process. */
static bool is_end_of(const sl_pipe *pipe, const sl_parameter *tied, bool of_owner, int *rank)
{
    const sli_stage *owner = sli_pipe_find_stage(pipe, tied->tied_to->module);
    const sli_stage *user = sli_pipe_find_stage(pipe, tied->module);
    *rank = of_owner ? user->group_rank : owner->group_rank;
    return !is_cut(tied) && owner->group_rank != user->group_rank &&
           (of_owner ? owner : user)->is_here;
}

/* ---- Creation --------------------------------------------------------------------------- */

/* What the owner's set does in its process (nn/parameter_set.c). */
static sl_status create_copy(const sl_pipe *pipe, sl_parameter *tied, sl_device *device)
{
    sl_dtype dtype = sli_parameter_dtype(tied, pipe->precision);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, dtype, &tied->shape, &tied->value));
    tied->tf32 = pipe->precision == SL_PRECISION_TF32;
    if (dtype == SL_BF16)
        SL_TRY(sl_tensor_alias(tied->value, &tied->bf16));
    else if (pipe->precision == SL_PRECISION_BF16 && sli_parameter_is_in_products(tied->tied_to))
        SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, SL_BF16, &tied->shape, &tied->bf16));
    if (!pipe->inference && sl_parameter_get_kind(tied) == SL_PARAMETER_TRAINED)
        SL_TRY(sl_tensor_create(device, SL_MEMORY_GRADIENTS, SL_F32, &tied->shape, &tied->grad));
    tied->grad_is_stale = true;
    return SL_OK;
}

static sl_status place_tied(sl_parameter *tied, void *arg)
{
    const sl_pipe *pipe = arg;
    int rank;
    sl_device *device = sli_pipe_find_stage(pipe, tied->module)->device;
    if (!device || is_cut(tied))
        return SL_OK;
    if (is_end_of(pipe, tied, false, &rank))
        return create_copy(pipe, tied, device);
    sli_tensor_hand_over(tied->value, device);
    if (tied->bf16)
        sli_tensor_hand_over(tied->bf16, device);
    if (tied->grad)
        sli_tensor_hand_over(tied->grad, device);
    return SL_OK;
}

sl_status sli_pipe_place_tied(sl_pipe *pipe)
{
    return sli_module_for_each_tie(pipe->model, place_tied, pipe);
}

static sl_status destroy_copy(sl_parameter *tied, void *arg)
{
    int rank;
    if (!is_end_of(arg, tied, false, &rank))
        return SL_OK;
    sl_tensor_destroy(&tied->value);
    sl_tensor_destroy(&tied->bf16);
    sl_tensor_destroy(&tied->grad);
    return SL_OK;
}

static sl_status zero_copy(sl_parameter *tied, void *arg)
{
    int rank;
    tied->grad_is_stale |= is_end_of(arg, tied, false, &rank);
    return SL_OK;
}

void sli_pipe_destroy_tied(sl_pipe *pipe)
{
    if (pipe->has_remote_ties)
        (void)sli_module_for_each_tie(pipe->model, destroy_copy, pipe); /* has no errors */
}

void sli_pipe_zero_tied(sl_pipe *pipe)
{
    if (pipe->has_remote_ties)
        (void)sli_module_for_each_tie(pipe->model, zero_copy, pipe); /* has no errors */
}

/* ---- Between processes -------------------------------------------------------------------- */

static sl_status send_tensor(const sl_pipe *pipe, const sl_tensor *tensor, int rank)
{
    sli_host_array data;
    SL_TRY(sli_tensor_open_host(tensor, true, &data));
    sl_status status = sli_pipe_group_send(pipe->group, data.host, sl_tensor_count(tensor),
                                           sl_tensor_dtype(tensor), rank);
    sli_host_array_close(&data, false);
    return status;
}

static sl_status receive_tensor(const sl_pipe *pipe, sl_tensor *tensor, int rank)
{
    sli_host_array data;
    SL_TRY(sli_tensor_open_host(tensor, false, &data));
    sl_status status = sli_pipe_group_receive(pipe->group, data.host, sl_tensor_count(tensor),
                                              sl_tensor_dtype(tensor), rank);
    sl_status closed = sli_host_array_close(&data, status == SL_OK);
    return status == SL_OK ? closed : status;
}

static sl_status exchange_value(sl_parameter *tied, void *arg)
{
    const sl_pipe *pipe = arg;
    int rank;
    if (is_end_of(pipe, tied, true, &rank))
        return send_tensor(pipe, tied->tied_to->value, rank);
    if (!is_end_of(pipe, tied, false, &rank))
        return SL_OK;
    SL_TRY(receive_tensor(pipe, tied->value, rank));
    bool has_copy = tied->bf16 && sl_tensor_dtype(tied->value) == SL_F32;
    return has_copy ? sli_tensor_convert(tied->value, tied->bf16) : SL_OK;
}

sl_status sli_pipe_exchange_tied(sl_pipe *pipe)
{
    if (!pipe->has_remote_ties)
        return SL_OK;
    return sli_pipe_group_check(pipe->group,
                                sli_module_for_each_tie(pipe->model, exchange_value, pipe));
}

/* A process may have none, where a batch did not reach it. */
static sl_status exchange_gradient(sl_parameter *tied, void *arg)
{
    const sl_pipe *pipe = arg;
    int rank;
    int32_t has_any = !tied->grad_is_stale;
    if (!tied->grad)
        return SL_OK;
    if (is_end_of(pipe, tied, false, &rank)) {
        tied->grad_is_stale = true; /* the next one overwrites it */
        SL_TRY(sli_pipe_group_send(pipe->group, &has_any, 1, SL_I32, rank));
        return has_any ? send_tensor(pipe, tied->grad, rank) : SL_OK;
    }
    if (!is_end_of(pipe, tied, true, &rank))
        return SL_OK;
    SL_TRY(sli_pipe_group_receive(pipe->group, &has_any, 1, SL_I32, rank));
    tied->grad_is_stale = !has_any;
    return has_any ? receive_tensor(pipe, tied->grad, rank) : SL_OK;
}

/* ---- The sum ------------------------------------------------------------------------------ */

static sl_status sum_on_stage(int index, void *arg)
{
    const sl_pipe *pipe = arg;
    const sli_stage *stage = &pipe->stages[index];
    for (int m = 0; m < stage->count; m++)
        SL_TRY(sli_module_sum_tied(sl_module_child(pipe->model, stage->first + m)));
    return SL_OK;
}

sl_status sli_pipe_sum_tied(sl_pipe *pipe)
{
    if (!pipe->has_ties)
        return SL_OK;
    if (pipe->has_remote_ties)
        SL_TRY(sli_pipe_group_check(pipe->group,
                                    sli_module_for_each_tie(pipe->model, exchange_gradient, pipe)));
    return sl_pipe_run_on_stages(pipe, sum_on_stage, pipe);
}
