/* Training steps of DistributedDataParallel, and ranks with different numbers of batches.
 *
 * A step of a replica without sync is its own. In any other, all ranks take part: buffers become
 * rank 0's before forward, and gradients are exchanged during backward.
 *
 * With sl_ddp_join_begin, ranks announce what they are about to do: an all-reduce of
 * { ranks with data, of them before a forward, of them before a backward }. A rank that is out of
 * data answers each announcement with zeros and then takes part in what was announced, with
 * gradients of 0. An announcement without any rank that has data is the end.
 *
 *     rank 0   step  step  out  shadow  shadow  (no rank has data)  values ◀─┐
 *     rank 1   step  step  step  step    out    (no rank has data)  values ──┘ the last rank's
 *
 * An error in an announcement or an exchange is every rank's, and ends the join on all of them. */
#include "parallel/ddp/ddp.h"

#include "comm/group.h"
#include "core/error.h"
#include "parallel/pipe/pipe.h"

/* ---- Announcements ---------------------------------------------------------------------- */

enum { ACTIVE, BEFORE_FORWARD, BEFORE_BACKWARD, WORDS };

/* Adds up all ranks' words; *root becomes the first rank that has data. */
static sl_status exchange_words(sl_ddp *ddp, int32_t words[WORDS], int *root)
{
    enum { HAS_DATA, HAS_NONE, KINDS }; /* the first rank of each */
    int32_t size = sl_group_size(ddp->group), rank = sl_group_rank(ddp->group);
    int32_t first[KINDS] = {words[ACTIVE] ? rank : size, words[ACTIVE] ? size : rank};
    SL_TRY(sl_group_all_reduce(ddp->group, words, WORDS, SL_I32, SL_REDUCE_SUM, NULL));
    *root = 0;
    ddp->active = words[ACTIVE];
    if (ddp->active == size)
        return SL_OK;
    SL_TRY(sl_group_all_reduce(ddp->group, first, KINDS, SL_I32, SL_REDUCE_MIN, NULL));
    *root = first[HAS_DATA];
    if (ddp->join.fail_at_first && ddp->active > 0)
        return sl_error(SL_ERR_CANCELLED,
                        "sl_ddp: rank %d exhausted its inputs, and fail_at_first asks to stop all "
                        "ranks then",
                        (int)first[HAS_NONE]);
    return SL_OK;
}

/* Announces BEFORE_FORWARD or BEFORE_BACKWARD. Without a join there is no rank to tell, and *root
 * is 0. */
static sl_status announce_phase(sl_ddp *ddp, int phase, int *root)
{
    *root = 0;
    ddp->active = sl_group_size(ddp->group);
    if (!ddp->joins)
        return SL_OK;
    int32_t words[WORDS] = {[ACTIVE] = 1};
    words[phase] = 1;
    sl_status status = exchange_words(ddp, words, root);
    ddp->joins = status == SL_OK;
    return status;
}

/* ---- Steps ------------------------------------------------------------------------------ */

static sl_status prepare_forward(sl_ddp *ddp)
{
    int root;
    SL_TRY(announce_phase(ddp, BEFORE_FORWARD, &root));
    return ddp->broadcasts_buffers ? sli_ddp_broadcast(ddp, root, true) : SL_OK;
}

static sl_status prepare_backward(sl_ddp *ddp)
{
    int root;
    SL_TRY(announce_phase(ddp, BEFORE_BACKWARD, &root));
    sli_ddp_begin_exchange(ddp);
    return SL_OK;
}

/* Announces both for a pipe, whose processes all take the step, or none. */
static sl_status prepare_step(sl_ddp *ddp)
{
    int root;
    bool exchanges = ddp->joins || ddp->broadcasts_buffers;
    sl_status status;
    SL_TRY_OR_FAIL(prepare_forward(ddp));
    status = announce_phase(ddp, BEFORE_BACKWARD, &root);
fail:
    return exchanges ? sli_pipe_agree(ddp->pipe, status) : status;
}

/* Ends the step; `status` is backward's, which all processes of a pipe have. */
static sl_status finish_backward(sl_ddp *ddp, sl_status status)
{
    bool has_run = status == SL_OK;
    status = has_run ? sli_ddp_end_exchange(ddp) : sli_ddp_abort_exchange(ddp, status);
    ddp->joins &= status == SL_OK;
    if (status == SL_OK)
        status = sli_ddp_check_gradients(ddp);
    return has_run ? sli_pipe_agree(ddp->pipe, status) : status;
}

/* Trains on a shard that is not this rank's last one. An error ends the other ranks' steps. */
static sl_status train_shard(sl_ddp *ddp, const sl_pipe_batch *batch, double *mean_loss)
{
    sl_status status;
    SL_TRY_OR_FAIL(sl_pipe_train(ddp->pipe, batch, mean_loss));
    SL_TRY_OR_FAIL(sli_ddp_add_shard(ddp));
    return SL_OK;
fail:
    for (int s = 0; s < ddp->stage_count; s++)
        (void)sli_group_check(ddp->stages[s].group, status);
    return status;
}

sl_status sl_ddp_train(sl_ddp *ddp, const sl_pipe_batch *batch, double *mean_loss)
{
    /* The pipe checks the other arguments, so that the other ranks hear of the error. */
    SLI_CHECK_NOT_NULL(ddp);
    if (!ddp->pipe)
        return sl_error(SL_ERR_INVALID, "sl_ddp_train: needs a pipe; a module has sl_ddp_forward "
                                        "and sl_ddp_backward");
    if (!ddp->syncs)
        return sl_pipe_train(ddp->pipe, batch, mean_loss);
    int shard = ddp->shard;
    bool is_last = shard + 1 == ddp->shard_count;
    ddp->shard = is_last ? 0 : shard + 1;
    if (shard == 0)
        SL_TRY(prepare_step(ddp));
    if (!is_last)
        return train_shard(ddp, batch, mean_loss);
    sli_ddp_begin_exchange(ddp);
    sl_status status = sli_pipe_train(ddp->pipe, batch, ddp->observers, mean_loss);
    return finish_backward(ddp, status);
}

static sl_status check_module(const sl_ddp *ddp, const char *who)
{
    if (!ddp->module)
        return sl_error(SL_ERR_INVALID, "%s: needs a module; a pipe has sl_ddp_train", who);
    return SL_OK;
}

sl_status sl_ddp_forward(sl_ddp *ddp, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(ddp);
    SLI_CHECK_NOT_NULL(pass);
    SL_TRY(check_module(ddp, "sl_ddp_forward"));
    bool syncs = ddp->syncs && sli_pass_keeps(pass);
    if (syncs)
        SL_TRY(prepare_forward(ddp));
    sl_status status = sl_module_forward(ddp->module, pass, in, out);
    ddp->exchanges |= syncs && status == SL_OK;
    if (status != SL_OK && syncs) { /* the other ranks would wait for this one's next step */
        (void)sli_group_check(ddp->stages[0].group, status);
        (void)sli_group_check(ddp->joins ? ddp->group : NULL, status);
        ddp->joins = false;
    }
    return status;
}

sl_status sl_ddp_backward(sl_ddp *ddp, sl_pass *pass, sl_tensor *grad_out, sl_tensor **grad_in)
{
    if (grad_in)
        *grad_in = NULL;
    SLI_CHECK_NOT_NULL(ddp);
    SLI_CHECK_NOT_NULL(pass);
    SL_TRY(check_module(ddp, "sl_ddp_backward"));
    if (!ddp->exchanges)
        return sl_module_backward(ddp->module, pass, grad_out, grad_in);
    ddp->exchanges = false;
    SL_TRY(prepare_backward(ddp));
    sli_pass_observe(pass, sli_reducer_observer(ddp->stages[0].reducer));
    sl_status status = sl_module_backward(ddp->module, pass, grad_out, grad_in);
    sli_pass_observe(pass, NULL);
    return finish_backward(ddp, status);
}

/* ---- Uneven inputs ---------------------------------------------------------------------- */

/* Takes part in what the other ranks announced, with gradients of 0. */
static sl_status shadow_phase(sl_ddp *ddp, const int32_t words[WORDS], int root)
{
    if (words[BEFORE_FORWARD] > 0)
        return ddp->broadcasts_buffers ? sli_ddp_broadcast(ddp, root, true) : SL_OK;
    for (int stage = 0; stage < ddp->stage_count; stage++)
        sl_parameter_set_zero_grad(ddp->stages[stage].set);
    sli_ddp_begin_exchange(ddp);
    return sli_ddp_end_exchange(ddp);
}

/* Every rank gets the values of the last one to run out of data; of several, the highest's. */
static sl_status broadcast_last_values(const sl_ddp *ddp, bool was_last)
{
    int32_t root = was_last ? sl_group_rank(ddp->group) : -1;
    SL_TRY(sl_group_all_reduce(ddp->group, &root, 1, SL_I32, SL_REDUCE_MAX, NULL));
    return sli_ddp_broadcast(ddp, root, false);
}

static sl_status shadow_steps(sl_ddp *ddp)
{
    for (bool was_last = true;; was_last = false) {
        int32_t words[WORDS] = {0};
        int root;
        SL_TRY(exchange_words(ddp, words, &root));
        if (ddp->active == 0)
            return broadcast_last_values(ddp, was_last);
        SL_TRY(shadow_phase(ddp, words, root));
    }
}

sl_status sl_ddp_join_begin(sl_ddp *ddp, const sl_ddp_join_options *options)
{
    SLI_CHECK_NOT_NULL(ddp);
    if (ddp->joins)
        return sl_error(SL_ERR_INVALID, "sl_ddp_join_begin: called twice without sl_ddp_join_end");
    SL_TRY(sli_ddp_check_no_shards(ddp, "sl_ddp_join_begin", "a join"));
    ddp->join = options ? *options : (sl_ddp_join_options){0};
    ddp->joins = true;
    return SL_OK;
}

sl_status sl_ddp_join_end(sl_ddp *ddp)
{
    SLI_CHECK_NOT_NULL(ddp);
    if (!ddp->joins)
        return sl_error(SL_ERR_INVALID, "sl_ddp_join_end: no join is under way: "
                                        "sl_ddp_join_begin begins one, and an error ends it");
    sl_status status = shadow_steps(ddp);
    ddp->joins = false;
    return sli_pipe_agree(ddp->pipe, status);
}
