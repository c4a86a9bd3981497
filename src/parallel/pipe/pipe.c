/* The pipe's functions, and what runs on all its ranks at once. */
#include "parallel/pipe/pipe.h"
#include "parallel/pipe/pipe_head.h"
#include "parallel/pipe/pipe_step.h"
#include "parallel/pipe/pipe_tied.h"

#include "core/error.h"

#include <assert.h>

/* ---- All ranks at once ------------------------------------------------------------------ */

static void call_rank(void *argument)
{
    sli_rank *rank = argument;
    rank->fn(rank, rank->arg);
}

void sli_pipe_run_ranks(sl_pipe *pipe, void (*fn)(sli_rank *rank, void *arg), void *arg)
{
    for (int i = 0; i < pipe->rank_count; i++) {
        sli_rank *rank = &pipe->ranks[i];
        rank->fn = fn;
        rank->arg = arg;
        if (rank->worker)
            sli_worker_start(rank->worker, call_rank, rank);
    }
    for (int i = 0; i < pipe->rank_count; i++)
        if (pipe->ranks[i].worker)
            sli_worker_wait(pipe->ranks[i].worker);
}

sl_status sli_pipe_end_run(sl_pipe *pipe, bool ran_table, double *busy_seconds)
{
    return pipe->group ? sli_pipe_group_end(pipe->group, ran_table, busy_seconds)
                       : sli_failure_take(&pipe->failure);
}

typedef struct stage_call {
    sl_status (*fn)(int stage, void *arg);
    void *arg;
    sli_failure *failure;
} stage_call;

static void call_stages_of_rank(sli_rank *rank, void *arg)
{
    const stage_call *call = arg;
    for (int i = 0; i < rank->own_count; i++) {
        int stage = rank->own[i];
        pthread_mutex_lock(rank->device_lock);
        sl_status status = call->fn(stage, call->arg);
        pthread_mutex_unlock(rank->device_lock);
        sl_error_context(status, "[stage %d] ", stage);
        sli_failure_raise(call->failure, stage, status);
    }
}

void sli_pipe_call_stages(sl_pipe *pipe, sl_status (*fn)(int stage, void *arg), void *arg)
{
    stage_call call = {fn, arg, &pipe->failure};
    sli_pipe_run_ranks(pipe, call_stages_of_rank, &call);
}

sl_status sli_pipe_run_here(sl_pipe *pipe, sl_status (*fn)(int stage, void *arg), void *arg)
{
    sli_pipe_call_stages(pipe, fn, arg);
    return sli_failure_take(&pipe->failure);
}

sl_status sl_pipe_run_on_stages(sl_pipe *pipe, sl_status (*fn)(int stage, void *arg), void *arg)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(fn);
    sli_pipe_call_stages(pipe, fn, arg);
    return sli_pipe_end_run(pipe, false, NULL);
}

/* ---- Public functions ------------------------------------------------------------------- */

static const sl_pipe_batch no_batch = {0};

sl_status sl_pipe_forward(sl_pipe *pipe, const sl_pipe_batch *batch, sl_tensor **output)
{
    SLI_CHECK_NOT_NULL(output);
    *output = NULL;
    SLI_CHECK_NOT_NULL(pipe);
    sli_step step = {.who = "sl_pipe_forward"};
    sl_status status = sli_pipe_check_batch(step.who, pipe, batch, false);
    SL_TRY(sli_pipe_run_step(pipe, batch ? batch : &no_batch, &step, status));
    status = SL_OK;
    for (int64_t row = 0; step.caches && row < step.rows && status == SL_OK; row++)
        status = sli_cache_advance(step.caches[row], step.positions);
    if (status != SL_OK)
        sl_tensor_destroy(&step.output);
    *output = step.output;
    return status;
}

sl_status sl_pipe_train(sl_pipe *pipe, const sl_pipe_batch *batch, double *mean_loss)
{
    return sli_pipe_train(pipe, batch, NULL, mean_loss);
}

static sl_status check_train_call(const sl_pipe *pipe, const sl_pipe_batch *batch,
                                  const double *mean_loss)
{
    if (!mean_loss)
        return sl_error(SL_ERR_INVALID, "sl_pipe_train: mean_loss is NULL");
    if (pipe->inference)
        return sl_error(SL_ERR_INVALID, "sl_pipe_train: the pipe was created for inference");
    return sli_pipe_check_batch("sl_pipe_train", pipe, batch, true);
}

sl_status sli_pipe_train(sl_pipe *pipe, const sl_pipe_batch *batch,
                         const sli_pass_observer *const *observers, double *mean_loss)
{
    if (!pipe)
        return sl_error(SL_ERR_INVALID, "sl_pipe_train: pipe is NULL");
    pipe->trace_count = 0;
    sl_status status = check_train_call(pipe, batch, mean_loss);
    batch = batch ? batch : &no_batch;
    sli_step step = {.who = "sl_pipe_train",
                     .backward = true,
                     .training = !batch->evaluation,
                     .observers = observers};
    double sum;
    int64_t terms;
    SL_TRY(sli_pipe_run_with_loss(pipe, batch, &step, status, &sum, &terms));
    SL_TRY(sli_pipe_gather_head(pipe));
    SL_TRY(sli_pipe_sum_tied(pipe));
    *mean_loss = sum / (double)terms; /* NaN without terms, as PyTorch's */
    return SL_OK;
}

sl_status sl_pipe_evaluate(sl_pipe *pipe, const sl_pipe_batch *batch, double *loss_sum,
                           int64_t *terms)
{
    SLI_CHECK_NOT_NULL(pipe);
    sli_step step = {.who = "sl_pipe_evaluate"};
    sl_status status = sli_pipe_check_batch(step.who, pipe, batch, true);
    if (!loss_sum || !terms)
        status = sl_error(SL_ERR_INVALID, "sl_pipe_evaluate: %s is NULL",
                          loss_sum ? "terms" : "loss_sum");
    return sli_pipe_run_with_loss(pipe, batch ? batch : &no_batch, &step, status, loss_sum, terms);
}

void sl_pipe_zero_grad(sl_pipe *pipe)
{
    for (int i = 0; i < pipe->stage_count; i++)
        if (pipe->stages[i].is_here)
            sl_parameter_set_zero_grad(pipe->stages[i].parameters);
    sli_pipe_zero_tied(pipe);
}

const sli_stage *sli_pipe_find_stage(const sl_pipe *pipe, const sl_module *module)
{
    const sli_stage *stage = pipe->stages;
    int index = sli_module_index_in(pipe->model, module);
    while (index >= stage->first + stage->count)
        stage++;
    return stage;
}

int sl_pipe_stages(const sl_pipe *pipe)
{
    return pipe->stage_count;
}

int sl_pipe_ranks(const sl_pipe *pipe)
{
    return pipe->rank_count;
}

int sl_pipe_rank(const sl_pipe *pipe, int stage)
{
    assert(stage >= 0 && stage < pipe->stage_count);
    return sl_schedule_placement(pipe->order)[stage];
}

sl_module *sl_pipe_model(const sl_pipe *pipe)
{
    return pipe->model;
}

sl_device *sl_pipe_device(const sl_pipe *pipe, int stage)
{
    assert(stage >= 0 && stage < pipe->stage_count);
    return pipe->stages[stage].device;
}

sl_parameter_set *sl_pipe_parameters(const sl_pipe *pipe, int stage)
{
    assert(stage >= 0 && stage < pipe->stage_count);
    return pipe->stages[stage].parameters;
}

void sl_pipe_stage_modules(const sl_pipe *pipe, int stage, int *first, int *count)
{
    assert(stage >= 0 && stage < pipe->stage_count);
    *first = pipe->stages[stage].first;
    *count = pipe->stages[stage].count;
}
