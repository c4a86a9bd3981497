#define _GNU_SOURCE /* asprintf */

#include "parallel/pipe_optimizer.h"

#include "core/error.h"
#include "io/checkpoint/format.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/ddp.h"
#include "parallel/pipe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct stage_optimizer {
    sl_optimizer *whole; /* of all the stage's parameters; if sharded, a copy or NULL */
    sl_zero *zero;       /* this rank's shard of it; NULL: not sharded */
} stage_optimizer;

struct sl_pipe_optimizer {
    sl_pipe *pipe;
    bool error_if_nonfinite;
    int rank, ranks;            /* shard `rank` of `ranks` is this one's */
    double lr, grad_scale;      /* of the step under way */
    sl_safetensors_item *items; /* [item_count] of the last part */
    size_t item_count;
    int stages;
    stage_optimizer stage[]; /* [stages] */
};

/* ---- The norm --------------------------------------------------------------------------- */

typedef struct norm_job {
    const sl_pipe *pipe;
    sl_grad_norm_kind kind;
    double *terms; /* [parameters of all stages], in the model's order; 0 without a gradient */
} norm_job;

static int count_parameters(const sl_pipe *pipe, int stages)
{
    int count = 0;
    for (int s = 0; s < stages; s++)
        count += sl_parameter_set_count(sl_pipe_parameters(pipe, s));
    return count;
}

static sl_status compute_terms(int stage, void *arg)
{
    const norm_job *job = arg;
    sl_parameter_set *set = sl_pipe_parameters(job->pipe, stage);
    int count;
    return sl_grad_norm_terms(set, job->kind, job->terms + count_parameters(job->pipe, stage),
                              sl_parameter_set_count(set), &count);
}

/* The norm of all gradients together, the same bits for every cut: terms of 0 change no sum. */
static sl_status compute_norm(sl_pipe *pipe, sl_grad_norm_kind kind, double *norm)
{
    int count = count_parameters(pipe, sl_pipe_stages(pipe));
    norm_job job = {pipe, kind, calloc((size_t)count + 1, sizeof *job.terms)};
    if (!job.terms)
        return sl_error(SL_ERR_MEMORY, "no memory for the gradient norm");
    sl_status status = sl_pipe_run_on_stages(pipe, compute_terms, &job);
    *norm = sl_grad_norm_combine(kind, job.terms, count);
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
        float *grad = sl_tensor_f32(parameter->grad); /* a CPU's memory is the host's */
        for (int64_t k = 0; k < sl_tensor_count(parameter->grad); k++)
            grad[k] *= job->factor;
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
    scaling job = {pipe, (float)sl_clip_coefficient(*norm, max_norm)};
    return job.factor == 1 ? SL_OK : sl_pipe_run_on_stages(pipe, scale_gradients, &job);
}

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status create_stage(const sl_pipe_optimizer_options *options, int stage,
                              stage_optimizer *out)
{
    sl_parameter_set *set = sl_pipe_parameters(options->pipe, stage);
    if (!options->zero)
        return sl_optimizer_create(&options->optimizer, set, &out->whole);
    return sl_zero_create(&options->optimizer, set, sl_ddp_group(options->zero, stage), &out->zero);
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
        return sl_error(SL_ERR_MEMORY, "no memory for a pipe's optimizers");
    optimizer->pipe = options->pipe;
    optimizer->error_if_nonfinite = options->error_if_nonfinite;
    optimizer->rank = zero ? sl_group_rank(zero->group) : 0;
    optimizer->ranks = zero ? sl_group_size(zero->group) : 1;
    optimizer->stages = stages;
    sl_status status = SL_OK;
    for (int s = 0; s < stages && status == SL_OK; s++)
        status = create_stage(options, s, &optimizer->stage[s]);
    if (status != SL_OK)
        sl_pipe_optimizer_destroy(&optimizer);
    *out = optimizer;
    return status;
}

static void clear_items(sl_pipe_optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->item_count; i++)
        free((char *)optimizer->items[i].name);
    free(optimizer->items);
    optimizer->items = NULL;
    optimizer->item_count = 0;
}

void sl_pipe_optimizer_destroy(sl_pipe_optimizer **optimizer)
{
    if (!optimizer || !*optimizer)
        return;
    clear_items(*optimizer);
    for (int s = 0; s < (*optimizer)->stages; s++) {
        sl_optimizer_destroy(&(*optimizer)->stage[s].whole);
        sl_zero_destroy(&(*optimizer)->stage[s].zero);
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
    optimizer->grad_scale = clip > 0 ? sl_clip_coefficient(found, clip) : 1;
    SL_TRY(
        abort_exchange(optimizer, sl_pipe_run_on_stages(optimizer->pipe, step_stage, optimizer)));
    for (int s = 0; s < optimizer->stages; s++)
        if (optimizer->stage[s].zero)
            SL_TRY(sli_zero_exchange(optimizer->stage[s].zero));
    return SL_OK;
}

/* ---- Stage by stage --------------------------------------------------------------------- */

bool sli_pipe_optimizer_is_sharded(const sl_pipe_optimizer *optimizer)
{
    return optimizer->stage[0].zero != NULL;
}

sl_optimizer *sli_pipe_optimizer_own(const sl_pipe_optimizer *optimizer, int stage)
{
    const stage_optimizer *of = &optimizer->stage[stage];
    return of->zero ? sli_zero_optimizer(of->zero) : of->whole;
}

sl_optimizer *sli_pipe_optimizer_whole(const sl_pipe_optimizer *optimizer, int stage)
{
    return optimizer->stage[stage].whole;
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
            status = sl_zero_consolidate(optimizer->stage[s].zero, 0, &optimizer->stage[s].whole);
    if (status != SL_OK)
        sli_pipe_optimizer_release(optimizer);
    return status;
}

/* ---- Parts of checkpoints --------------------------------------------------------------- */

sl_status sl_pipe_get_state(sl_pipe *pipe, sl_checkpoint_part *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_checkpoint_part){0};
    SLI_CHECK_NOT_NULL(pipe);
    int count = count_parameters(pipe, pipe->stage_count);
    if (!pipe->items)
        pipe->items = calloc((size_t)count + 1, sizeof *pipe->items);
    if (!pipe->items)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %d parameters", count);
    sl_safetensors_item *next = pipe->items;
    for (int s = 0; s < pipe->stage_count; s++)
        for (int i = 0; i < sl_parameter_set_count(sl_pipe_parameters(pipe, s)); i++) {
            const sl_parameter *from = sl_parameter_set_get(sl_pipe_parameters(pipe, s), i);
            *next++ =
                (sl_safetensors_item){sl_parameter_name(from), SL_F32, *sl_parameter_shape(from),
                                      sl_tensor_data(sl_parameter_value(from))};
        }
    *out = (sl_checkpoint_part){.name = "model", .items = pipe->items, .count = (size_t)count};
    return SL_OK;
}

static sl_status add_item(sl_pipe_optimizer *to, const sl_parameter *parameter, const char *suffix,
                          sl_safetensors_item item)
{
    char *name;
    if (asprintf(&name, "%s.%s", sl_parameter_name(parameter), suffix) < 0)
        return sl_error(SL_ERR_MEMORY, "no memory for the name of an optimizer's state");
    item.name = name;
    to->items[to->item_count++] = item;
    return SL_OK;
}

/* What is done with a parameter's state. `steps` are those that it has taken. */
typedef sl_status (*use_state)(void *context, int stage, const sl_parameter *parameter,
                               int64_t *steps);

/* Calls `use` for every trained parameter, in the model's order, which that of the steps reverses.
 */
static sl_status for_each_state(const sl_pipe_optimizer *optimizer, use_state use, void *context)
{
    for (int s = 0; s < optimizer->stages; s++) {
        const sl_parameter_set *set = sl_pipe_parameters(optimizer->pipe, s);
        int left;
        int64_t *steps = sli_optimizer_steps(sli_pipe_optimizer_own(optimizer, s), &left);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            const sl_parameter *parameter = sl_parameter_set_get(set, i);
            if (sl_parameter_get_kind(parameter) == SL_PARAMETER_TRAINED)
                SL_TRY(use(context, s, parameter, &steps[--left]));
        }
    }
    return SL_OK;
}

/* Adds the items of a parameter's state; without data where this rank does not have all of it. */
static sl_status list_state(void *context, int stage, const sl_parameter *parameter, int64_t *steps)
{
    sl_pipe_optimizer *optimizer = context;
    const sl_optimizer *own = sli_pipe_optimizer_own(optimizer, stage);
    const sl_optimizer *whole = optimizer->stage[stage].whole;
    sli_shard_range range;
    SL_TRY(
        sli_optimizer_range(sl_pipe_parameters(optimizer->pipe, stage), parameter, 0, 1, &range));
    for (int a = 0; a < sli_optimizer_state_arrays(own); a++) {
        sl_safetensors_item item = {NULL, SL_F32, *sl_parameter_shape(parameter), NULL};
        if (whole)
            item.data = sl_tensor_f32(sli_optimizer_state(whole, range.bucket, a)) + range.offset;
        SL_TRY(add_item(optimizer, parameter, sli_optimizer_state_name(own, a), item));
    }
    if (sli_optimizer_state_arrays(own) == 0)
        return SL_OK;
    return add_item(optimizer, parameter, "step", (sl_safetensors_item){NULL, SL_I64, {0}, steps});
}

static sl_status list_items(sl_pipe_optimizer *optimizer)
{
    enum { MOST_ITEMS = 3 }; /* of a parameter */
    size_t count = (size_t)count_parameters(optimizer->pipe, optimizer->stages);
    clear_items(optimizer);
    optimizer->items = calloc(MOST_ITEMS * count + 1, sizeof *optimizer->items);
    if (!optimizer->items)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of an optimizer's state");
    return for_each_state(optimizer, list_state, optimizer);
}

sl_status sl_pipe_optimizer_get_state(sl_pipe_optimizer *optimizer, sl_checkpoint_part *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_checkpoint_part){.name = "optimizer"};
    SLI_CHECK_NOT_NULL(optimizer);
    SL_TRY(sli_pipe_optimizer_gather(optimizer));
    SL_TRY(list_items(optimizer));
    if (optimizer->rank > 0)
        clear_items(optimizer);
    out->items = optimizer->items;
    out->count = optimizer->item_count;
    return SL_OK;
}

/* A shard being read from a checkpoint. */
typedef struct shard_reading {
    sl_pipe_optimizer *optimizer;
    const sl_checkpoint_reader *from;
    const sl_safetensors_item *next; /* the items of the parameter that comes next */
} shard_reading;

static sl_status read_tensor(const shard_reading *job, const char *name, int64_t first,
                             int64_t count, void *to)
{
    return sli_checkpoint_read_elements(job->from,
                                        sli_checkpoint_find_tensor(job->from, "optimizer", name),
                                        first, count, to);
}

/* Reads what this rank's shard has of a parameter's state, and its steps. */
static sl_status read_state(void *context, int stage, const sl_parameter *parameter, int64_t *steps)
{
    shard_reading *job = context;
    const sl_pipe_optimizer *optimizer = job->optimizer;
    const sl_optimizer *own = sli_pipe_optimizer_own(optimizer, stage);
    sli_shard_range range;
    SL_TRY(sli_optimizer_range(sl_pipe_parameters(optimizer->pipe, stage), parameter,
                               optimizer->rank, optimizer->ranks, &range));
    int arrays = sli_optimizer_state_arrays(own);
    for (int a = 0; a < arrays && range.count > 0; a++)
        SL_TRY(
            read_tensor(job, job->next[a].name, range.first, range.count,
                        sl_tensor_f32(sli_optimizer_state(own, range.bucket, a)) + range.offset));
    job->next += arrays;
    return arrays == 0 ? SL_OK : read_tensor(job, job->next++->name, 0, 1, steps);
}

sl_status sl_pipe_optimizer_load(sl_pipe_optimizer *optimizer, const sl_checkpoint_reader *from)
{
    SLI_CHECK_NOT_NULL(optimizer);
    SLI_CHECK_NOT_NULL(from);
    sli_pipe_optimizer_release(optimizer);
    SL_TRY(list_items(optimizer));
    if (!sli_pipe_optimizer_is_sharded(optimizer))
        return sl_checkpoint_read(from, "optimizer", optimizer->items, optimizer->item_count);
    SL_TRY(sli_checkpoint_check_items(from, "optimizer", optimizer->items, optimizer->item_count));
    SL_TRY(sli_checkpoint_verify_part(from, "optimizer"));
    shard_reading job = {optimizer, from, optimizer->items};
    return for_each_state(optimizer, read_state, &job);
}
