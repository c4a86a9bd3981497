/* DistributedDataParallel: a replica's training steps. */
#include "parallel/ddp.h"

#include "core/c_numbers.h"
#include "core/clock.h"
#include "core/not_null.h"
#include "parallel/pipe.h"

#include <inttypes.h>

/* ---- Parts of a step -------------------------------------------------------------------- */

sl_parameter_set *sli_ddp_set(const sl_ddp *ddp, int stage)
{
    return ddp->pipe ? sl_pipe_parameters(ddp->pipe, stage) : ddp->parameters;
}

void sli_ddp_begin(sl_ddp *ddp)
{
    ddp->start = sli_clock_seconds();
    sli_reduction reduction = {
        .hook = ddp->hook,
        .hook_arg = ddp->hook_arg,
        .divisor = ddp->joins && ddp->join.divide_by_active ? ddp->active : 0,
        .start = ddp->start,
    };
    for (int stage = 0; stage < ddp->stage_count; stage++)
        sli_reducer_begin(ddp->reducers[stage], &reduction);
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static void write_log(sl_ddp *ddp, double backward_end)
{
    sl_ddp_log *log = &ddp->log;
    sl_ddp_bucket_log *next = ddp->bucket_logs;
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        sli_reducer_log(ddp->reducers[stage], next);
        next += sli_reducer_bucket_count(ddp->reducers[stage]);
    }
    log->steps++;
    log->order_rebuilt = ddp->has_rebuilt_order;
    log->backward_end = backward_end;
    log->reduce_seconds = log->overlap_seconds = log->wait_seconds = 0;
    for (int i = 0; i < log->bucket_count; i++) {
        const sl_ddp_bucket_log *each = &log->buckets[i];
        log->reduce_seconds += each->reduce_end - each->reduce_start;
        if (each->reduce_start < backward_end)
            log->overlap_seconds += smaller(each->reduce_end, backward_end) - each->reduce_start;
        if (each->reduce_end - backward_end > log->wait_seconds)
            log->wait_seconds = each->reduce_end - backward_end;
    }
}

/* All stages' ends are waited for; the first error is returned. */
sl_status sli_ddp_end(sl_ddp *ddp)
{
    double backward_end = sli_clock_seconds() - ddp->start;
    char text[SLI_FAILURE_TEXT_BYTES];
    sl_status first = SL_OK;
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        sl_status status = sli_reducer_end(ddp->reducers[stage]);
        if (first == SL_OK && status != SL_OK) {
            first = status;
            snprintf(text, sizeof text, "%s", sl_error_text());
        }
    }
    if (first != SL_OK)
        return sl_error(first, "%s", text);
    for (int stage = 0; stage < ddp->stage_count && ddp->find_unused_parameters; stage++)
        SL_TRY(sli_reducer_drop_unused(ddp->reducers[stage]));
    write_log(ddp, backward_end);
    for (int stage = 0; stage < ddp->stage_count && !ddp->has_rebuilt_order; stage++)
        SL_TRY(sli_reducer_rebuild_order(ddp->reducers[stage]));
    ddp->has_rebuilt_order = true;
    return SL_OK;
}

/* Ends the exchange of all stages after backward's error, which stays the calling thread's. */
static sl_status abandon(sl_ddp *ddp, sl_status error)
{
    for (int stage = 0; stage < ddp->stage_count; stage++)
        sli_reducer_abandon(ddp->reducers[stage], error);
    return error;
}

/* ---- Parameters without a gradient ------------------------------------------------------ */

/* Their places among the trained parameters of all stages. */
static int list_missing(const sl_ddp *ddp)
{
    int count = 0, before = 0;
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        int more = sli_reducer_missing(ddp->reducers[stage], ddp->missing + count);
        for (int i = count; i < count + more; i++)
            ddp->missing[i] += before;
        count += more;
        before += sli_reducer_trained_count(ddp->reducers[stage]);
    }
    return count;
}

static const char *trained_name(const sl_ddp *ddp, int place)
{
    int stage = 0;
    for (; place >= sli_reducer_trained_count(ddp->reducers[stage]); stage++)
        place -= sli_reducer_trained_count(ddp->reducers[stage]);
    return sl_parameter_name(sli_reducer_trained(ddp->reducers[stage], place));
}

static sl_status check_missing(const sl_ddp *ddp)
{
    int count = list_missing(ddp);
    if (count == 0 || ddp->find_unused_parameters)
        return SL_OK;
    char list[256];
    size_t used = 0;
    for (int i = 0; i < count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", i ? " " : "",
                                 ddp->missing[i]);
    return sl_error(SL_ERR_INVALID,
                    "sl_ddp: %d parameters were not used in producing the loss, the first is %s; "
                    "find_unused_parameters allows that. Parameter indices which did not receive "
                    "grad for rank %d: %s",
                    count, trained_name(ddp, ddp->missing[0]), sl_group_rank(ddp->group), list);
}

/* ---- Steps ------------------------------------------------------------------------------ */

sl_status sli_ddp_sync_buffers(const sl_ddp *ddp, int root)
{
    return ddp->broadcasts_buffers ? sli_ddp_broadcast(ddp, root, true) : SL_OK;
}

static sl_status before_forward(sl_ddp *ddp)
{
    int root;
    SL_TRY(sli_ddp_announce(ddp, SLI_DDP_FORWARD, &root));
    return sli_ddp_sync_buffers(ddp, root);
}

static sl_status before_backward(sl_ddp *ddp)
{
    int root;
    SL_TRY(sli_ddp_announce(ddp, SLI_DDP_BACKWARD, &root));
    sli_ddp_begin(ddp);
    return SL_OK;
}

static sl_status after_backward(sl_ddp *ddp, sl_status status)
{
    status = status == SL_OK ? sli_ddp_end(ddp) : abandon(ddp, status);
    if (status == SL_OK)
        return check_missing(ddp);
    ddp->joins = false;
    return status;
}

static void observe_pipe(const sl_ddp *ddp, bool on)
{
    for (int stage = 0; stage < ddp->stage_count; stage++)
        ddp->pipe->stages[stage].observer = on ? sli_reducer_observer(ddp->reducers[stage]) : NULL;
}

sl_status sl_ddp_train(sl_ddp *ddp, const sl_pipe_batch *batch, double *mean_loss)
{
    SLI_CHECK_NOT_NULL(
        ddp); /* what else is missing, the pipe says, and with it the other ranks hear of it */
    if (!ddp->pipe)
        return sl_error(SL_ERR_INVALID, "sl_ddp_train: needs a pipe; a module has sl_ddp_forward "
                                        "and sl_ddp_backward");
    if (!ddp->syncs)
        return sl_pipe_train(ddp->pipe, batch, mean_loss);
    SL_TRY(before_forward(ddp));
    SL_TRY(before_backward(ddp));
    observe_pipe(ddp, true);
    sl_status status = sl_pipe_train(ddp->pipe, batch, mean_loss);
    observe_pipe(ddp, false);
    return after_backward(ddp, status);
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
    bool takes_part = ddp->syncs && sl_pass_keeps(pass);
    if (takes_part)
        SL_TRY(before_forward(ddp));
    sl_status status = sl_module_forward(ddp->module, pass, in, out);
    ddp->exchanges |= takes_part && status == SL_OK;
    if (status != SL_OK && takes_part) { /* the others would wait for what we do next */
        sl_group_abort(ddp->groups[0], status, sl_error_text());
        if (ddp->joins)
            sl_group_abort(ddp->group, status, sl_error_text());
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
    SL_TRY(before_backward(ddp));
    sli_pass_observe(pass, sli_reducer_observer(ddp->reducers[0]));
    sl_status status = sl_module_backward(ddp->module, pass, grad_out, grad_in);
    sli_pass_observe(pass, NULL);
    return after_backward(ddp, status);
}

void sl_ddp_set_sync(sl_ddp *ddp, bool sync)
{
    ddp->syncs = sync;
}

sl_group *sl_ddp_group(const sl_ddp *ddp, int stage)
{
    return ddp->groups[stage];
}

sl_status sl_ddp_register_hook(sl_ddp *ddp, sl_ddp_hook hook, void *arg)
{
    SLI_CHECK_NOT_NULL(ddp);
    SLI_CHECK_NOT_NULL(hook);
    if (ddp->hook)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_register_hook: a communication hook can only be registered once");
    ddp->hook = hook;
    ddp->hook_arg = arg;
    return SL_OK;
}

/* ---- What it did ------------------------------------------------------------------------ */

const sl_ddp_log *sl_ddp_get_log(const sl_ddp *ddp)
{
    return &ddp->log;
}

void sl_ddp_print_log(const sl_ddp *ddp, FILE *to)
{
    const sl_ddp_log *log = &ddp->log;
    sli_c_numbers scope = sli_c_numbers_begin();
    fprintf(to,
            "ddp: rank %d of %d, step %" PRId64 ", order of buckets %s: backward %.3f ms, "
            "exchange %.3f ms, of it overlapped %.3f ms, waited for %.3f ms\n",
            sl_group_rank(ddp->group), sl_group_size(ddp->group), log->steps,
            log->order_rebuilt ? "as gradients came" : "as registered", 1e3 * log->backward_end,
            1e3 * log->reduce_seconds, 1e3 * log->overlap_seconds, 1e3 * log->wait_seconds);
    for (int i = 0; i < log->bucket_count; i++) {
        const sl_ddp_bucket_log *each = &log->buckets[i];
        fprintf(to,
                "ddp:   stage %d bucket %d: %d parameters, %" PRId64 " bytes, ready at %.3f ms, "
                "reduced from %.3f to %.3f ms\n",
                each->stage, each->index, each->parameters, each->bytes, 1e3 * each->ready,
                1e3 * each->reduce_start, 1e3 * each->reduce_end);
    }
    sli_c_numbers_end(scope);
}
