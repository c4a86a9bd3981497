/* The shards of a step: each has its rows of the batch, and weighs as much in the loss as it has
 * terms. */
#include "core/clock.h"
#include "core/error.h"
#include "core/sum_tree.h"
#include "nn/module.h"
#include "train/loop/run.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

sl_status sli_run_check_finite(const sli_run *run, const char *name, double value,
                               const sl_step_info *step)
{
    if (isfinite(value) || run->options->allow_nan)
        return SL_OK;
    if (isnan(value))
        value = NAN; /* its sign says nothing */
    return sl_error(SL_ERR_NUMERIC,
                    "the %s is %g in epoch %" PRId64 ", batch %" PRId64 " (step %" PRId64
                    "): a lower learning rate or clipping may help; allow_nan lets the run go on",
                    name, value, step->epoch, step->batch, step->step);
}

static sl_train_rows rows_at(const sli_run *run, int64_t epoch, int64_t batch, int shard)
{
    const int64_t count = run->options->batch_size;
    return (sl_train_rows){.split = SL_SPLIT_TRAIN,
                           .epoch = epoch,
                           .batch = batch,
                           .batch_rows = run->rows,
                           .first = shard * count,
                           .count = count,
                           .shuffled = run->shuffled_rows,
                           .seed = run->options->seed};
}

sl_train_rows sli_run_rows_of_shard(const sli_run *run, int shard)
{
    return rows_at(run, run->position.epoch, run->position.batch, shard);
}

/* The weights of the shards, whose sum is their number: as many as terms, where the task counts
 * them. *targets are all, or as many as there are if it does not. */
static sl_status weigh_shards(const sli_run *run, double *weights, int64_t *targets)
{
    int shards = run->options->shards;
    int64_t terms[shards];
    *targets = 0;
    for (int shard = 0; shard < shards; shard++) {
        const sl_train_rows rows = sli_run_rows_of_shard(run, shard);
        weights[shard] = 1;
        terms[shard] = 0;
        if (run->task->count_terms)
            SL_TRY(run->task->count_terms(run->task->context, &rows, &terms[shard]));
        *targets += terms[shard];
    }
    for (int shard = 0; shard < shards && run->task->count_terms; shard++)
        weights[shard] = *targets > 0 ? (double)terms[shard] * shards / (double)*targets : 0;
    return SL_OK;
}

static sl_status count_flop_of_row(const sl_module *model, int64_t length, double *out)
{
    const sl_shape row = sl_shape_2d(1, length);
    return sli_module_count_step_flop(model, &row, out);
}

/* A document's operations are a sum of a multiple of its length and one of its square. */
static sl_status measure_rows(const sli_run *run, sl_step_info *step)
{
    const sl_module *model = run->replica.model;
    int micros = run->options->chunks * run->options->accumulate;
    double one, two, squares = 0;
    SL_TRY(count_flop_of_row(model, 1, &one));
    SL_TRY(count_flop_of_row(model, 2, &two));
    double square = two / 2 - one;
    for (int shard = 0; shard < run->options->shards; shard++) {
        const sl_train_rows rows = sli_run_rows_of_shard(run, shard);
        sli_rows_size size;
        SL_TRY(sli_rows_task_measure(&run->rows_of_ids, &rows, micros, &size));
        step->tokens += size.padded;
        step->padding += size.padded - size.tokens;
        squares += size.squares;
    }
    step->flops = (one - square) * (double)step->tokens + square * squares;
    return SL_OK;
}

sl_status sli_run_measure_step(const sli_run *run, sl_step_info *step)
{
    if (run->has_rows)
        return measure_rows(run, step);
    sl_shape shape = *sl_tensor_shape(run->input);
    shape.size[0] = run->rows;
    step->tokens = run->options->shards * sl_tensor_count(run->targets);
    return sli_module_count_step_flop(run->replica.model, &shape, &step->flops);
}

/* ---- Loading a shard -------------------------------------------------------------------- */

/* The shards that this rank trains in each step. */
typedef struct shard_range {
    int first, count;
} shard_range;

/* What is trained after a shard of the batch under way; false: nothing. */
static bool find_next(const sli_run *run, shard_range mine, int shard, sl_train_rows *next)
{
    const sli_position *position = &run->position;
    bool ends_step = shard + 1 == mine.first + mine.count;
    bool ends_epoch = ends_step && position->batch + 1 == run->batches_per_epoch;
    if (!ends_step)
        *next = sli_run_rows_of_shard(run, shard + 1);
    else if (!ends_epoch)
        *next = rows_at(run, position->epoch, position->batch + 1, mine.first);
    else
        *next = rows_at(run, position->epoch + 1, 0, mine.first);
    return !ends_epoch || position->epoch + 1 < run->options->epochs;
}

static sl_status load_block(void *context, const sl_train_rows *rows, sl_device *input_device,
                            sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    (void)rows;
    return sli_row_block_load(context, input_device, target_device, input, targets);
}

static sl_status load_shard(sli_run *run, shard_range mine, int shard)
{
    const sl_train_rows rows = sli_run_rows_of_shard(run, shard);
    sl_train_rows next;
    const sli_row_block *block;
    bool has_next = find_next(run, mine, shard, &next);
    sl_tensor_destroy(&run->input);
    sl_tensor_destroy(&run->targets);
    if (run->has_rows)
        SL_TRY(sli_rows_task_load_extra(&run->rows_of_ids, &rows, sli_replica_device(&run->replica),
                                        &run->extra));
    if (!run->ahead)
        return sli_replica_load(&run->replica, run->task, &rows, &run->input, &run->targets);
    SL_TRY(sli_read_ahead_take(run->ahead, &rows, has_next ? &next : NULL, &block));
    const sl_train_task gathered = {.context = (void *)block, .load_rows = load_block};
    return sli_replica_load(&run->replica, &gathered, &rows, &run->input, &run->targets);
}

/* ---- Training it ------------------------------------------------------------------------ */

/* Forward and backward of one of this replica's shards. The last one's averages the gradients of
 * all shards of all replicas. *loss is the shard's part of the shards' mean, times their number; a
 * shard without terms has no gradient, whatever its weight. */
static sl_status train_shard(const sli_run *run, int shard, bool first_shard, double weight,
                             double *loss)
{
    double mean;
    const sli_replica *replica = &run->replica;
    const sl_input documents = {SL_DOCUMENTS_INPUT, run->extra.documents, false};
    const sl_pipe_batch batch = {.input = run->input,
                                 .inputs = &documents,
                                 .input_count = run->extra.documents != NULL,
                                 .lengths = run->extra.lengths,
                                 .targets = run->targets,
                                 .step = (uint64_t)run->position.steps,
                                 .first_sample = shard * run->options->batch_size,
                                 .row_losses = run->sources.row_losses,
                                 .weight = weight,
                                 .same_weights = !first_shard};
    sl_pipe_zero_grad(replica->pipe);
    SL_TRY(replica->ddp ? sl_ddp_train(replica->ddp, &batch, &mean)
                        : sl_pipe_train(replica->pipe, &batch, &mean));
    *loss = weight > 0 ? weight * mean : 0;
    return sli_run_divide_losses(run, shard);
}

/* The mean over the terms of some shards; 0 where they have none. */
static double mean_of_shards(const double *losses, const double *weights, int shards)
{
    double weight = sli_sum_tree_add(weights, shards);
    return weight > 0 ? sli_sum_tree_add(losses, shards) * (1.0 / weight) : 0;
}

sl_status sli_run_train_shards(sli_run *run, sl_step_info *step)
{
    const sli_replica *replica = &run->replica;
    int shards = run->options->shards;
    shard_range mine = {0, 1};
    if (replica->ddp)
        sl_ddp_shards(replica->ddp, &mine.first, &mine.count);
    int first = mine.first, count = mine.count;
    double losses[shards], weights[shards];
    memset(losses, 0, sizeof losses);
    SL_TRY(weigh_shards(run, weights, &step->targets));
    for (int shard = first; shard < first + count; shard++) {
        double start = sli_clock_seconds();
        SL_TRY(load_shard(run, mine, shard));
        step->data_seconds += sli_clock_seconds() - start;
        SL_TRY(train_shard(run, shard, shard == first, weights[shard], &losses[shard]));
    }
    step->replica_loss = mean_of_shards(losses + first, weights + first, count);
    SL_TRY(sli_run_check_finite(run, "loss", step->replica_loss, step));
    if (replica->group)
        SL_TRY(sl_group_all_reduce(replica->group, losses, shards, SL_F64, SL_REDUCE_SUM, NULL));
    step->loss = mean_of_shards(losses, weights, shards);
    if (sli_sum_tree_add(weights + first, count) == 0)
        step->replica_loss = step->loss;
    return sli_run_sum_sources(run);
}
