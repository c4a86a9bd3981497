/* What a rank has of a replica: the model in a pipe, what it does together with the other ranks,
 * and the rows that it loads. */
#include "train/loop/replica.h"

#include "comm/group.h"
#include "comm/location.h"
#include "core/error.h"
#include "core/host.h"
#include "models/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Splits all ranks by their replicas and by their stages. */
static sl_status join_groups(const sl_plan *plan, sli_rank_plan part, sli_replica *replica)
{
    bool is_summed = plan->options.shards > 1;
    if (is_summed)
        replica->group = replica->all;
    if (plan->ranks_per_replica == 1)
        return SL_OK;
    SL_TRY(sl_group_split(replica->all, part.replica, &replica->pipe_group));
    return is_summed ? sl_group_split(replica->all, part.rank_in_replica, &replica->group) : SL_OK;
}

static sl_status create_pipe(const sl_plan *plan, const sl_train_task *task,
                             sl_device *const *devices, bool random_values, sli_replica *replica)
{
    const sl_train_options *options = &plan->options;
    int balance[SL_MAX_STAGES];
    for (int s = 0; s < plan->stages; s++)
        balance[s] = plan->stage[s].count;
    SL_TRY(task->create_model(task->context, &replica->model, &replica->loss));
    return sl_pipe_create(&(sl_pipe_options){.model = replica->model,
                                             .loss = replica->loss,
                                             .stages = plan->stages,
                                             .virtual_stages = options->virtual_stages,
                                             .placement = sl_schedule_placement(plan->table),
                                             .devices = devices,
                                             .balance = balance,
                                             .chunks = options->chunks,
                                             .accumulate = options->accumulate,
                                             .slices = options->slices,
                                             .recompute = options->recompute,
                                             .precision = options->precision,
                                             .table = options->table,
                                             .schedule = options->schedule,
                                             .seed = options->seed,
                                             .no_init = !random_values,
                                             .head_blocks = options->split_vocabulary
                                                                ? SL_VOCABULARY_BLOCKS
                                                                : 0,
                                             .group = replica->pipe_group},
                          &replica->pipe);
}

sl_status sli_replica_create(const sl_plan *plan, const sl_train_task *task, sl_group *all,
                             sl_device *const *devices, bool values, const sl_saved_model *init,
                             sli_replica *out)
{
    const sl_train_options *options = &plan->options;
    int rank = all ? sl_group_rank(all) : 0;
    sli_rank_plan part = sli_plan_rank(plan, rank);
    values = values && part.replica == 0;
    init = values ? init : NULL;
    *out = (sli_replica){.all = all,
                         .index = part.replica,
                         .count = options->replicas,
                         .rank = rank,
                         .plan = plan,
                         .is_silent = part.rank_in_replica > 0};
    SL_TRY(join_groups(plan, part, out));
    const sl_model_options *saved = init ? sl_saved_model_options(init) : NULL;
    if (saved && !options->task)
        SL_TRY(sl_error_context(sli_config_compare(saved, &options->model), "%s: ", options->init));
    SL_TRY(create_pipe(plan, task, devices, values && !init, out));
    if (init)
        SL_TRY(sl_saved_model_load(init, out->pipe, NULL, NULL));
    size_t ranks = (size_t)out->count * (size_t)sl_pipe_ranks(out->pipe);
    out->rank_stats = calloc(2 * ranks, sizeof *out->rank_stats);
    if (!out->rank_stats)
        return sli_no_memory(NULL, "the memory use of %d replicas", out->count);
    out->gathered = out->rank_stats + ranks;
    return SL_OK;
}

sl_status sli_replica_join(sli_replica *replica, const sl_train_options *options)
{
    if (!replica->group)
        return SL_OK;
    /* The model's buffers never change. */
    return sl_ddp_create(&(sl_ddp_options){.group = replica->group,
                                           .pipe = replica->pipe,
                                           .no_buffer_broadcast = true,
                                           .shards = options->shards,
                                           .comm_precision = options->comm_precision,
                                           .nccl = options->nccl},
                         &replica->ddp);
}

void sli_replica_clear(sli_replica *replica)
{
    sl_ddp_destroy(&replica->ddp);
    sl_pipe_destroy(&replica->pipe);
    sl_loss_destroy(&replica->loss);
    sl_module_destroy(&replica->model);
    if (replica->group != replica->all)
        sl_group_destroy(&replica->group);
    sl_group_destroy(&replica->pipe_group);
    free(replica->rank_stats);
    replica->rank_stats = NULL;
}

static sl_rank_stats *entries_of(const sli_replica *replica, int rank)
{
    sli_rank_plan part = sli_plan_rank(replica->plan, rank);
    return replica->rank_stats + part.replica * sl_pipe_ranks(replica->pipe) + part.first;
}

/* Adds to an error about a rank where that rank is, once `rank_stats` is gathered. */
static sl_status add_rank_location(const sli_replica *replica, sl_status status)
{
    int stage_ranks[SL_MAX_STAGES];
    char location[SLI_LOCATION_BYTES];
    int rank = replica->all && replica->rank_stats ? sli_group_error_rank(replica->all) : -1;
    if (rank < 0)
        return status;
    const sl_rank_stats *of_rank = entries_of(replica, rank),
                        *of_replica = of_rank - sli_plan_rank(replica->plan, rank).first;
    if (!*of_rank->host)
        return status;
    int stages = sl_pipe_stages(replica->pipe);
    for (int s = 0; s < stages; s++)
        stage_ranks[s] = of_replica[sl_pipe_rank(replica->pipe, s)].rank;
    sli_rank_location_text(replica->all, rank, of_rank->host, stage_ranks, stages, location);
    return sl_error(status, "%s (%s)", sl_error_text(), location);
}

sl_status sli_replica_abort(const sli_replica *replica, sl_status error)
{
    error = add_rank_location(replica, error);
    sl_group *groups[] = {replica->all, replica->group, replica->pipe_group};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) /* `all` first: its error names this
                                                                   rank as the cause */
        (void)sli_group_check(groups[i], error);
    if (replica->pipe) {
        sli_error_copy cause; /* the pipe may have broken before, by another one */
        sli_error_save(&cause, error);
        (void)sl_pipe_abort(replica->pipe, error);
        (void)sli_error_restore(&cause);
    }
    for (int s = 0; replica->ddp && s < sl_pipe_stages(replica->pipe); s++)
        (void)sli_group_check(sl_ddp_group(replica->ddp, s), error);
    return error;
}

static void describe_device(const sli_replica *replica, const sl_device *device, int stage,
                            sl_rank_stats *out)
{
    out->rank = replica->rank;
    out->stage = stage;
    out->threads = sl_device_thread_count(device);
    sli_host_name(out->host);
    snprintf(out->device, sizeof out->device, "%s", sl_device_name(device));
    snprintf(out->isa, sizeof out->isa, "%s", sl_device_isa(device));
    sl_device_memory(device, &out->stats);
}

sl_status sli_replica_gather_rank_stats(const sli_replica *replica)
{
    _Static_assert(sizeof(sl_rank_stats) % sizeof(int64_t) == 0, "records are words");
    const sl_pipe *pipe = replica->pipe;
    int count = sli_plan_rank(replica->plan, replica->rank).count;
    sl_rank_stats *of_replica = replica->rank_stats + replica->index * sl_pipe_ranks(pipe);
    for (int s = sl_pipe_stages(pipe) - 1; s >= 0; s--) { /* a rank's lowest comes last */
        const sl_device *device = sl_pipe_device(pipe, s);
        if (device)
            describe_device(replica, device, s, &of_replica[sl_pipe_rank(pipe, s)]);
    }
    if (!replica->all)
        return SL_OK;
    SL_TRY(sl_group_all_gather(replica->all, entries_of(replica, replica->rank), replica->gathered,
                               count * (int64_t)(sizeof *of_replica / sizeof(int64_t)), SL_I64,
                               NULL));
    for (int r = 0; r < sl_group_size(replica->all); r++)
        memcpy(entries_of(replica, r), replica->gathered + r * count,
               (size_t)count * sizeof *of_replica);
    return SL_OK;
}

void sli_replica_update_memory(const sli_replica *replica)
{
    const sl_pipe *pipe = replica->pipe;
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        int entry = replica->index * sl_pipe_ranks(pipe) + sl_pipe_rank(pipe, s);
        if (sl_pipe_device(pipe, s))
            sl_device_memory(sl_pipe_device(pipe, s), &replica->rank_stats[entry].stats);
    }
}

void sli_replica_add_checkpoint_time(const sli_replica *replica, double seconds)
{
    int ranks = sl_pipe_ranks(replica->pipe);
    sl_rank_stats *of_replica = &replica->rank_stats[replica->index * ranks];
    for (int r = 0; r < ranks; r++)
        if (of_replica[r].rank == replica->rank)
            of_replica[r].seconds[SL_TIME_CHECKPOINT] += seconds;
}

/* ---- Rows of a batch ---------------------------------------------------------------------- */

int64_t sl_train_sample(const sl_train_rows *rows, int64_t row)
{
    int64_t place = rows->batch * rows->batch_rows + rows->first + row;
    return rows->shuffled ? sl_shuffled(place, rows->shuffled, rows->seed, rows->epoch) : place;
}

static sl_status check_rows(const sl_tensor *tensor, const char *which, int64_t rows)
{
    const sl_shape *shape = tensor ? sl_tensor_shape(tensor) : NULL;
    if (shape && shape->dims > 0 && shape->size[0] == rows)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "the task's load_rows was asked for %" PRId64 " rows, and its %s has %" PRId64,
                    rows, which, shape && shape->dims > 0 ? shape->size[0] : 0);
}

sl_status sli_task_load(const sl_train_task *task, const sl_train_rows *rows,
                        sl_device *input_device, sl_device *target_device, sl_tensor **input,
                        sl_tensor **targets)
{
    *input = *targets = NULL;
    SL_TRY(task->load_rows(task->context, rows, input_device, target_device, input, targets));
    SL_TRY(check_rows(*input, "input", rows->count));
    return check_rows(*targets, "targets", rows->count);
}

sl_device *sli_replica_device(const sli_replica *replica)
{
    sl_device *device = NULL;
    for (int s = 0; s < sl_pipe_stages(replica->pipe) && !device; s++)
        device = sl_pipe_device(replica->pipe, s);
    return device;
}

bool sli_replica_needs_rows(const sli_replica *replica)
{
    return (!replica->is_silent && sli_replica_device(replica)) ||
           sl_pipe_device(replica->pipe, 0) ||
           sl_pipe_device(replica->pipe, sl_pipe_stages(replica->pipe) - 1);
}

/* Where a first rank has neither stage, its first one's device does: it counts tokens. */
sl_status sli_replica_load(const sli_replica *replica, const sl_train_task *task,
                           const sl_train_rows *rows, sl_tensor **input, sl_tensor **targets)
{
    *input = *targets = NULL;
    if (!sli_replica_needs_rows(replica))
        return SL_OK;
    sl_device *first = sl_pipe_device(replica->pipe, 0);
    sl_device *last = sl_pipe_device(replica->pipe, sl_pipe_stages(replica->pipe) - 1);
    sl_device *any = first ? first : last ? last : sli_replica_device(replica);
    return sli_task_load(task, rows, first ? first : any, last ? last : any, input, targets);
}
