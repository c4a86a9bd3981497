#include "parallel/pipe/pipe_optimizer.h"

#include "core/error.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/ddp/ddp.h"
#include "parallel/ddp/zero.h"
#include "parallel/pipe/pipe.h"
#include "parallel/pipe/pipe_head.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

/* ---- The norm --------------------------------------------------------------------------- */

typedef struct norm_job {
    const sl_pipe *pipe;
    sl_grad_norm_kind kind;
    double *terms; /* [parameters of all stages], in the model's order, and [2 * blocks] of a split
                      head; 0 without a gradient */
} norm_job;

static int count_parameters(const sl_pipe *pipe, int stages)
{
    int count = 0;
    for (int s = 0; s < stages; s++)
        count += pipe->stages[s].parameter_count;
    return count;
}

static sl_status compute_terms(int stage, void *arg)
{
    const norm_job *job = arg;
    const sl_pipe *pipe = job->pipe;
    sl_parameter_set *set = sl_pipe_parameters(pipe, stage);
    int count;
    SL_TRY(sli_grad_norm_terms(set, job->kind, job->terms + count_parameters(pipe, stage),
                               pipe->stages[stage].parameter_count, &count));
    return sli_stage_head_norm_terms(pipe, &pipe->stages[stage], job->kind,
                                     job->terms + count_parameters(pipe, pipe->stage_count));
}

/* The norm of all gradients together, the same bits for every cut: terms of 0 change no sum, and so
 * do those that another rank of the group has. */
static sl_status compute_norm(sl_pipe *pipe, sl_grad_norm_kind kind, double *norm)
{
    int count = count_parameters(pipe, pipe->stage_count) + 2 * pipe->head_blocks;
    norm_job job = {pipe, kind, calloc((size_t)count + 1, sizeof *job.terms)};
    if (!job.terms)
        return sli_no_memory(NULL, "the gradient norm");
    sl_status status;
    SL_TRY_OR_FAIL(sl_pipe_run_on_stages(pipe, compute_terms, &job));
    if (pipe->group)
        SL_TRY_OR_FAIL(sli_pipe_group_sum(pipe->group, job.terms, count));
    *norm = sli_grad_norm_combine(kind, job.terms, count);

fail:
    free(job.terms);
    return status;
}

static sl_status check_finite(const char *who, double norm)
{
    if (isfinite(norm))
        return SL_OK;
    return sl_error(SL_ERR_NUMERIC, "%s: the gradient norm is %g", who, isnan(norm) ? NAN : norm);
}

typedef struct scaling {
    const sl_pipe *pipe;
    float factor;
} scaling;

static sl_status scale_gradients(int stage, void *arg)
{
    const scaling *job = arg;
    const sl_parameter_set *set = sl_pipe_parameters(job->pipe, stage);
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(set, i);
        if (!parameter->grad || parameter->grad_is_stale)
            continue;
        sli_host_array grad;
        SL_TRY(sli_tensor_open_host(parameter->grad, true, &grad));
        for (int64_t k = 0; k < sl_tensor_count(parameter->grad); k++)
            ((float *)grad.host)[k] *= job->factor;
        SL_TRY(sli_host_array_close(&grad, true));
    }
    return SL_OK;
}

sl_status sl_clip_grad_norm(sl_pipe *pipe, double max_norm, sl_grad_norm_kind kind,
                            bool error_if_nonfinite, double *norm)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(norm);
    SL_TRY(compute_norm(pipe, kind, norm));
    if (error_if_nonfinite)
        SL_TRY(check_finite("sl_clip_grad_norm", *norm));
    scaling job = {pipe, (float)sli_clip_coefficient(*norm, max_norm)};
    return job.factor == 1 ? SL_OK : sl_pipe_run_on_stages(pipe, scale_gradients, &job);
}

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status create_stage(const sl_pipe_optimizer_options *options, int stage,
                              sli_stage_optimizer *out)
{
    sl_parameter_set *set = sl_pipe_parameters(options->pipe, stage);
    if (!set)
        return SL_OK; /* another rank's */
    if (!options->zero)
        return sl_optimizer_create(&options->optimizer, set, &out->whole);
    return sli_zero_create(&options->optimizer, set, sl_ddp_group(options->zero, stage),
                           sli_ddp_device_group(options->zero, stage), &out->zero);
}

sl_status sl_pipe_optimizer_create(const sl_pipe_optimizer_options *options,
                                   sl_pipe_optimizer **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(options->pipe);
    const sl_ddp *zero = options->zero;
    if (zero && zero->pipe != options->pipe)
        return sl_error(SL_ERR_INVALID, "sl_pipe_optimizer_create: the DDP is not this pipe's");
    int stages = sl_pipe_stages(options->pipe);
    sl_pipe_optimizer *optimizer =
        calloc(1, sizeof *optimizer + (size_t)stages * sizeof optimizer->stage[0]);
    if (!optimizer)
        return sli_no_memory(NULL, "a pipe's optimizers");
    optimizer->pipe = options->pipe;
    optimizer->options = options->optimizer;
    optimizer->error_if_nonfinite = options->error_if_nonfinite;
    optimizer->ddp = zero;
    optimizer->shard = zero ? sl_group_rank(zero->group) : 0;
    optimizer->shards = zero ? sl_group_size(zero->group) : 1;
    optimizer->stages = stages;
    sl_status status;
    for (int s = 0; s < stages; s++)
        SL_TRY_OR_FAIL(create_stage(options, s, &optimizer->stage[s]));
    *out = optimizer;
    return SL_OK;

fail:
    sl_pipe_optimizer_destroy(&optimizer);
    return status;
}

void sl_pipe_optimizer_destroy(sl_pipe_optimizer **optimizer)
{
    if (!optimizer || !*optimizer)
        return;
    sli_tensors_clear(&(*optimizer)->tensors);
    for (int s = 0; s < (*optimizer)->stages; s++) {
        sl_optimizer_destroy(&(*optimizer)->stage[s].whole);
        sli_zero_destroy(&(*optimizer)->stage[s].zero);
    }
    free(*optimizer);
    *optimizer = NULL;
}

/* ---- A step ----------------------------------------------------------------------------- */

static sl_status step_stage(int index, void *arg)
{
    const sl_pipe_optimizer *optimizer = arg;
    return sl_optimizer_step(sli_pipe_optimizer_own(optimizer, index), optimizer->lr,
                             optimizer->grad_scale);
}

/* For an error that the other ranks do not have: they would wait for this rank's shards. */
static sl_status abort_exchange(const sl_pipe_optimizer *optimizer, sl_status status)
{
    for (int s = 0; s < optimizer->stages && status != SL_OK; s++)
        if (optimizer->stage[s].zero)
            sli_zero_abort(optimizer->stage[s].zero, status);
    return status;
}

/* All processes of the pipe get the same status. */
static sl_status exchange_shards(const sl_pipe_optimizer *optimizer)
{
    sl_status status = SL_OK;
    for (int s = 0; s < optimizer->stages && status == SL_OK; s++)
        if (optimizer->stage[s].zero)
            status = sli_zero_exchange(optimizer->stage[s].zero);
    return sli_pipe_agree(optimizer->ddp ? optimizer->pipe : NULL, status);
}

sl_status sl_pipe_optimizer_step(sl_pipe_optimizer *optimizer, double lr, double clip, double *norm)
{
    SLI_CHECK_NOT_NULL(optimizer);
    double found = 0;
    sli_pipe_optimizer_release(optimizer);
    if (norm || clip > 0 || optimizer->error_if_nonfinite)
        SL_TRY(abort_exchange(optimizer, compute_norm(optimizer->pipe, SL_GRAD_NORM_L2, &found)));
    if (norm)
        *norm = found;
    if (optimizer->error_if_nonfinite)
        SL_TRY(check_finite("sl_pipe_optimizer_step", found));
    optimizer->lr = lr;
    optimizer->grad_scale = clip > 0 ? sli_clip_coefficient(found, clip) : 1;
    SL_TRY(
        abort_exchange(optimizer, sl_pipe_run_on_stages(optimizer->pipe, step_stage, optimizer)));
    return exchange_shards(optimizer);
}

/* ---- The whole state --------------------------------------------------------------------- */

sl_optimizer *sli_pipe_optimizer_own(const sl_pipe_optimizer *optimizer, int stage)
{
    const sli_stage_optimizer *found = &optimizer->stage[stage];
    return found->zero ? sli_zero_optimizer(found->zero) : found->whole;
}

void sli_pipe_optimizer_release(sl_pipe_optimizer *optimizer)
{
    for (int s = 0; s < optimizer->stages; s++)
        if (optimizer->stage[s].zero)
            sl_optimizer_destroy(&optimizer->stage[s].whole);
}

sl_status sli_pipe_optimizer_gather(sl_pipe_optimizer *optimizer)
{
    sl_status status = SL_OK;
    sli_pipe_optimizer_release(optimizer);
    for (int s = 0; s < optimizer->stages && status == SL_OK; s++)
        if (optimizer->stage[s].zero)
            status = sli_zero_consolidate(optimizer->stage[s].zero, 0, &optimizer->stage[s].whole);
    status = sli_pipe_agree(optimizer->ddp ? optimizer->pipe : NULL, status);
    if (status != SL_OK)
        sli_pipe_optimizer_release(optimizer);
    return status;
}
