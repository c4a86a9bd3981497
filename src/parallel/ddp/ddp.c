/* A replica under DistributedDataParallel: its creation, the exchange of one step, the log. */
#include "parallel/ddp/ddp.h"

#include "comm/group.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/json.h"
#include "core/sum_tree.h"
#include "nn/module.h"
#include "parallel/pipe/pipe.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdlib.h>

/* Of parameters: sl_parameter_kind. */
enum { KINDS = SL_PARAMETER_BUFFER + 1 };

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status check_options(const sl_ddp_options *options)
{
    if (!options->group)
        return sl_error(SL_ERR_INVALID, "sl_ddp_create: there is no group");
    SL_TRY(sli_group_check_host(options->group, "sl_ddp_create"));
    bool has_module = options->module && options->parameters;
    if (!options->pipe == !has_module)
        return sl_error(SL_ERR_INVALID, "sl_ddp_create: expected either a pipe, or a module and "
                                        "its parameters");
    if (options->comm_precision == SL_PRECISION_TF32)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: gradients are exchanged in f32 or bf16, not in tf32");
    int ranks = sl_group_size(options->group);
    if (options->shards != 0 && options->shards < ranks)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: there must be a shard for each of the %d ranks, got %d",
                        ranks, options->shards);
    if (options->shards > ranks && (!options->pipe || options->find_unused_parameters))
        return sl_error(SL_ERR_INVALID, "sl_ddp_create: more shards than ranks need a pipe without "
                                        "find_unused_parameters");
    return SL_OK;
}

/* Refuses a module with parameters that are not in the set. */
static sl_status check_set_holds(const sl_parameter_set *set, const sl_module *module)
{
    int count = sl_parameter_set_count(set);
    for (int i = 0; i < module->parameter_count; i++) {
        const sl_parameter *parameter = module->parameters[i];
        /* A set's parameters have successive numbers. */
        uint32_t index = count ? parameter->number - sl_parameter_set_get(set, 0)->number : 0;
        if (index >= (uint32_t)count || sl_parameter_set_get(set, (int)index) != parameter)
            return sl_error(SL_ERR_INVALID, "sl_ddp_create: parameter %s is not in the given set",
                            parameter->path);
    }
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(check_set_holds(set, module->children[i]));
    return SL_OK;
}

/* Lists the stages that are in this process. */
static sl_status list_stages(sl_ddp *ddp, sl_parameter_set *parameters)
{
    int all = ddp->pipe ? sl_pipe_stages(ddp->pipe) : 1;
    ddp->stages = calloc((size_t)all, sizeof *ddp->stages);
    ddp->observers = calloc((size_t)all, sizeof *ddp->observers);
    if (!ddp->stages || !ddp->observers)
        return sli_no_memory("sl_ddp_create", "%d stages", all);
    for (int stage = 0; stage < all; stage++) {
        sl_parameter_set *set = ddp->pipe ? sl_pipe_parameters(ddp->pipe, stage) : parameters;
        if (!set)
            continue;
        ddp->stages[ddp->stage_count++] = (sli_ddp_stage){.index = stage, .set = set};
        ddp->log.bucket_count += sl_parameter_set_bucket_count(set);
    }
    ddp->bucket_logs = calloc((size_t)ddp->log.bucket_count + 1, sizeof *ddp->bucket_logs);
    ddp->log.buckets = ddp->bucket_logs;
    ddp->log.rank = sl_group_rank(ddp->group);
    ddp->log.ranks = sl_group_size(ddp->group);
    if (!ddp->bucket_logs)
        return sli_no_memory("sl_ddp_create", "the log of %d buckets", ddp->log.bucket_count);
    return SL_OK;
}

/* Lists the stages that are here, and counts their parameters of each kind. */
static sl_status list_parameters(sl_ddp *ddp, sl_parameter_set *parameters, double counts[KINDS])
{
    SL_TRY(list_stages(ddp, parameters));
    if (!ddp->pipe)
        SL_TRY(check_set_holds(parameters, ddp->module));
    for (int s = 0; s < ddp->stage_count; s++)
        for (int i = 0; i < sl_parameter_set_count(ddp->stages[s].set); i++) {
            const sl_parameter *parameter = sl_parameter_set_get(ddp->stages[s].set, i);
            counts[parameter->kind]++;
            if (parameter->kind == SL_PARAMETER_TRAINED && !parameter->grad)
                return sl_error(
                    SL_ERR_INVALID,
                    "sl_ddp_create: the set of parameter %s was created without gradients",
                    parameter->path);
        }
    return SL_OK;
}

/* Refuses a replica that cannot be trained; finds out whether it has buffers. */
static sl_status inspect_replica(sl_ddp *ddp, sl_parameter_set *parameters)
{
    double counts[KINDS] = {0};
    SL_TRY(sli_pipe_agree(ddp->pipe, list_parameters(ddp, parameters, counts)));
    if (ddp->pipe && ddp->pipe->group)
        SL_TRY(sli_pipe_group_sum(ddp->pipe->group, counts, KINDS));
    ddp->broadcasts_buffers &= counts[SL_PARAMETER_BUFFER] > 0;
    if (counts[SL_PARAMETER_TRAINED] == 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: DistributedDataParallel is not needed when a module "
                        "doesn't have any parameters that require a gradient");
    return SL_OK;
}

/* Verifies that all ranks have the same replica, and gives all of them rank 0's values. */
static sl_status connect_ranks(sl_ddp *ddp)
{
    int64_t options = (int64_t)ddp->shards << 16 | (int64_t)ddp->nccl << 8 |
                      (int64_t)ddp->comm_precision << 2 | ddp->find_unused_parameters << 1 |
                      ddp->broadcasts_buffers;
    SL_TRY(sli_ddp_verify(ddp, options));
    for (int s = 0; s < ddp->stage_count; s++) {
        sli_ddp_stage *stage = &ddp->stages[s];
        SL_TRY(sl_group_split(ddp->group, 0, &stage->group));
        if (ddp->nccl)
            SL_TRY(sli_group_create_nccl(stage->group, sl_parameter_set_device(stage->set),
                                         &stage->device_group));
        SL_TRY(sli_reducer_create(stage->set, stage->group, stage->device_group, stage->index,
                                  ddp->comm_precision, &stage->reducer));
        SL_TRY(sli_reducer_set_terms(stage->reducer, ddp->shards));
        ddp->observers[stage->index] = sli_reducer_observer(stage->reducer);
    }
    return sli_ddp_broadcast(ddp, 0, false);
}

static void set_shards(sl_ddp *ddp, int shards)
{
    int rank = sl_group_rank(ddp->group), ranks = sl_group_size(ddp->group);
    ddp->shards = shards ? shards : ranks;
    ddp->first_shard = sli_sum_tree_first(ddp->shards, rank, ranks);
    ddp->shard_count = sli_sum_tree_first(ddp->shards, rank + 1, ranks) - ddp->first_shard;
}

sl_status sl_ddp_create(const sl_ddp_options *options, sl_ddp **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    SL_TRY(check_options(options));
    sl_ddp *ddp = calloc(1, sizeof *ddp);
    if (!ddp)
        return sli_no_memory("sl_ddp_create", "a replica");
    ddp->group = options->group;
    ddp->pipe = options->pipe;
    ddp->module = options->module;
    ddp->broadcasts_buffers = !options->no_buffer_broadcast;
    ddp->find_unused_parameters = options->find_unused_parameters;
    ddp->comm_precision = options->comm_precision;
    ddp->nccl = options->nccl;
    ddp->syncs = true;
    set_shards(ddp, options->shards);
    sl_status status;
    SL_TRY_OR_FAIL(inspect_replica(ddp, options->parameters));
    SL_TRY_OR_FAIL(sli_pipe_agree(ddp->pipe, connect_ranks(ddp)));
    *out = ddp;
    return SL_OK;

fail:
    sl_ddp_destroy(&ddp);
    return status;
}

void sl_ddp_destroy(sl_ddp **ddp)
{
    if (!ddp || !*ddp)
        return;
    sl_ddp *dead = *ddp;
    for (int s = 0; s < dead->stage_count; s++) {
        sli_reducer_destroy(&dead->stages[s].reducer);
        sl_group_destroy(&dead->stages[s].device_group);
        sl_group_destroy(&dead->stages[s].group);
    }
    free(dead->stages);
    free(dead->observers);
    free(dead->bucket_logs);
    free(dead);
    *ddp = NULL;
}

sl_status sl_ddp_register_hook(sl_ddp *ddp, sl_ddp_hook hook, void *arg)
{
    SLI_CHECK_NOT_NULL(ddp);
    SLI_CHECK_NOT_NULL(hook);
    if (ddp->hook)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_register_hook: a communication hook can only be registered once");
    SL_TRY(sli_ddp_check_no_shards(ddp, "sl_ddp_register_hook", "a hook"));
    ddp->hook = hook;
    ddp->hook_arg = arg;
    return SL_OK;
}

void sl_ddp_set_sync(sl_ddp *ddp, bool sync)
{
    ddp->syncs = sync;
}

/* NULL: the stage is in another process. */
static const sli_ddp_stage *find_stage(const sl_ddp *ddp, int index)
{
    for (int s = 0; s < ddp->stage_count; s++)
        if (ddp->stages[s].index == index)
            return &ddp->stages[s];
    return NULL;
}

sl_group *sl_ddp_group(const sl_ddp *ddp, int stage)
{
    const sli_ddp_stage *found = find_stage(ddp, stage);
    return found ? found->group : NULL;
}

sl_group *sli_ddp_device_group(const sl_ddp *ddp, int stage)
{
    const sli_ddp_stage *found = find_stage(ddp, stage);
    return found ? found->device_group : NULL;
}

/* ---- Values ----------------------------------------------------------------------------- */

/* Over the group of the device's memory, where there is one. */
static sl_status broadcast_tensor(const sli_ddp_stage *stage, sl_tensor *tensor, int root)
{
    sli_host_array host;
    int64_t count = sl_tensor_count(tensor);
    sl_dtype dtype = sl_tensor_dtype(tensor);
    if (stage->device_group)
        return sl_group_broadcast(stage->device_group, sl_tensor_data(tensor), count, dtype, root,
                                  NULL);
    SL_TRY(sli_tensor_open_host(tensor, true, &host));
    sl_status status = sl_group_broadcast(stage->group, host.host, count, dtype, root, NULL);
    sl_status written = sli_host_array_close(&host, status == SL_OK);
    return status == SL_OK ? written : status;
}

sl_status sli_ddp_broadcast(const sl_ddp *ddp, int root, bool only_buffers)
{
    for (int s = 0; s < ddp->stage_count; s++) {
        const sli_ddp_stage *stage = &ddp->stages[s];
        for (int b = 0; b < sl_parameter_set_bucket_count(stage->set) && !only_buffers; b++)
            SL_TRY(broadcast_tensor(stage, sl_parameter_set_bucket_values(stage->set, b), root));
        for (int i = 0; i < sl_parameter_set_count(stage->set); i++) {
            const sl_parameter *parameter = sl_parameter_set_get(stage->set, i);
            if (parameter->kind == SL_PARAMETER_BUFFER ||
                (parameter->kind == SL_PARAMETER_FROZEN && !only_buffers))
                SL_TRY(broadcast_tensor(stage, parameter->value, root));
        }
    }
    return SL_OK;
}

/* ---- Shards ----------------------------------------------------------------------------- */

void sl_ddp_shards(const sl_ddp *ddp, int *first, int *count)
{
    *first = ddp->first_shard;
    *count = ddp->shard_count;
}

sl_status sli_ddp_check_no_shards(const sl_ddp *ddp, const char *who, const char *what)
{
    if (ddp->shards == sl_group_size(ddp->group))
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s: %s needs as many shards as ranks, %d, got %d", who, what,
                    sl_group_size(ddp->group), ddp->shards);
}

static sl_status add_shard(int stage, void *arg)
{
    const sl_ddp *ddp = arg;
    return sli_reducer_add_term(find_stage(ddp, stage)->reducer);
}

sl_status sli_ddp_add_shard(sl_ddp *ddp)
{
    return sl_pipe_run_on_stages(ddp->pipe, add_shard, ddp);
}

/* ---- The exchange of a step ------------------------------------------------------------- */

void sli_ddp_begin_exchange(sl_ddp *ddp)
{
    ddp->start = sli_clock_seconds();
    sli_reduction reduction = {
        .hook = ddp->hook,
        .hook_arg = ddp->hook_arg,
        .divisor = ddp->joins && ddp->join.divide_by_active ? ddp->active : 0,
    };
    for (int s = 0; s < ddp->stage_count; s++)
        sli_reducer_begin(ddp->stages[s].reducer, &reduction);
}

static void write_log(sl_ddp *ddp, double backward_end)
{
    sl_ddp_log *log = &ddp->log;
    sl_ddp_bucket_log *next = ddp->bucket_logs;
    for (int s = 0; s < ddp->stage_count; s++) {
        sli_reducer_log(ddp->stages[s].reducer, ddp->start, next);
        next += sl_parameter_set_bucket_count(ddp->stages[s].set);
    }
    log->steps++;
    log->order_rebuilt = ddp->has_rebuilt_order;
    log->backward_end = backward_end;
    log->reduce_seconds = log->overlap_seconds = log->wait_seconds = 0;
    for (int i = 0; i < log->bucket_count; i++) {
        double start = log->buckets[i].reduce_start, end = log->buckets[i].reduce_end;
        log->reduce_seconds += end - start;
        if (start < backward_end)
            log->overlap_seconds += (end < backward_end ? end : backward_end) - start;
        if (end - backward_end > log->wait_seconds)
            log->wait_seconds = end - backward_end;
    }
}

/* Waits for all stages, and returns the first stage's error. */
static sl_status end_reducers(const sl_ddp *ddp)
{
    sli_error_copy first = {0};
    for (int s = 0; s < ddp->stage_count; s++) {
        sl_status status = sli_reducer_end(ddp->stages[s].reducer);
        if (first.status == SL_OK)
            sli_error_save(&first, status);
    }
    return sli_error_restore(&first);
}

sl_status sli_ddp_end_exchange(sl_ddp *ddp)
{
    double backward_end = sli_clock_seconds() - ddp->start;
    SL_TRY(end_reducers(ddp));
    for (int s = 0; s < ddp->stage_count && ddp->find_unused_parameters; s++)
        SL_TRY(sli_reducer_drop_unused(ddp->stages[s].reducer));
    write_log(ddp, backward_end);
    for (int s = 0; s < ddp->stage_count && !ddp->has_rebuilt_order; s++)
        SL_TRY(sli_reducer_rebuild_order(ddp->stages[s].reducer));
    ddp->has_rebuilt_order = true;
    return SL_OK;
}

sl_status sli_ddp_abort_exchange(sl_ddp *ddp, sl_status error)
{
    for (int s = 0; s < ddp->stage_count; s++)
        sli_reducer_abort(ddp->stages[s].reducer, error);
    return error;
}

sl_status sli_ddp_check_gradients(const sl_ddp *ddp)
{
    if (ddp->find_unused_parameters)
        return SL_OK;
    char list[256] = "";
    const char *first = NULL;
    int missing = 0, index = 0; /* among the trained parameters of all stages */
    size_t used = 0;
    for (int s = 0; s < ddp->stage_count; s++)
        for (int i = 0; i < sli_reducer_trained_count(ddp->stages[s].reducer); i++, index++) {
            const sl_parameter *parameter = sli_reducer_missing(ddp->stages[s].reducer, i);
            if (!parameter)
                continue;
            if (missing++ == 0)
                first = parameter->path;
            if (used < sizeof list)
                used += (size_t)snprintf(list + used, sizeof list - used, " %d", index);
        }
    if (missing == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "sl_ddp: %d parameters were not used in producing the loss, the first is %s; "
                    "find_unused_parameters allows that. Parameter indices which did not receive "
                    "grad for rank %d:%s",
                    missing, first, sl_group_rank(ddp->group), list);
}

/* ---- The log ---------------------------------------------------------------------------- */

const sl_ddp_log *sl_ddp_get_log(const sl_ddp *ddp)
{
    return &ddp->log;
}

void sl_ddp_log_print(const sl_ddp_log *log, FILE *file)
{
    sli_c_numbers scope = sli_c_numbers_begin();
    fprintf(file,
            "ddp: rank %d of %d, step %" PRId64 ", order of buckets %s: backward %.3f ms, "
            "exchange %.3f ms, of it overlapped %.3f ms, waited for %.3f ms\n",
            log->rank, log->ranks, log->steps,
            log->order_rebuilt ? "as gradients came" : "as registered", 1e3 * log->backward_end,
            1e3 * log->reduce_seconds, 1e3 * log->overlap_seconds, 1e3 * log->wait_seconds);
    for (int i = 0; i < log->bucket_count; i++) {
        const sl_ddp_bucket_log *each = &log->buckets[i];
        fprintf(file,
                "ddp:   stage %d bucket %d: %d parameters, %" PRId64 " bytes, ready at %.3f ms, "
                "reduced from %.3f to %.3f ms\n",
                each->stage, each->index, each->parameters, each->bytes, 1e3 * each->ready,
                1e3 * each->reduce_start, 1e3 * each->reduce_end);
    }
    sli_c_numbers_end(scope);
}
