/* The training loop.
 *
 *   for each epoch
 *       for each block     zero_grad, pipe (forward and backward), norm, clip, update, report
 *       validate           on the whole split; a real copy of the parameters if it was the best
 *   test                   with the best parameters
 *
 * Every replica runs it, on its own rows of each batch. They meet where gradients are
 * averaged, where losses are, and in evaluations; everything else follows from the same numbers on
 * each of them. */
#include "train/run.h"

#include "core/clock.h"
#include "core/error.h"
#include "train/checkpoint/checkpoints.h"
#include "train/checkpoint/last_step.h"
#include "train/checkpoint/resume.h"
#include "train/checkpoint/weights.h"
#include "train/evaluate.h"
#include "train/layout.h"
#include "train/loader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct run {
    const sli_shared *shared;
    const sl_train_options *options; /* the shared ones */
    const sli_reports *reports;
    sli_replica replica;
    sl_batches batches; /* this replica's rows */
    int64_t first_row;
    double weight; /* of its mean in the mean over all rows */
    sli_loader loader;
    sli_update *update;
    sl_run_info info;
    sli_checkpoints *checkpoints;
    sli_last_step last_step;
    sli_position at;
    bool stopped; /* by request */
    bool saved;   /* the best parameters so far are in options->save */
    double started;
} run;

/* ---- Setting up ------------------------------------------------------------------------- */

/* Whether this replica is the one that reads and writes weights. */
static bool is_first(const run *r)
{
    return r->info.replica == 0;
}

static bool saves_weights(const run *r)
{
    return r->options->save && is_first(r);
}

/* Finds out that the weights could not be written before hours have gone into them. */
static sl_status check_save(const run *r)
{
    if (!saves_weights(r))
        return SL_OK;
    return sli_weights_check_save(r->replica.pipe, r->options->save);
}

/* The replica's part of every batch. */
static sl_status take_rows(run *r, const sli_rows *rows)
{
    const sl_batches *all = &r->shared->batches;
    r->first_row = rows->first;
    r->weight = (double)(rows->count * r->info.replicas) / (double)all->columns;
    return sl_batches_columns(all, rows->first, rows->count, &r->batches);
}

static sl_status set_up(run *r, sl_group *group, sl_device *const *devices,
                        const sl_checkpoint_reader *from)
{
    sl_train_options own = *r->options;
    const sl_train_options *options = &own;
    sli_rows rows = sli_layout_rows(options, r->info.replica);
    own.chunks = sli_layout_chunks(options, rows.count);
    SL_TRY(sli_replica_create(options, group, devices, is_first(r) && !from, &r->replica));
    if (from)
        SL_TRY(sli_resume_model(from, r->replica.pipe));
    SL_TRY(check_save(r));
    SL_TRY(sli_replica_join(&r->replica));
    SL_TRY(take_rows(r, &rows));
    SL_TRY(sli_loader_create(r->replica.pipe, &r->batches, &r->loader));
    SL_TRY(sli_update_create(r->replica.pipe, &options->optimizer,
                             options->zero ? r->replica.ddp : NULL, &r->update));
    r->info.pipe = r->replica.pipe;
    r->info.ddp = r->replica.ddp;
    r->info.memory = r->replica.memory;
    r->info.total_parameters = sl_module_parameter_elements(r->replica.model);
    r->at.best_loss = INFINITY;
    if (options->checkpoints.resume)
        SL_TRY(sli_resume_rest(from, &r->replica, r->update, r->shared->best, &r->at));
    SL_TRY(sli_checkpoints_create(&(sli_checkpoints_run){.shared = r->shared,
                                                         .reports = r->reports,
                                                         .replicas = &r->replica,
                                                         .update = r->update,
                                                         .best = r->shared->best,
                                                         .position = &r->at},
                                  &r->checkpoints));
    if (is_first(r) && options->checkpoints.directory)
        r->last_step = sli_last_step_open(options->checkpoints.directory);
    return SL_OK;
}

static void clean_up(run *r)
{
    sli_last_step_close(&r->last_step);
    sli_checkpoints_destroy(&r->checkpoints);
    sli_update_destroy(&r->update);
    sli_loader_clear(&r->loader);
    sli_replica_clear(&r->replica);
}

/* ---- Training --------------------------------------------------------------------------- */

static sl_status check_finite(const run *r, const char *what, double value,
                              const sl_step_info *step)
{
    if (isfinite(value) || r->options->allow_nan)
        return SL_OK;
    if (isnan(value))
        value = NAN; /* its sign says nothing */
    return sl_error(SL_ERR_NUMERIC,
                    "the %s is %g in epoch %" PRId64 ", batch %" PRId64 " (step %" PRId64
                    "): a lower --lr or a --clip may help, --allow-nan goes on",
                    what, value, step->epoch, step->batch, step->step);
}

/* A replica whose own loss is no number ends the others, who wait for it in the mean. */
static sl_status check_losses(const run *r, sl_step_info *step)
{
    SL_TRY(check_finite(r, "loss", step->replica_loss, step));
    step->loss = step->replica_loss * r->weight;
    return sli_replica_mean(&r->replica, &step->loss);
}

static sl_status check_norm(const run *r, const sl_step_info *step)
{
    sl_status status = SL_OK;
    if (!isfinite(step->grad_norm) && !r->options->allow_nan &&
        sli_replica_reports_error(&r->replica, &status))
        status = check_finite(r, "gradient norm", step->grad_norm, step);
    return status;
}

static sl_status train_block(run *r)
{
    int64_t epoch = r->at.epoch, block = r->at.block;
    double start = sli_clock_seconds();
    sl_step_info step = {
        .epoch = epoch + 1,
        .batch = block + 1,
        .batches_per_epoch = r->info.batches_per_epoch,
        .step = r->at.steps + 1,
        .tokens = r->shared->batches.columns * sl_batches_block_length(&r->batches, block),
        .lr = sl_lr_at(&r->options->lr, r->at.steps, epoch),
    };
    SL_TRY(sli_loader_load(&r->loader, block));
    sl_pipe_zero_grad(r->replica.pipe);
    const sl_pipe_batch batch = {.input = r->loader.input,
                                 .targets = r->loader.targets,
                                 .step = (uint64_t)r->at.steps,
                                 .first_sample = r->first_row,
                                 .weight = r->weight};
    SL_TRY(sli_replica_train(&r->replica, &batch, &step.replica_loss));
    SL_TRY(check_losses(r, &step));
    SL_TRY(sli_update_norm(r->update, &step.grad_norm));
    SL_TRY(check_norm(r, &step));
    SL_TRY(sli_update_apply(r->update, step.lr, step.grad_norm, r->options->clip));
    r->at.steps++;
    r->at.block++;
    sli_last_step_note(&r->last_step, r->at.steps);
    step.seconds = sli_clock_seconds() - start;
    return sli_report_step(r->reports, &step);
}

static sl_status report_evaluated(run *r, const sl_eval_info *eval)
{
    SL_TRY(sli_replica_gather_memory(&r->replica));
    return sli_report_evaluated(r->reports, eval);
}

/* What the blocks of one evaluation have in common, for reports. */
typedef struct evaluation {
    const run *run;
    sl_evaluating_info info;
} evaluation;

static sl_status report_evaluating(void *context, int64_t batch, int64_t batches)
{
    evaluation *of = context;
    of->info.batch = batch;
    of->info.batches = batches;
    return sli_report_evaluating(of->run->reports, &of->info);
}

static sl_status ask_to_stop(void *context, bool *stop)
{
    run *r = context;
    SL_TRY(sli_checkpoints_in_evaluation(r->checkpoints, stop));
    r->stopped = *stop;
    return SL_OK;
}

/* There are no results where the run is stopped meanwhile. */
static sl_status evaluate(run *r, sl_split split, sl_eval_info *eval)
{
    double start = sli_clock_seconds();
    evaluation of = {.run = r, .info = {.split = split, .epoch = eval->epoch}};
    sl_evaluation result;
    SL_TRY(sli_evaluate(&r->replica, sl_corpus_tokens(r->shared->corpus, split),
                        &(sl_evaluate_options){.batch_size = r->options->eval_batch_size,
                                               .bptt = r->options->bptt,
                                               .max_batches = r->options->eval_max_batches,
                                               .progress = report_evaluating,
                                               .context = &of},
                        &(sli_evaluate_stop){ask_to_stop, r}, &result));
    eval->split = split;
    eval->loss = result.loss;
    eval->perplexity = result.perplexity;
    eval->tokens = result.tokens;
    eval->seconds = sli_clock_seconds() - start;
    return SL_OK;
}

static sl_status save_weights(const run *r)
{
    const sl_save_options *told = &r->options->checkpoints;
    if (told->saving)
        told->saving(told->context, true);
    sl_status status = sl_weights_save(r->replica.pipe, &r->options->model,
                                       sl_corpus_vocab(r->shared->corpus), r->options->save);
    if (told->saving)
        told->saving(told->context, false);
    return status;
}

/* After which the parameters were made that are saved: the best, or the last where there are none.
 */
static int64_t saved_step(const run *r)
{
    return isfinite(r->at.best_loss) ? r->at.best_step : r->at.steps;
}

/* Hours of training are not lost for want of room, which there may be at the end. */
static sl_status save_best(run *r)
{
    sli_error_copy error;
    if (!saves_weights(r))
        return SL_OK;
    r->saved = sli_error_save(&error, save_weights(r)) == SL_OK;
    if (r->saved)
        return SL_OK;
    return sli_report_checkpoint(r->reports, &(sl_checkpoint_event){.kind = SL_WEIGHTS_FAILED,
                                                                    .path = r->options->save,
                                                                    .step = r->at.best_step,
                                                                    .reason = error.text});
}

/* Weights that could not be saved are every replica's error, after the results. */
static sl_status finish(run *r, sl_run_result *result)
{
    sli_error_copy last = {0};
    if (saves_weights(r) && !r->saved)
        sli_error_save(&last, save_weights(r));
    result->saved = saves_weights(r) && last.status == SL_OK;
    result->saved_step = saved_step(r);
    SL_TRY(sli_report_finished(r->reports, &r->info, result));
    if (last.status != SL_OK)
        return sli_error_restore(&last);
    return r->options->save && r->replica.group ? sl_group_barrier(r->replica.group, NULL) : SL_OK;
}

static sl_status validate(run *r, double epoch_start)
{
    sl_eval_info eval = {.epoch = r->at.epoch + 1};
    SL_TRY(evaluate(r, SL_SPLIT_VALID, &eval));
    if (r->stopped)
        return SL_OK;
    eval.best = eval.loss < r->at.best_loss;
    if (eval.best) {
        r->at.best_loss = eval.loss;
        r->at.best_step = r->at.steps;
        if (eval.epoch < r->options->epochs) /* after the last epoch they are the current ones */
            SL_TRY(sli_best_keep(r->shared->best, r->replica.pipe));
        SL_TRY(save_best(r));
    }
    r->at.epoch++;
    r->at.block = 0;
    eval.epoch_seconds = sli_clock_seconds() - epoch_start;
    SL_TRY(report_evaluated(r, &eval));
    return sli_checkpoints_after_epoch(r->checkpoints, eval.best, &r->stopped);
}

/* What is left of the epoch under way. */
static sl_status train_epoch(run *r)
{
    double start = sli_clock_seconds();
    while (r->at.block < r->info.batches_per_epoch && !r->stopped) {
        SL_TRY(train_block(r));
        SL_TRY(sli_checkpoints_after_step(r->checkpoints, &r->stopped));
    }
    return r->stopped ? SL_OK : validate(r, start);
}

static sl_status test(run *r, sl_run_result *result)
{
    sl_eval_info eval = {.epoch = r->options->epochs};
    SL_TRY(sli_checkpoints_before_test(r->checkpoints));
    if (r->at.best_step != r->at.steps)
        SL_TRY(sli_best_restore(r->shared->best, r->replica.pipe));
    /* The best of before a resumed run, and where no validation gave a number the last ones, are
     * yet to be saved; what fails is tried again after the test. */
    if (saves_weights(r) && !r->saved)
        r->saved = save_weights(r) == SL_OK;
    SL_TRY(evaluate(r, SL_SPLIT_TEST, &eval));
    if (r->stopped)
        return SL_OK;
    SL_TRY(report_evaluated(r, &eval));
    *result = (sl_run_result){
        .test_loss = eval.loss,
        .test_perplexity = eval.perplexity,
        .best_valid_loss = r->at.best_loss,
        .seconds = sli_clock_seconds() - r->started,
        .steps = r->at.steps,
        .best_possible_perplexity = r->shared->best_possible_perplexity,
    };
    return SL_OK;
}

/* All that is left of a run without checkpoints are its weights. */
static sl_status end_stopped(run *r, sl_run_result *result)
{
    bool alone = !r->options->checkpoints.directory;
    if (alone && saves_weights(r) && !r->saved) {
        if (saved_step(r) != r->at.steps)
            SL_TRY(sli_best_restore(r->shared->best, r->replica.pipe));
        SL_TRY(save_weights(r));
        r->saved = true;
    }
    *result = (sl_run_result){.best_valid_loss = r->at.best_loss,
                              .seconds = sli_clock_seconds() - r->started,
                              .steps = r->at.steps,
                              .stopped = true,
                              .saved = r->saved,
                              .saved_step = saved_step(r)};
    return alone && r->options->save && r->replica.group ? sl_group_barrier(r->replica.group, NULL)
                                                         : SL_OK;
}

static sl_status train_all(run *r, sl_run_result *result)
{
    SL_TRY(sli_report_started(r->reports, &r->info));
    while (r->at.epoch < r->options->epochs && !r->stopped)
        SL_TRY(train_epoch(r));
    if (!r->stopped)
        SL_TRY(test(r, result));
    if (r->stopped)
        return end_stopped(r, result);
    SL_TRY(sli_checkpoints_finish(r->checkpoints));
    return finish(r, result);
}

sl_status sli_train_replica(const sli_shared *shared, sl_group *group, sl_device *const *devices,
                            const sl_checkpoint_reader *from, const sli_reports *reports,
                            sl_run_result *result)
{
    run r = {.shared = shared,
             .options = &shared->options,
             .reports = reports,
             .started = sli_clock_seconds(),
             .info = {.options = &shared->options,
                      .corpus = shared->corpus,
                      .replica = group ? sl_group_rank(group) : 0,
                      .replicas = group ? sl_group_size(group) : 1,
                      .batches_per_epoch = shared->batches_per_epoch,
                      .oversubscribed = shared->oversubscribed}};
    sl_status status = set_up(&r, group, devices, from);
    if (status == SL_OK)
        status = train_all(&r, result);
    if (status != SL_OK)
        sli_replica_abort(&r.replica, status);
    clean_up(&r);
    return status;
}
