/* Uneven inputs: ranks that are out of data stand in for themselves until all are.
 *
 * Before each exchange, the ranks that have data announce it: an all-reduce of
 * { ranks with data, of them before a forward, of them before a backward }. A rank that is out of
 * data answers each announcement with zeros, and then takes part in what was announced, with
 * gradients of 0. An announcement that nobody has data for is the end.
 *
 *     rank 0   step  step  out  shadow  shadow  (nobody left)  values ◀─┐
 *     rank 1   step  step  step  step    out    (nobody left)  values ──┘ the last one's
 *
 * An error in an announcement or an exchange is every rank's, and ends the join on all of them. */
#include "parallel/ddp.h"

#include "core/not_null.h"

enum { ACTIVE, BEFORE_FORWARD, BEFORE_BACKWARD, WORDS };

/* All ranks' words added up, and the first rank that has data. */
static sl_status exchange_words(sl_ddp *ddp, int32_t *words, int *root)
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

sl_status sli_ddp_announce(sl_ddp *ddp, sli_ddp_phase phase, int *root)
{
    *root = 0;
    ddp->active = sl_group_size(ddp->group);
    if (!ddp->joins)
        return SL_OK;
    int32_t words[WORDS] = {1, phase == SLI_DDP_FORWARD, phase == SLI_DDP_BACKWARD};
    sl_status status = exchange_words(ddp, words, root);
    ddp->joins = status == SL_OK;
    return status;
}

/* Takes part in what the others do, with nothing to add. */
static sl_status shadow(sl_ddp *ddp, const int32_t *words, int root)
{
    if (words[BEFORE_FORWARD] > 0)
        return sli_ddp_sync_buffers(ddp, root);
    for (int stage = 0; stage < ddp->stage_count; stage++)
        sl_parameter_set_zero_grad(sli_ddp_set(ddp, stage));
    sli_ddp_begin(ddp);
    return sli_ddp_end(ddp);
}

/* The values of the last rank to come here, of several the highest, become everybody's. */
static sl_status take_last_values(const sl_ddp *ddp, bool was_last)
{
    int32_t root = was_last ? sl_group_rank(ddp->group) : -1;
    SL_TRY(sl_group_all_reduce(ddp->group, &root, 1, SL_I32, SL_REDUCE_MAX, NULL));
    return sli_ddp_broadcast(ddp, root, false);
}

static sl_status shadow_others(sl_ddp *ddp)
{
    for (bool was_last = true;; was_last = false) {
        int32_t words[WORDS] = {0};
        int root;
        SL_TRY(exchange_words(ddp, words, &root));
        if (ddp->active == 0)
            return take_last_values(ddp, was_last);
        SL_TRY(shadow(ddp, words, root));
    }
}

sl_status sl_ddp_join_begin(sl_ddp *ddp, const sl_ddp_join_options *options)
{
    SLI_CHECK_NOT_NULL(ddp);
    if (ddp->joins)
        return sl_error(SL_ERR_INVALID, "sl_ddp_join_begin: called twice without sl_ddp_join_end");
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
    sl_status status = shadow_others(ddp);
    ddp->joins = false;
    return status;
}
