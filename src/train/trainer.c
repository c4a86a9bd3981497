/* The training loop of one replica.
 *
 *   for each epoch
 *       for each block     zero_grad, pipe (forward and backward), norm, clip, update, report
 *       validate           on the whole split; the best parameters are copied and saved
 *   test                   with the best parameters
 *
 * Every replica runs it on its own rows of each batch. Replicas exchange gradients, losses and the
 * sums of evaluations; everything else follows from numbers that are the same on all of them. */
#include "train/run.h"

#include "core/clock.h"
#include "core/error.h"
#include "train/checkpoint/checkpoints.h"
#include "train/checkpoint/resume.h"
#include "train/checkpoint/save_directory.h"
#include "train/checkpoint/weights.h"
#include "train/evaluate.h"
#include "train/layout.h"
#include "train/loader.h"

#include <inttypes.h>
#include <math.h>

typedef struct run {
    const sli_shared *shared;
    const sl_train_options *options; /* shared->options */
    const sli_reports *reports;
    sli_replica replica;
    int64_t first_row; /* of this replica in each batch */
    double weight;     /* of this replica's mean loss in the mean over all rows */
    sli_loader loader;
    sli_update *update;
    sl_run_info info;
    sl_evaluating_info evaluating;
    sli_checkpoints *checkpoints;
    sli_last_step last_step;
    sli_position at;
    bool stopped; /* on request */
    bool saved;   /* options->save has the best parameters so far */
    double started;
} run;

/* ---- Setting up ------------------------------------------------------------------------- */

/* The first replica reads and writes weights. */
static bool is_first(const run *r)
{
    return r->info.replica == 0;
}

static bool saves_weights(const run *r)
{
    return r->options->save && is_first(r);
}

/* The loader of this replica's rows of every batch. */
static sl_status create_loader(run *r, sli_rows rows)
{
    sl_batches own;
    const sl_batches *all = &r->shared->batches;
    r->first_row = rows.first;
    r->weight = (double)(rows.count * r->info.replicas) / (double)all->columns;
    SL_TRY(sl_batches_columns(all, rows.first, rows.count, &own));
    return sli_loader_create(r->replica.pipe, &own, &r->loader);
}

static sl_status create_replica(run *r, sl_group *group, sl_device *const *devices,
                                const sl_checkpoint_reader *from)
{
    sl_train_options own = *r->options;
    sli_rows rows = sli_layout_rows(&own, r->info.replica);
    own.chunks = sli_layout_chunks(&own, rows.count);
    SL_TRY(sli_replica_create(&own, group, devices, is_first(r) && !from, &r->replica));
    if (from)
        SL_TRY(sli_resume_model(from, r->replica.pipe));
    if (saves_weights(r)) /* a path that cannot be written is found before training */
        SL_TRY(sli_weights_check_save(r->replica.pipe, own.save));
    SL_TRY(sli_replica_join(&r->replica));
    SL_TRY(create_loader(r, rows));
    return sli_update_create(r->replica.pipe, &own.optimizer, own.zero ? r->replica.ddp : NULL,
                             &r->update);
}

static sl_status create_checkpoints(run *r, const sl_checkpoint_reader *from)
{
    const sl_save_options *options = &r->options->checkpoints;
    r->at.best_loss = INFINITY;
    if (options->resume)
        SL_TRY(sli_resume_rest(from, &r->replica, r->update, r->shared->best, &r->at));
    SL_TRY(sli_checkpoints_create(&(sli_checkpoints_run){.shared = r->shared,
                                                         .reports = r->reports,
                                                         .replicas = &r->replica,
                                                         .update = r->update,
                                                         .best = r->shared->best,
                                                         .position = &r->at},
                                  &r->checkpoints));
    if (is_first(r) && options->directory)
        r->last_step = sli_last_step_open(options->directory);
    return SL_OK;
}

static sl_status set_up(run *r, sl_group *group, sl_device *const *devices,
                        const sl_checkpoint_reader *from)
{
    SL_TRY(create_replica(r, group, devices, from));
    r->info.pipe = r->replica.pipe;
    r->info.ddp = r->replica.ddp;
    r->info.memory = r->replica.memory;
    r->info.total_parameters = sl_module_parameter_elements(r->replica.model);
    return create_checkpoints(r, from);
}

static void clean_up(run *r)
{
    sli_last_step_close(&r->last_step);
    sli_checkpoints_destroy(&r->checkpoints);
    sli_update_destroy(&r->update);
    sli_loader_clear(&r->loader);
    sli_replica_clear(&r->replica);
}

/* ---- A step ----------------------------------------------------------------------------- */

static sl_status check_finite(const run *r, const char *what, double value,
                              const sl_step_info *step)
{
    if (isfinite(value) || r->options->allow_nan)
        return SL_OK;
    if (isnan(value))
        value = NAN; /* its sign says nothing */
    return sl_error(SL_ERR_NUMERIC,
                    "the %s is %g in epoch %" PRId64 ", batch %" PRId64 " (step %" PRId64
                    "): a lower learning rate or clipping may help; allow_nan lets the run go on",
                    what, value, step->epoch, step->batch, step->step);
}

/* A replica whose own loss is not finite ends the others, who wait for it in the mean. */
static sl_status average_loss(const run *r, sl_step_info *step)
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
        .tokens = r->shared->batches.columns * sl_batches_block_length(&r->loader.batches, block),
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
    SL_TRY(average_loss(r, &step));
    SL_TRY(sli_update_norm(r->update, &step.grad_norm));
    SL_TRY(check_norm(r, &step));
    SL_TRY(sli_update_apply(r->update, step.lr, step.grad_norm, r->options->clip));
    r->at.steps++;
    r->at.block++;
    sli_last_step_write(&r->last_step, r->at.steps);
    step.seconds = sli_clock_seconds() - start;
    return sli_report_step(r->reports, &step);
}

/* ---- Weights ---------------------------------------------------------------------------- */

/* Writes the parameters where this replica saves weights and has not saved these. */
static sl_status save_weights(run *r)
{
    const sl_save_options *listener = &r->options->checkpoints;
    if (!saves_weights(r) || r->saved)
        return SL_OK;
    if (listener->saving)
        listener->saving(listener->context, true);
    sl_status status = sl_weights_save(r->replica.pipe, &r->options->model,
                                       sl_corpus_vocab(r->shared->corpus), r->options->save);
    if (listener->saving)
        listener->saving(listener->context, false);
    r->saved = status == SL_OK;
    return status;
}

/* The step after which the saved parameters were made: the best, or the last where there is no
 * best. */
static int64_t saved_step(const run *r)
{
    return isfinite(r->at.best_loss) ? r->at.best_step : r->at.steps;
}

/* Weights that cannot be saved do not end the run: there may be room at its end. */
static sl_status save_best(run *r)
{
    sli_error_copy error;
    r->saved = false;
    if (sli_error_save(&error, save_weights(r)) == SL_OK)
        return SL_OK;
    return sli_report_checkpoint(r->reports, &(sl_checkpoint_event){.kind = SL_WEIGHTS_FAILED,
                                                                    .path = r->options->save,
                                                                    .step = r->at.best_step,
                                                                    .reason = error.text});
}

/* No replica ends before the first one has saved the weights. */
static sl_status wait_for_weights(const run *r)
{
    return r->options->save && r->replica.group ? sl_group_barrier(r->replica.group, NULL) : SL_OK;
}

/* ---- Evaluation ------------------------------------------------------------------------- */

static sl_status report_evaluating(void *context, int64_t batch, int64_t batches)
{
    run *r = context;
    r->evaluating.batch = batch;
    r->evaluating.batches = batches;
    return sli_report_evaluating(r->reports, &r->evaluating);
}

static sl_status check_stop(void *context, bool *stop)
{
    run *r = context;
    SL_TRY(sli_checkpoints_in_evaluation(r->checkpoints, &r->stopped));
    *stop = r->stopped;
    return SL_OK;
}

/* Evaluates a split in the epoch of *eval, which has no results where the run is stopped. */
static sl_status evaluate(run *r, sl_split split, sl_eval_info *eval)
{
    double start = sli_clock_seconds();
    sl_evaluation result;
    r->evaluating = (sl_evaluating_info){.split = split, .epoch = eval->epoch};
    SL_TRY(sli_evaluate(&r->replica, sl_corpus_tokens(r->shared->corpus, split),
                        &(sl_evaluate_options){.batch_size = r->options->eval_batch_size,
                                               .bptt = r->options->bptt,
                                               .max_batches = r->options->eval_max_batches,
                                               .progress = report_evaluating,
                                               .context = r},
                        check_stop, &result));
    eval->split = split;
    eval->loss = result.loss;
    eval->perplexity = result.perplexity;
    eval->tokens = result.tokens;
    eval->seconds = sli_clock_seconds() - start;
    return SL_OK;
}

static sl_status report_evaluated(run *r, const sl_eval_info *eval)
{
    SL_TRY(sli_replica_gather_memory(&r->replica));
    return sli_report_evaluated(r->reports, eval);
}

static sl_status run_validation(run *r, double epoch_start)
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

static sl_status run_test(run *r, sl_run_result *result)
{
    sl_eval_info eval = {.epoch = r->options->epochs};
    SL_TRY(sli_checkpoints_before_test(r->checkpoints));
    if (r->at.best_step != r->at.steps)
        SL_TRY(sli_best_restore(r->shared->best, r->replica.pipe));
    /* A resumed run has not saved the best of before, nor a run without a finite validation the
     * last ones. finish_run tries again after an error. */
    (void)save_weights(r);
    SL_TRY(evaluate(r, SL_SPLIT_TEST, &eval));
    if (r->stopped)
        return SL_OK;
    SL_TRY(report_evaluated(r, &eval));
    result->test_loss = eval.loss;
    result->test_perplexity = eval.perplexity;
    result->seconds = sli_clock_seconds() - r->started;
    result->best_possible_perplexity = r->options->best_possible_perplexity;
    return SL_OK;
}

/* ---- The loop --------------------------------------------------------------------------- */

/* Trains what is left of the epoch under way. */
static sl_status train_epoch(run *r)
{
    double start = sli_clock_seconds();
    while (r->at.block < r->info.batches_per_epoch && !r->stopped) {
        SL_TRY(train_block(r));
        SL_TRY(sli_checkpoints_after_step(r->checkpoints, &r->stopped));
    }
    return r->stopped ? SL_OK : run_validation(r, start);
}

/* Sets what is known at the end of every run. */
static void set_result(const run *r, sl_run_result *result)
{
    result->best_valid_loss = r->at.best_loss;
    result->steps = r->at.steps;
    result->stopped = r->stopped;
    result->saved = r->saved;
    result->saved_step = saved_step(r);
}

/* A run without checkpoints leaves its weights. */
static sl_status finish_stopped(run *r, sl_run_result *result)
{
    bool leaves_weights = !r->options->checkpoints.directory;
    if (leaves_weights && saves_weights(r) && !r->saved && saved_step(r) != r->at.steps)
        SL_TRY(sli_best_restore(r->shared->best, r->replica.pipe));
    if (leaves_weights)
        SL_TRY(save_weights(r));
    set_result(r, result);
    result->seconds = sli_clock_seconds() - r->started;
    return leaves_weights ? wait_for_weights(r) : SL_OK;
}

/* Weights that could not be saved are the error of every replica, after the results. */
static sl_status finish_run(run *r, sl_run_result *result)
{
    sli_error_copy unsaved;
    SL_TRY(sli_checkpoints_finish(r->checkpoints));
    sli_error_save(&unsaved, save_weights(r));
    set_result(r, result);
    SL_TRY(sli_report_finished(r->reports, &r->info, result));
    SL_TRY(sli_error_restore(&unsaved));
    return wait_for_weights(r);
}

static sl_status train_all(run *r, sl_run_result *result)
{
    *result = (sl_run_result){0};
    SL_TRY(sli_report_started(r->reports, &r->info));
    while (r->at.epoch < r->options->epochs && !r->stopped)
        SL_TRY(train_epoch(r));
    if (!r->stopped)
        SL_TRY(run_test(r, result));
    return r->stopped ? finish_stopped(r, result) : finish_run(r, result);
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
