/* Putting a pipe together, and taking it apart. */
#include "parallel/pipe.h"

#include "core/error.h"
#include "nn/module.h"

#include "device/cores.h"

#include <stdlib.h>

/* ---- Options ---------------------------------------------------------------------------- */

static sl_status check_balance(const int *balance, int stages, int modules)
{
    int64_t sum = 0;
    for (int stage = 0; stage < stages; stage++) {
        if (balance[stage] < 1)
            return sl_error(SL_ERR_INVALID,
                            "sl_pipe_create: all balance numbers must be positive, stage %d has %d",
                            stage, balance[stage]);
        sum += balance[stage];
    }
    if (sum != modules)
        return sl_error(SL_ERR_INVALID,
                        "sl_pipe_create: module and sum of balance have different length "
                        "(module: %d, sum of balance: %lld)",
                        modules, (long long)sum);
    return SL_OK;
}

sl_status sli_pipe_choose_balance(const sl_pipe_options *options, int *balance)
{
    int modules = sl_module_child_count(options->model), stages = options->stages;
    if (options->balance) {
        SL_TRY(check_balance(options->balance, stages, modules));
        for (int stage = 0; stage < stages; stage++)
            balance[stage] = options->balance[stage];
        return SL_OK;
    }
    bool has_layers = modules >= 3 && modules - 2 >= stages;
    return sl_partition(options->model, stages,
                        has_layers ? SL_PARTITION_LAYERS : SL_PARTITION_PARAMETERS, balance);
}

static sl_status check_options(const sl_pipe_options *options)
{
    const char *who = "sl_pipe_create";
    if (!options->model || !sl_module_is_sequential(options->model))
        return sl_error(SL_ERR_INVALID, "%s: module must be a Sequential to be partitioned, got %s",
                        who, options->model ? sl_module_type(options->model) : "none");
    if (options->chunks < 0)
        return sl_error(SL_ERR_INVALID, "%s: number of chunks must be positive integer, got %d",
                        who, options->chunks);
    if (options->recompute < SL_RECOMPUTE_EXCEPT_LAST || options->recompute > SL_RECOMPUTE_ALWAYS)
        return sl_error(SL_ERR_INVALID,
                        "%s: checkpoint is not one of 'always', 'except_last', or 'never' (%d)",
                        who, (int)options->recompute);
    if (options->schedule < SL_SCHEDULE_GPIPE || options->schedule > SL_SCHEDULE_1F1B)
        return sl_error(SL_ERR_INVALID, "%s: schedule is not one of 'gpipe' or '1f1b' (%d)", who,
                        (int)options->schedule);
    if (options->stages < 1)
        return sl_error(SL_ERR_INVALID, "%s: stages must be at least 1, got %d", who,
                        options->stages);
    int modules = sl_module_child_count(options->model);
    if (options->stages > modules)
        return sl_error(SL_ERR_INVALID, "%s: %d stages need as many modules, the model has %d", who,
                        options->stages, modules);
    for (int stage = 0; stage < options->stages; stage++)
        if (!options->devices || !options->devices[stage])
            return sl_error(SL_ERR_INVALID, "%s: stage %d has no device", who, stage);
    return sl_error_context(sli_module_check_widths(options->model), "%s: ", who);
}

/* ---- Parts ------------------------------------------------------------------------------ */

static sl_status allocate_arrays(sl_pipe *pipe)
{
    size_t stages = (size_t)pipe->stage_count, chunks = (size_t)pipe->chunks;
    size_t actions = 3 * chunks; /* at most three for a micro-batch */
    pipe->stages = calloc(stages, sizeof *pipe->stages);
    pipe->calls = calloc(stages, sizeof *pipe->calls);
    pipe->workers = calloc(stages, sizeof *pipe->workers);
    pipe->channels = calloc(2 * stages, sizeof *pipe->channels);
    pipe->device_locks = calloc(stages, sizeof *pipe->device_locks);
    pipe->micros = calloc(chunks, sizeof *pipe->micros);
    pipe->sizes = calloc(chunks, sizeof *pipe->sizes);
    pipe->trace = calloc(stages * actions, sizeof *pipe->trace);
    bool complete = pipe->stages && pipe->calls && pipe->workers && pipe->channels &&
                    pipe->device_locks && pipe->micros && pipe->sizes && pipe->trace;
    for (int kind = 0; complete && kind < SLI_TABLE_KINDS; kind++) {
        pipe->tables[kind] = calloc(chunks, sizeof *pipe->tables[kind]);
        complete = pipe->tables[kind];
    }
    for (size_t stage = 0; complete && stage < stages; stage++) {
        sli_stage *each = &pipe->stages[stage];
        each->records = calloc(chunks, sizeof *each->records);
        each->entries = calloc(actions, sizeof *each->entries);
        complete = each->records && each->entries;
    }
    if (!complete)
        return sl_error(SL_ERR_MEMORY, "sl_pipe_create: no memory for %d stages of %d chunks",
                        pipe->stage_count, pipe->chunks);
    return SL_OK;
}

/* The lock of the stage's device: an earlier stage's, where that has the same device. */
static pthread_mutex_t *device_lock(sl_pipe *pipe, int stage)
{
    for (int i = 0; i < stage; i++)
        if (pipe->stages[i].device == pipe->stages[stage].device)
            return pipe->stages[i].device_lock;
    pthread_mutex_t *lock = &pipe->device_locks[pipe->device_lock_count++];
    pthread_mutex_init(lock, NULL);
    return lock;
}

static void set_up_stages(sl_pipe *pipe, const sl_pipe_options *options, const int *balance)
{
    int first = 0, modules = sl_module_child_count(pipe->model);
    bool takes_last =
        pipe->loss && sl_loss_takes_over(pipe->loss, sl_module_child(pipe->model, modules - 1));
    for (int i = 0; i < pipe->stage_count; i++) {
        sli_stage *stage = &pipe->stages[i];
        stage->index = i;
        stage->is_first = i == 0;
        stage->is_last = i + 1 == pipe->stage_count;
        stage->device = options->devices[i];
        stage->model = pipe->model;
        stage->first = first;
        stage->count = balance[i];
        stage->loss_takes_last = stage->is_last && takes_last;
        stage->device_lock = device_lock(pipe, i);
        first += balance[i];
    }
}

/* Stages look out for tensors that are yet to come only where no thread needs their core. */
static sl_status connect_stages(sl_pipe *pipe, sl_device *const *devices)
{
    bool spins = pipe->device_lock_count == pipe->stage_count &&
                 sli_cores_suffice(devices, pipe->stage_count);
    for (int i = 0; i + 1 < pipe->stage_count; i++) {
        sli_stage *here = &pipe->stages[i], *next = &pipe->stages[i + 1];
        SL_TRY(sli_channel_create(next->device, pipe->chunks, spins, &here->to_next));
        pipe->channels[pipe->channel_count++] = next->from_previous = here->to_next;
        SL_TRY(sli_channel_create(here->device, pipe->chunks, spins, &next->to_previous));
        pipe->channels[pipe->channel_count++] = here->from_next = next->to_previous;
    }
    return SL_OK;
}

static sl_status start_workers(sl_pipe *pipe)
{
    for (int i = 0; i < pipe->stage_count; i++)
        SL_TRY(sli_worker_create(pipe->stages[i].device, &pipe->workers[i]));
    return SL_OK;
}

/* On the stage's own thread, so that its memory is first touched by its own cores. */
static void place_parameters(sli_stage *stage, void *arg)
{
    sl_pipe *pipe = arg;
    sl_parameter_set_options options = {
        .device = stage->device,
        .seed = pipe->seed,
        .no_init = pipe->no_init,
        .no_gradients = pipe->inference,
        .first_bucket_bytes = pipe->first_bucket_bytes,
        .bucket_bytes = pipe->bucket_bytes,
    };
    pthread_mutex_lock(stage->device_lock);
    sl_status status = sl_parameter_set_create(stage->model, stage->first, stage->count, &options,
                                               &stage->parameters);
    pthread_mutex_unlock(stage->device_lock);
    sl_error_context(status, "[stage %d] ", stage->index);
    sli_failure_raise(&pipe->failure, status);
}

static sl_status assemble(sl_pipe *pipe, const sl_pipe_options *options)
{
    SL_TRY(allocate_arrays(pipe));
    int *balance = calloc((size_t)pipe->stage_count, sizeof *balance);
    if (!balance)
        return sl_error(SL_ERR_MEMORY, "sl_pipe_create: no memory for a balance");
    sl_status status = sli_pipe_choose_balance(options, balance);
    if (status == SL_OK)
        set_up_stages(pipe, options, balance);
    free(balance);
    SL_TRY(status);
    SL_TRY(connect_stages(pipe, options->devices));
    SL_TRY(start_workers(pipe));
    sli_pipe_run_stages(pipe, place_parameters, pipe);
    return sli_failure_take(&pipe->failure);
}

sl_status sl_pipe_create(const sl_pipe_options *options, sl_pipe **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    SL_TRY(check_options(options));
    sl_pipe *pipe = calloc(1, sizeof *pipe);
    if (!pipe)
        return sl_error(SL_ERR_MEMORY, "sl_pipe_create: no memory for a pipe");
    pipe->model = options->model;
    pipe->loss = options->loss;
    pipe->chunks = options->chunks ? options->chunks : 1;
    pipe->recompute = options->recompute;
    pipe->schedule = options->schedule;
    pipe->seed = options->seed;
    pipe->first_bucket_bytes = options->first_bucket_bytes;
    pipe->bucket_bytes = options->bucket_bytes;
    pipe->no_init = options->no_init;
    pipe->inference = options->inference;
    pipe->stage_count = options->stages;
    sli_failure_init(&pipe->failure);
    sl_status status = assemble(pipe, options);
    if (status != SL_OK)
        sl_pipe_destroy(&pipe);
    *out = pipe;
    return status;
}

/* ---- Destruction ------------------------------------------------------------------------ */

static void destroy_tables(sl_schedule **tables, int count)
{
    for (int i = 0; tables && i < count; i++)
        sl_schedule_destroy(&tables[i]);
    free(tables);
}

void sl_pipe_destroy(sl_pipe **pipe)
{
    if (!pipe || !*pipe)
        return;
    sl_pipe *dead = *pipe;
    for (int i = 0; dead->workers && i < dead->stage_count; i++)
        sli_worker_destroy(&dead->workers[i]);
    for (int i = 0; i < dead->channel_count; i++)
        sli_channel_destroy(&dead->channels[i]);
    for (int i = 0; dead->stages && i < dead->stage_count; i++) {
        sl_parameter_set_destroy(&dead->stages[i].parameters);
        free(dead->stages[i].records);
        free(dead->stages[i].entries);
    }
    for (int i = 0; i < dead->device_lock_count; i++)
        pthread_mutex_destroy(&dead->device_locks[i]);
    for (int kind = 0; kind < SLI_TABLE_KINDS; kind++)
        destroy_tables(dead->tables[kind], dead->chunks);
    sli_failure_destroy(&dead->failure);
    free(dead->stages);
    free(dead->calls);
    free(dead->workers);
    free(dead->channels);
    free(dead->device_locks);
    free(dead->micros);
    free(dead->sizes);
    free(dead->trace);
    free(dead);
    *pipe = NULL;
}
