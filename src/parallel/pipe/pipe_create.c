/* Putting a pipe together, and taking it apart. */
#include "nn/loss.h"
#include "parallel/pipe/pipe.h"

#include "comm/agree.h"
#include "comm/group.h"
#include "core/error.h"
#include "nn/module.h"
#include "parallel/pipe/pipe_head.h"
#include "parallel/pipe/pipe_optimizer.h"
#include "parallel/pipe/pipe_skip.h"
#include "parallel/pipe/pipe_slices.h"
#include "parallel/pipe/pipe_table.h"
#include "parallel/pipe/pipe_tied.h"
#include "parallel/schedule/table.h"

#include "device/cores.h"

#include <limits.h>
#include <stdlib.h>

enum { MOST_ACCUMULATION_STEPS = 1 << 16 };

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

static sl_status choose_balance(const sl_pipe_options *options, int *balance)
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
    if (!options->model || !sli_module_is_sequential(options->model))
        return sl_error(SL_ERR_INVALID, "%s: module must be a Sequential to be partitioned, got %s",
                        who, options->model ? sl_module_type(options->model) : "none");
    if (options->chunks < 0)
        return sl_error(SL_ERR_INVALID, "%s: chunks must be 0 or more, got %d", who,
                        options->chunks);
    if (options->slices < 0)
        return sl_error(SL_ERR_INVALID, "%s: slices must be 0 or more, got %d", who,
                        options->slices);
    if (options->head_blocks < 0)
        return sl_error(SL_ERR_INVALID, "%s: head_blocks must be 0 or more, got %d", who,
                        options->head_blocks);
    if (options->accumulate < 0 || options->accumulate > MOST_ACCUMULATION_STEPS)
        return sl_error(SL_ERR_INVALID, "%s: accumulate must be from 0 to %d, got %d", who,
                        MOST_ACCUMULATION_STEPS, options->accumulate);
    if (options->recompute < SL_RECOMPUTE_EXCEPT_LAST || options->recompute > SL_RECOMPUTE_ALWAYS)
        return sl_error(SL_ERR_INVALID,
                        "%s: recompute must be except_last, never or always, got %d", who,
                        (int)options->recompute);
    if (options->stages < 1)
        return sl_error(SL_ERR_INVALID, "%s: stages must be at least 1, got %d", who,
                        options->stages);
    int modules = sl_module_child_count(options->model);
    if (options->stages > modules)
        return sl_error(SL_ERR_INVALID, "%s: %d stages need as many modules, the model has %d", who,
                        options->stages, modules);
    int virtual_stages = options->virtual_stages ? options->virtual_stages : 1;
    if (virtual_stages < 1 || options->stages % virtual_stages != 0)
        return sl_error(SL_ERR_INVALID,
                        "%s: the stages must be a multiple of the stages a rank, got %d and %d",
                        who, options->stages, virtual_stages);
    return sl_error_context(sli_module_check_widths(options->model), "%s: ", who);
}

/* ---- Memory and order ------------------------------------------------------------------- */

static sl_status allocate_arrays(sl_pipe *pipe)
{
    size_t stages = (size_t)pipe->stage_count;
    size_t micros = (size_t)pipe->batch_micros * (size_t)pipe->slices;
    size_t ranks = (size_t)pipe->rank_count, chunks = (size_t)pipe->chunks;
    pipe->stages = calloc(stages, sizeof *pipe->stages);
    pipe->backward = calloc(stages, sizeof *pipe->backward);
    pipe->ranks = calloc(ranks, sizeof *pipe->ranks);
    pipe->rank_stages = calloc(stages, sizeof *pipe->rank_stages);
    pipe->device_locks = calloc(ranks, sizeof *pipe->device_locks);
    pipe->micros = calloc(micros, sizeof *pipe->micros);
    pipe->sizes = calloc(micros, sizeof *pipe->sizes);
    bool complete = pipe->stages && pipe->backward && pipe->ranks && pipe->rank_stages &&
                    pipe->device_locks && pipe->micros && pipe->sizes;
    for (int kind = 0; complete && kind < SLI_TABLE_KINDS; kind++) {
        pipe->tables[kind] = calloc(chunks, sizeof *pipe->tables[kind]);
        complete = pipe->tables[kind];
    }
    for (size_t stage = 0; complete && stage < stages; stage++) {
        sli_stage *each = &pipe->stages[stage];
        each->records = calloc((size_t)pipe->table_micros, sizeof *each->records);
        complete = each->records;
    }
    if (!complete)
        return sli_no_memory("sl_pipe_create", "%d stages of %d micro-batches", pipe->stage_count,
                             pipe->batch_micros);
    return SL_OK;
}

/* The order of computation for an accumulation step, proven; it says where the stages are. */
static sl_status make_order(sl_pipe *pipe, const sl_pipe_options *options)
{
    pipe->is_given = options->table;
    if (pipe->is_given) {
        SL_TRY(sli_pipe_check_table(pipe, options->table, options->placement, pipe->chunks));
        SL_TRY(sl_schedule_first_micros(options->table, pipe->chunks, &pipe->order));
        SL_TRY(sli_schedule_renumber(pipe->order));
    } else {
        SL_TRY(sli_pipe_write_order(pipe, options->placement, pipe->chunks, &pipe->order));
    }
    return sl_schedule_validate(pipe->order);
}

/* ---- Ranks and stages ------------------------------------------------------------------- */

/* The lock of the rank's device: an earlier rank's, where that has the same device. */
static pthread_mutex_t *device_lock(sl_pipe *pipe, int rank)
{
    for (int i = 0; i < rank; i++)
        if (pipe->ranks[i].device == pipe->ranks[rank].device)
            return pipe->ranks[i].device_lock;
    pthread_mutex_t *lock = &pipe->device_locks[pipe->device_lock_count++];
    pthread_mutex_init(lock, NULL);
    return lock;
}

/* The rank of the group that pipeline rank `rank` is on. */
static sl_status find_group_rank(const sl_pipe *pipe, const sl_pipe_options *options, int rank,
                                 int *out)
{
    int size = options->group ? sl_group_size(options->group) : 1;
    *out = options->group_ranks ? options->group_ranks[rank]
                                : rank / ((pipe->rank_count + size - 1) / size);
    if (!options->group_ranks && pipe->rank_count % size != 0)
        return sl_error(SL_ERR_INVALID,
                        "the %d pipeline ranks must be spread evenly over the %d ranks of the "
                        "group, or by group_ranks",
                        pipe->rank_count, size);
    if (*out < 0 || *out >= size)
        return sl_error(SL_ERR_INVALID,
                        "pipeline rank %d must be on a rank of the group from 0 to %d, got %d",
                        rank, size - 1, *out);
    return SL_OK;
}

static sl_status set_up_ranks(sl_pipe *pipe, const sl_pipe_options *options)
{
    const int *placement = sl_schedule_placement(pipe->order);
    int each = pipe->stage_count / pipe->rank_count;
    int here = options->group ? sl_group_rank(options->group) : 0;
    for (int i = 0; i < pipe->rank_count; i++) {
        sli_rank *rank = &pipe->ranks[i];
        rank->index = i;
        rank->stages = pipe->stages;
        rank->own = pipe->rank_stages + i * each;
        SL_TRY(find_group_rank(pipe, options, i, &rank->group_rank));
        if (rank->group_rank != here)
            continue;
        rank->device = options->devices ? options->devices[i] : NULL;
        if (!rank->device)
            return sl_error(SL_ERR_INVALID, "rank %d has no device", i);
        rank->device_lock = device_lock(pipe, i);
    }
    for (int stage = 0; stage < pipe->stage_count; stage++) {
        sli_rank *rank = &pipe->ranks[placement[stage]];
        pipe->rank_stages[rank->index * each + rank->own_count++] = stage;
    }
    return SL_OK;
}

static int count_parameters(const sl_module *module)
{
    int count = module->parameter_count;
    for (int i = 0; i < module->child_count; i++)
        count += count_parameters(module->children[i]);
    return count;
}

static void set_up_stages(sl_pipe *pipe, const int *balance)
{
    const int *placement = sl_schedule_placement(pipe->order);
    int first = 0, modules = sl_module_child_count(pipe->model);
    int frozen = sli_module_frozen_count(pipe->model);
    sl_partition_backward(pipe->model, pipe->stage_count, balance, pipe->backward);
    bool takes_last =
        pipe->loss && sli_loss_takes_over(pipe->loss, sl_module_child(pipe->model, modules - 1));
    for (int i = 0; i < pipe->stage_count; i++) {
        sli_stage *stage = &pipe->stages[i];
        stage->index = i;
        stage->is_last = i + 1 == pipe->stage_count;
        stage->group_rank = pipe->ranks[placement[i]].group_rank;
        stage->device = pipe->ranks[placement[i]].device;
        stage->is_here = stage->device;
        stage->model = pipe->model;
        stage->first = first;
        stage->count = balance[i];
        for (int m = 0; m < stage->count; m++)
            stage->parameter_count += count_parameters(sl_module_child(pipe->model, first + m));
        stage->loss_takes_last = stage->is_last && takes_last;
        stage->goes_backward = pipe->backward[i] != SL_STAGE_BACKWARD_NONE;
        stage->ends_backward =
            stage->goes_backward && (i == 0 || !pipe->stages[i - 1].goes_backward);
        stage->frozen_count = frozen <= first                 ? 0
                              : frozen - first < stage->count ? frozen - first
                                                              : stage->count;
        first += balance[i];
    }
}

/* A channel from one stage to another one. All processes have all channels, so that they number
 * them alike. */
static sl_status connect(sl_pipe *pipe, const sli_stage *source, const sli_stage *target,
                         bool spins, sli_channel **out)
{
    bool crosses = source->group_rank != target->group_rank && (source->is_here || target->is_here);
    sli_channel_options options = {.device = target->device,
                                   .micros = pipe->table_micros,
                                   .spins = spins,
                                   .failure = &pipe->failure};
    if (crosses) {
        options.link = pipe->group->link;
        options.number = pipe->channel_count;
        options.neighbour = source->is_here ? target->group_rank : source->group_rank;
    }
    SL_TRY(sli_channel_create(&options, out));
    pipe->channels[pipe->channel_count++] = *out;
    return SL_OK;
}

/* A channel for tensors to a stage and one for gradients back. */
static sl_status connect_pair(sl_pipe *pipe, const sli_stage *source, const sli_stage *target,
                              bool spins, sli_channel **forward, sli_channel **gradient)
{
    SL_TRY(connect(pipe, source, target, spins, forward));
    return connect(pipe, target, source, spins, gradient);
}

/* Between the last stage and the parts of a split head. */
static sl_status connect_head(sl_pipe *pipe, bool spins)
{
    const sli_stage *last = sli_last_stage(pipe);
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        const sli_stage *own = &pipe->stages[pipe->ranks[i].own[0]];
        for (int c = 0; c < SLI_HEAD_CHANNELS; c++) {
            bool to_last = c == SLI_HEAD_SUMS || c == SLI_HEAD_NUMBERS;
            SL_TRY(connect(pipe, to_last ? own : last, to_last ? last : own, spins,
                           &pipe->parts[i].channels[c]));
        }
    }
    return SL_OK;
}

/* Receivers spin only where each rank has a device of its own and there are cores for all. */
static bool can_spin(const sl_pipe *pipe)
{
    sl_device *devices[pipe->rank_count];
    int count = 0;
    for (int i = 0; i < pipe->rank_count; i++)
        if (pipe->ranks[i].device)
            devices[count++] = pipe->ranks[i].device;
    return pipe->device_lock_count == count && sli_cores_suffice(devices, count);
}

static sl_status connect_stages(sl_pipe *pipe)
{
    bool spins = can_spin(pipe);
    size_t pairs = (size_t)pipe->stage_count + (size_t)pipe->skip_count;
    size_t channels = 2 * pairs + (size_t)sli_pipe_head_channels(pipe);
    pipe->channels = calloc(channels, sizeof *pipe->channels);
    if (!pipe->channels)
        return sli_no_memory("sl_pipe_create", "%zu channels", channels);
    for (int i = 0; i + 1 < pipe->stage_count; i++) {
        sli_stage *here = &pipe->stages[i], *next = &pipe->stages[i + 1];
        SL_TRY(connect_pair(pipe, here, next, spins, &here->to_next, &next->to_previous));
        next->from_previous = here->to_next;
        here->from_next = next->to_previous;
    }
    for (int i = 0; i < pipe->skip_count; i++) {
        sli_skip *skip = &pipe->skips[i];
        SL_TRY(connect_pair(pipe, &pipe->stages[skip->stash_stage], &pipe->stages[skip->pop_stage],
                            spins, &skip->forward, &skip->gradient));
    }
    return connect_head(pipe, spins);
}

static sl_status start_ranks(sl_pipe *pipe)
{
    SL_TRY(connect_stages(pipe));
    for (int i = 0; i < pipe->rank_count; i++)
        if (pipe->ranks[i].device)
            SL_TRY(sl_error_context(sli_worker_create(sli_device_bind_thread, pipe->ranks[i].device,
                                                      &pipe->ranks[i].worker),
                                    "sl_pipe_create: "));
    return SL_OK;
}

/* On the rank's own thread, so that its memory is first touched by its own cores. */
static sl_status create_parameters(int index, void *arg)
{
    const sl_pipe *pipe = arg;
    sli_stage *stage = &pipe->stages[index];
    sl_parameter_set_options options = {
        .device = stage->device,
        .seed = pipe->seed,
        .no_init = pipe->no_init,
        .no_gradients = pipe->inference,
        .precision = pipe->precision,
        .first_bucket_bytes = pipe->first_bucket_bytes,
        .bucket_bytes = pipe->bucket_bytes,
    };
    sl_parameter *parts[SLI_HEAD_PARAMETERS];
    int part_count = sli_stage_list_parts(stage, parts);
    return sli_parameter_set_create(stage->model, stage->first, stage->count,
                                    pipe->head_is_cut ? parts : NULL, part_count, &options,
                                    &stage->parameters);
}

/* What this rank can find out by itself. */
static sl_status plan_pipe(sl_pipe *pipe, const sl_pipe_options *options)
{
    SL_TRY(allocate_arrays(pipe));
    SL_TRY(sl_error_context(make_order(pipe, options), "sl_pipe_create: "));
    int *balance = calloc((size_t)pipe->stage_count, sizeof *balance);
    if (!balance)
        return sli_no_memory("sl_pipe_create", "a balance");
    sl_status status;
    SL_TRY_OR_FAIL(choose_balance(options, balance));
    SL_TRY_OR_FAIL(sl_error_context(set_up_ranks(pipe, options), "sl_pipe_create: "));
    set_up_stages(pipe, balance);
    SL_TRY_OR_FAIL(sli_pipe_check_slices(pipe));
    if (pipe->head_blocks > 0) {
        SL_TRY_OR_FAIL(sli_pipe_check_head(pipe));
        SL_TRY_OR_FAIL(sli_pipe_create_parts(pipe));
    }
    SL_TRY_OR_FAIL(sli_pipe_check_ties(pipe));
    status = sli_pipe_find_skips(pipe);

fail:
    free(balance);
    return status;
}

/* Joins the other ranks, where `status` is what this one has found out by itself. */
static sl_status join_group(sl_pipe *pipe, sl_group *group, sl_status status)
{
    SL_TRY(sli_group_check_host(group, "sl_pipe_create"));
    SL_TRY(sli_group_agree(group, status));
    int *ranks = malloc((size_t)pipe->stage_count * sizeof *ranks);
    if (!ranks)
        return sli_group_check(group, sli_no_memory("sl_pipe_create", "a list of stages"));
    for (int i = 0; i < pipe->stage_count; i++)
        ranks[i] = pipe->stages[i].group_rank;
    status = sli_pipe_group_create(group, ranks, pipe->stage_count, &pipe->failure, &pipe->group);
    free(ranks);
    SL_TRY(status);
    return sli_pipe_group_compare(pipe);
}

static sl_status build_pipe(sl_pipe *pipe)
{
    sl_status status = start_ranks(pipe);
    sli_failure_raise(&pipe->failure, SLI_FAILURE_OF_CALL, status);
    if (status == SL_OK)
        sli_pipe_call_stages(pipe, create_parameters, pipe);
    if (!sli_failure_precedes(&pipe->failure, INT_MAX - 1))
        sli_failure_raise(&pipe->failure, pipe->stage_count, sli_pipe_place_tied(pipe));
    if (!sli_failure_precedes(&pipe->failure, INT_MAX - 1))
        sli_failure_raise(&pipe->failure, pipe->stage_count, sli_pipe_place_head(pipe));
    return sli_pipe_end_run(pipe, false, NULL);
}

/* The table's for each accumulation step, where there is one and the options do not say. */
static sl_status count_micros(sl_pipe *pipe, const sl_pipe_options *options)
{
    int steps = options->accumulate ? options->accumulate : 1;
    pipe->chunks = options->chunks  ? options->chunks
                   : options->table ? sl_schedule_micros(options->table)
                                    : 1;
    pipe->slices = options->slices  ? options->slices
                   : options->table ? sl_schedule_slices(options->table)
                                    : 1;
    int all;
    if (__builtin_mul_overflow(pipe->chunks, steps, &pipe->batch_micros))
        return sl_error(SL_ERR_INVALID,
                        "sl_pipe_create: %d micro-batches times accumulate %d are too many",
                        pipe->chunks, steps);
    if (__builtin_mul_overflow(pipe->batch_micros, pipe->slices, &all))
        return sl_error(SL_ERR_INVALID,
                        "sl_pipe_create: %d micro-batches times slices %d are too many",
                        pipe->batch_micros, pipe->slices);
    pipe->table_micros = pipe->chunks * pipe->slices;
    return SL_OK;
}

static sl_status create_pipe(const sl_pipe_options *options, sl_pipe **out)
{
    SL_TRY(check_options(options));
    sl_pipe *pipe = *out = calloc(1, sizeof *pipe);
    if (!pipe)
        return sli_no_memory("sl_pipe_create", "a pipe");
    pipe->model = options->model;
    pipe->loss = options->loss;
    pipe->recompute = options->recompute;
    pipe->precision = options->precision;
    pipe->schedule = options->schedule;
    pipe->writer = options->writer;
    pipe->writer_context = options->writer_context;
    pipe->seed = options->seed;
    pipe->first_bucket_bytes = options->first_bucket_bytes;
    pipe->bucket_bytes = options->bucket_bytes;
    pipe->no_init = options->no_init;
    pipe->inference = options->inference;
    pipe->head_blocks = options->loss && !options->inference ? options->head_blocks : 0;
    pipe->stage_count = options->stages;
    pipe->rank_count = options->stages / (options->virtual_stages ? options->virtual_stages : 1);
    sli_failure_init(&pipe->failure);
    SL_TRY(count_micros(pipe, options));
    return plan_pipe(pipe, options);
}

sl_status sl_pipe_create(const sl_pipe_options *options, sl_pipe **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    sl_status status = create_pipe(options, out);
    if (options->group)
        status = join_group(*out, options->group, status);
    SL_TRY_OR_FAIL(status);
    SL_TRY_OR_FAIL(build_pipe(*out));
    return SL_OK;

fail:
    sl_pipe_destroy(out);
    return status;
}

/* ---- Destruction ------------------------------------------------------------------------ */

void sl_pipe_destroy(sl_pipe **pipe)
{
    if (!pipe || !*pipe)
        return;
    sl_pipe *dead = *pipe;
    for (int i = 0; dead->ranks && i < dead->rank_count; i++)
        sli_worker_destroy(&dead->ranks[i].worker);
    sli_pipe_group_destroy(&dead->group);
    for (int i = 0; i < dead->channel_count; i++)
        sli_channel_destroy(&dead->channels[i]);
    sli_pipe_destroy_tied(dead);
    for (int i = 0; dead->stages && i < dead->stage_count; i++) {
        sl_parameter_set_destroy(&dead->stages[i].parameters);
        free(dead->stages[i].records);
        free(dead->stages[i].skip_room);
    }
    sli_pipe_destroy_head(dead); /* sets have parts' parameters */
    for (int i = 0; i < dead->device_lock_count; i++)
        pthread_mutex_destroy(&dead->device_locks[i]);
    for (int kind = 0; kind < SLI_TABLE_KINDS; kind++)
        sli_tables_destroy(dead->tables[kind], dead->chunks);
    sl_schedule_destroy(&dead->order);
    sli_failure_destroy(&dead->failure);
    free(dead->stages);
    free(dead->backward);
    free(dead->ranks);
    free(dead->rank_stages);
    free(dead->skips);
    free(dead->channels);
    free(dead->device_locks);
    free(dead->micros);
    free(dead->sizes);
    free(dead->moments);
    free(dead->trace);
    free(dead->links);
    if (dead->tensors)
        sli_tensors_clear(dead->tensors);
    free(dead->tensors);
    free(dead);
    *pipe = NULL;
}
