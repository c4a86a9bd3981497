/* Putting a replica under DistributedDataParallel: it is held against the others', its groups are
 * made, one for each stage, and rank 0's values become everybody's. */
#include "parallel/ddp.h"

#include "core/not_null.h"
#include "nn/module.h"
#include "nn/parameter.h"

#include <stdlib.h>

/* ---- Values ----------------------------------------------------------------------------- */

static sl_status broadcast_tensor(sl_group *group, sl_tensor *tensor, int root)
{
    return sl_group_broadcast(group, sl_tensor_data(tensor), sl_tensor_count(tensor),
                              sl_tensor_dtype(tensor), root, NULL);
}

sl_status sli_ddp_broadcast(const sl_ddp *ddp, int root, bool only_buffers)
{
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        sl_parameter_set *set = sli_ddp_set(ddp, stage);
        for (int b = 0; b < sl_parameter_set_bucket_count(set) && !only_buffers; b++)
            SL_TRY(
                broadcast_tensor(ddp->groups[stage], sl_parameter_set_bucket_values(set, b), root));
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            const sl_parameter *parameter = sl_parameter_set_get(set, i);
            sl_parameter_kind kind = sl_parameter_get_kind(parameter);
            if (kind == SL_PARAMETER_BUFFER || (kind == SL_PARAMETER_FROZEN && !only_buffers))
                SL_TRY(broadcast_tensor(ddp->groups[stage], sl_parameter_value(parameter), root));
        }
    }
    return SL_OK;
}

/* ---- Looking at the replica ------------------------------------------------------------- */

static sl_status check_options(const sl_ddp_options *options)
{
    if (!options->group)
        return sl_error(SL_ERR_INVALID, "sl_ddp_create: there is no group");
    bool has_module = options->module && options->parameters;
    if (!options->pipe == !has_module)
        return sl_error(SL_ERR_INVALID, "sl_ddp_create: expected either a pipe, or a module and "
                                        "its parameters");
    return SL_OK;
}

/* Are all parameters below `module` in the set? */
static sl_status check_held(const sl_parameter_set *set, const sl_module *module)
{
    int count = sl_parameter_set_count(set);
    for (int i = 0; i < module->parameter_count; i++) {
        const sl_parameter *parameter = module->parameters[i];
        /* A set's parameters have successive numbers. */
        uint32_t place = count ? parameter->number - sl_parameter_set_get(set, 0)->number : 0;
        if (place >= (uint32_t)count || sl_parameter_set_get(set, (int)place) != parameter)
            return sl_error(SL_ERR_INVALID, "sl_ddp_create: parameter %s is not in the given set",
                            parameter->path);
    }
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(check_held(set, module->children[i]));
    return SL_OK;
}

/* Counts what is trained, and looks for buffers. */
static sl_status look_at_set(sl_ddp *ddp, const sl_parameter_set *set)
{
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(set, i);
        ddp->broadcasts_buffers |= parameter->kind == SL_PARAMETER_BUFFER;
        if (parameter->kind != SL_PARAMETER_TRAINED)
            continue;
        ddp->trained_count++;
        if (!parameter->grad)
            return sl_error(SL_ERR_INVALID,
                            "sl_ddp_create: parameter %s was placed without a gradient",
                            parameter->path);
    }
    return SL_OK;
}

static sl_status look_at_replica(sl_ddp *ddp, const sl_ddp_options *options)
{
    if (!ddp->pipe)
        SL_TRY(check_held(ddp->parameters, ddp->module));
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        const sl_parameter_set *set = sli_ddp_set(ddp, stage);
        SL_TRY(look_at_set(ddp, set));
        ddp->log.bucket_count += sl_parameter_set_bucket_count(set);
    }
    ddp->broadcasts_buffers &= !options->no_buffer_broadcast;
    if (ddp->trained_count == 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: DistributedDataParallel is not needed when a module "
                        "doesn't have any parameters that require a gradient");
    return SL_OK;
}

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status allocate(sl_ddp *ddp)
{
    size_t stages = (size_t)ddp->stage_count;
    ddp->groups = calloc(stages, sizeof *ddp->groups);
    ddp->reducers = calloc(stages, sizeof *ddp->reducers);
    ddp->missing = calloc((size_t)ddp->trained_count, sizeof *ddp->missing);
    ddp->bucket_logs = calloc((size_t)ddp->log.bucket_count, sizeof *ddp->bucket_logs);
    ddp->log.buckets = ddp->bucket_logs;
    if (!ddp->groups || !ddp->reducers || !ddp->missing || !ddp->bucket_logs)
        return sl_error(SL_ERR_MEMORY, "sl_ddp_create: no memory for %d stages", ddp->stage_count);
    return SL_OK;
}

static sl_status assemble(sl_ddp *ddp, const sl_ddp_options *options)
{
    SL_TRY(look_at_replica(ddp, options));
    SL_TRY(allocate(ddp));
    SL_TRY(sli_ddp_verify(ddp));
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        SL_TRY(sl_group_split(ddp->group, 0, &ddp->groups[stage]));
        SL_TRY(sli_reducer_create(sli_ddp_set(ddp, stage), ddp->groups[stage], stage,
                                  &ddp->reducers[stage]));
    }
    return sli_ddp_broadcast(ddp, 0, false);
}

sl_status sl_ddp_create(const sl_ddp_options *options, sl_ddp **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    SL_TRY(check_options(options));
    sl_ddp *ddp = calloc(1, sizeof *ddp);
    if (!ddp)
        return sl_error(SL_ERR_MEMORY, "sl_ddp_create: no memory for a replica");
    ddp->group = options->group;
    ddp->pipe = options->pipe;
    ddp->module = options->module;
    ddp->parameters = options->parameters;
    ddp->find_unused_parameters = options->find_unused_parameters;
    ddp->stage_count = ddp->pipe ? sl_pipe_stages(ddp->pipe) : 1;
    ddp->syncs = true;
    sl_status status = assemble(ddp, options);
    if (status != SL_OK)
        sl_ddp_destroy(&ddp);
    *out = ddp;
    return status;
}

void sl_ddp_destroy(sl_ddp **ddp)
{
    if (!ddp || !*ddp)
        return;
    sl_ddp *dead = *ddp;
    for (int stage = 0; stage < dead->stage_count; stage++) {
        if (dead->reducers)
            sli_reducer_destroy(&dead->reducers[stage]);
        if (dead->groups)
            sl_group_destroy(&dead->groups[stage]);
    }
    free(dead->groups);
    free(dead->reducers);
    free(dead->missing);
    free(dead->bucket_logs);
    free(dead);
    *ddp = NULL;
}
