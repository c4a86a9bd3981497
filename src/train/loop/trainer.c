/* The training loop of one rank.
 *
 *   for each epoch
 *       for each batch     load, zero_grad, pipe (forward and backward), norm, clip, update, report
 *       validate           on the whole split; the best parameters are copied and saved
 *   test                   with the best parameters
 *
 * The model, the loss and the batches are those of a task (sl_train_task); a task may have no data
 * for validation or test.
 *
 * Every rank runs it, on its replica's shards of each batch. Replicas exchange gradients, losses
 * and the sums of evaluations, and the ranks of a replica what their pipe does; everything else
 * follows from numbers that are the same on all of them. */
#include "core/clock.h"
#include "core/error.h"
#include "core/usable_memory.h"
#include "nn/module.h"
#include "sluice/app/inference.h"
#include "text/corpus.h"
#include "train/checkpoint/checkpoints.h"
#include "train/loop/evaluate.h"
#include "train/loop/rank_times.h"
#include "train/loop/sample.h"
#include "train/plan/profile.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Reporting ---------------------------------------------------------------------------- */

sl_status sli_report_checkpoint(const sli_run *run, const sl_checkpoint_event *event)
{
    SLI_CALL_REPORTERS(run, checkpoint, event)
    return SL_OK;
}

/* ---- Setting up ------------------------------------------------------------------------- */

static bool is_first(const sli_run *run)
{
    return run->replica.rank == 0;
}

/* The first replica reads and writes weights. */
static bool saves_model(const sli_run *run)
{
    return run->options->save && run->replica.index == 0;
}

static sl_status report_left_out(void *context, const char *tensor, const char *reason)
{
    const sli_run *run = context;
    return sli_report_checkpoint(run, &(sl_checkpoint_event){.kind = SL_WEIGHTS_LEFT_OUT,
                                                             .path = run->options->init,
                                                             .tensor = tensor,
                                                             .reason = reason});
}

/* The weights that the run begins with, or those of its checkpoint, of which adapters have their
 * base from where the run began. */
static sl_status load_weights(sli_run *run)
{
    const sl_train_options *options = run->options;
    const sli_replica *replica = &run->replica;
    bool resumes = run->found.resumes, adapts = sli_run_has_adapters(run);
    bool is_first_replica = replica->index == 0;
    if ((!resumes || adapts) && is_first_replica && options->init && options->partial)
        SL_TRY(sl_saved_model_load(run->init, replica->pipe, report_left_out, run));
    if (!resumes && is_first_replica && options->adapter)
        SL_TRY(sl_adapter_load(options->adapter, replica->pipe));
    if (adapts && is_first_replica)
        SL_TRY(sli_base_checksum(replica->pipe, run->base));
    return resumes ? sli_resume_model(run) : SL_OK;
}

/* This rank's model and optimizer. */
static sl_status create_replica(sli_run *run, sl_group *all, sl_device *const *devices)
{
    const sl_train_options *options = run->options;
    bool begins = !run->found.resumes || sli_run_has_adapters(run);
    sli_replica *replica = &run->replica;
    SL_TRY(sli_replica_create(run->plan, run->task, all, devices, begins,
                              options->partial ? NULL : run->init, replica));
    SL_TRY(load_weights(run));
    if (saves_model(run)) /* a path that cannot be written is found before training */
        SL_TRY(sli_model_check_save(replica->pipe, sli_run_model(run), options->save_type,
                                    options->save));
    if (options->save && is_first(run)) /* as long as this run lasts, no other one writes it */
        SL_TRY(sli_claim_create(options->save, &run->claim));
    SL_TRY(sli_replica_join(replica, options));
    return sl_pipe_optimizer_create(
        &(sl_pipe_optimizer_options){.pipe = replica->pipe,
                                     .optimizer = options->optimizer,
                                     .zero = options->zero ? replica->ddp : NULL,
                                     .error_if_nonfinite = !options->allow_nan},
        &run->optimizer);
}

/* With the code that is loaded. */
static int64_t process_bytes(const sl_plan *plan)
{
    int processes = plan->processes ? plan->ranks_here : 1;
    return plan->host.process_bytes / processes + (int64_t)sli_resident_files();
}

/* What reporters are told when the run begins. */
static void describe_run(sli_run *run)
{
    const sl_pipe *pipe = run->replica.pipe;
    run->info = (sl_run_info){
        .options = run->options,
        .option_rows = {sl_plan_option_rows, sl_train_option_rows},
        .ntokens = run->corpus || run->has_rows ? run->options->model.ntokens : 0,
        .replica = run->replica.index,
        .replicas = run->replica.count,
        .processes = run->processes ? sl_group_size(run->processes) : 1,
        .process_bytes = process_bytes(run->plan),
        .total_parameters = sl_module_parameter_elements(run->replica.model),
        .trained_parameters = sli_module_elements(run->replica.model, SL_PARAMETER_TRAINED),
        .batches_per_epoch = run->batches_per_epoch,
        .peak_flops_per_s = run->peak_flops_per_s,
        .planned_step_seconds = run->options->planned_step_seconds,
        .oversubscribed = run->devices.oversubscribed,
        .profiled_seconds = run->plan->profiled_seconds,
        .one_stage = run->plan->one_stage,
        .stages = run->stages,
        .stage_count = sl_pipe_stages(pipe),
        .ranks = run->replica.rank_stats,
        .rank_count = run->replica.count * sl_pipe_ranks(pipe),
        .ddp_log = run->replica.ddp ? sl_ddp_get_log(run->replica.ddp) : NULL,
        .pipe = pipe,
    };
    sli_run_describe_texts(run);
    for (int s = 0; s < run->plan->stages; s++) {
        const sl_stage_plan *stage = &run->plan->stage[s];
        int device = run->replica.index * sl_pipe_ranks(pipe) + stage->rank;
        run->stages[s] =
            (sl_stage_info){.first = stage->first, .count = stage->count, .rank = stage->rank};
        snprintf(run->stages[s].device, sizeof run->stages->device, "%s",
                 run->replica.rank_stats[device].device);
    }
}

/* Of all ranks, which measure at the same time: those of one host may share its cores. */
static sl_status measure_peak(sli_run *run, sl_group *all, sl_device *const *devices)
{
    sli_rank_plan part = sli_plan_rank(run->plan, all ? sl_group_rank(all) : 0);
    double *peak = &run->peak_flops_per_s;
    if (!run->options->measure_peak)
        return SL_OK;
    if (all)
        SL_TRY(sl_group_barrier(all, NULL));
    SL_TRY(sli_measure_peak(devices + part.first, part.count, run->options->precision, peak));
    return all ? sl_group_all_reduce(all, peak, 1, SL_F64, SL_REDUCE_SUM, NULL) : SL_OK;
}

/* Once the directory of checkpoints is known to be this run's. */
static sl_status keep_tokens(const sli_run *run)
{
    char *directory;
    sl_status status = SL_OK;
    SL_TRY(sli_run_kept_tokens(run->options, &directory));
    if (directory && is_first(run) && run->corpus) {
        SL_TRY_OR_FAIL(sli_corpus_keep(run->corpus, directory));
        status = sli_kept_rows_remove_others(directory, NULL, 0);
    } else if (directory && is_first(run) && run->has_rows) {
        status = sli_rows_task_keep(&run->rows_of_ids, directory);
    }
fail:
    free(directory);
    return status;
}

static sl_status set_up(sli_run *run, sl_group *all, sl_device *const *devices)
{
    const char *directory = run->options->checkpoints.directory;
    run->replica.all = all; /* for an error before there is a replica */
    SL_TRY(sli_resume_report(run));
    SL_TRY(measure_peak(run, all, devices));
    SL_TRY(create_replica(run, all, devices));
    SL_TRY(sli_replica_gather_rank_stats(&run->replica));
    SL_TRY(sli_run_open_sources(run));
    if (run->has_rows && sli_replica_needs_rows(&run->replica))
        SL_TRY(sli_read_ahead_create(&run->rows_of_ids, &run->ahead));
    describe_run(run);
    run->position.best_loss = INFINITY;
    SL_TRY(sli_resume_rest(run));
    SL_TRY(sli_sampler_create(run, &run->sampler));
    SL_TRY(sli_checkpoints_create(run, &run->checkpoints));
    SL_TRY(keep_tokens(run));
    if (is_first(run) && directory)
        run->last_step = sli_last_step_open(directory);
    return SL_OK;
}

static void clean_up(sli_run *run)
{
    if (run->last_step >= 0)
        close(run->last_step);
    sl_utilization_clear(&run->utilization);
    sli_checkpoints_destroy(&run->checkpoints);
    sli_sampler_destroy(&run->sampler);
    sli_claim_destroy(&run->claim);
    sl_pipe_optimizer_destroy(&run->optimizer);
    sl_tensor_destroy(&run->input);
    sl_tensor_destroy(&run->targets);
    sli_rows_extra_clear(&run->extra);
    sli_run_close_sources(run);
    sli_read_ahead_destroy(&run->ahead);
    sli_replica_clear(&run->replica);
}

double sli_run_seconds(const sli_run *run)
{
    return run->position.seconds + sli_clock_seconds() - run->started;
}

/* ---- A step ----------------------------------------------------------------------------- */

/* All ranks find the same norm. The first one reports it; the others wait for that, and have its
 * error. */
static sl_status report_norm_or_wait(const sli_run *run, const sl_step_info *step)
{
    if (isfinite(step->grad_norm) || run->options->allow_nan)
        return SL_OK;
    return is_first(run) ? sli_run_check_finite(run, "gradient norm", step->grad_norm, step)
                         : sl_group_barrier(run->replica.all, NULL);
}

static sl_status wait_for_devices(const sl_pipe *pipe)
{
    for (int s = 0; s < sl_pipe_stages(pipe); s++)
        if (sl_pipe_device(pipe, s))
            SL_TRY(sl_device_synchronize(sl_pipe_device(pipe, s)));
    return SL_OK;
}

static sl_status update_parameters(sli_run *run, sl_step_info *step)
{
    double before = sli_clock_seconds();
    sl_status status =
        sl_pipe_optimizer_step(run->optimizer, step->lr, run->options->clip, &step->grad_norm);
    SL_TRY(report_norm_or_wait(run, step));
    SL_TRY(status);
    SL_TRY(wait_for_devices(run->replica.pipe)); /* for the optimizer's and the step's time */
    step->optimizer_seconds = sli_clock_seconds() - before;
    return SL_OK;
}

static sl_status train_batch(sli_run *run)
{
    int ranks = sl_pipe_ranks(run->replica.pipe);
    double start = sli_clock_seconds();
    sl_step_info step = {
        .epoch = run->position.epoch + 1,
        .batch = run->position.batch + 1,
        .batches_per_epoch = run->batches_per_epoch,
        .sources = run->sources.steps,
        .source_count = run->sources.count,
        .step = run->position.steps + 1,
        .lr = sl_lr_at(&run->options->lr, run->position.steps, run->position.epoch),
    };
    SL_TRY(sli_run_train_shards(run, &step));
    if (!run->replica.is_silent)
        SL_TRY(sli_run_measure_step(run, &step));
    if (run->replica.ddp)
        step.reduce_seconds = sl_ddp_get_log(run->replica.ddp)->wait_seconds;
    if (!run->task->count_terms)
        step.targets = step.tokens;
    if (!run->task->count_terms || step.targets > 0)
        SL_TRY(update_parameters(run, &step));
    else
        step.loss = NAN;
    step.timeline_count = sl_pipe_timeline(run->replica.pipe, &step.timeline);
    sl_pipe_step_times(run->replica.pipe, &step.timeline_seconds, &step.timeline_busy_seconds);
    run->position.steps++;
    run->position.batch++;
    sli_last_step_write(run->last_step, run->position.steps, &run->identity);
    sli_replica_update_memory(&run->replica);
    step.seconds = sli_clock_seconds() - start;
    step.mfu = run->options->measure_peak ? step.flops / step.seconds / run->peak_flops_per_s : NAN;
    sli_rank_times_add(run->stages, &step, &run->replica.rank_stats[run->replica.index * ranks],
                       ranks);
    SLI_CALL_REPORTERS(run, step, &step)
    return sli_run_report_pipeline(run);
}

/* ---- Weights ---------------------------------------------------------------------------- */

/* Writes the parameters where this replica saves weights and has not saved these: every rank of it
 * calls this, and all get the same status. */
static sl_status save_model(sli_run *run)
{
    const sl_save_options *options = &run->options->checkpoints;
    const sl_model_saving saving = {run->options->save_type, options->shard_bytes,
                                    sli_run_generation(run)};
    if (!saves_model(run) || run->saved)
        return SL_OK;
    if (options->saving)
        options->saving(options->context, true);
    sl_status status = sl_model_save(run->replica.pipe, sli_run_model(run), sli_run_vocab(run),
                                     &saving, run->options->save);
    if (options->saving)
        options->saving(options->context, false);
    run->saved = status == SL_OK;
    return status;
}

/* Weights that cannot be saved do not end the run: there may be room at its end. */
static sl_status save_best(sli_run *run)
{
    sli_error_copy error;
    run->saved = false;
    if (sli_error_save(&error, save_model(run)) == SL_OK)
        return SL_OK;
    return sli_report_checkpoint(run, &(sl_checkpoint_event){.kind = SL_WEIGHTS_FAILED,
                                                             .path = run->options->save,
                                                             .step = run->position.best_step,
                                                             .reason = error.text});
}

/* ---- Evaluation ------------------------------------------------------------------------- */

static sl_status report_evaluating(void *context, int64_t batch, int64_t batches)
{
    sli_run *run = context;
    run->evaluating.batch = batch;
    run->evaluating.batches = batches;
    SLI_CALL_REPORTERS(run, evaluating, &run->evaluating)
    return SL_OK;
}

static sl_status check_stop(void *context, bool *stop)
{
    sli_run *run = context;
    SL_TRY(sli_checkpoints_in_evaluation(run->checkpoints, &run->stopped));
    *stop = run->stopped;
    return SL_OK;
}

static sl_status evaluate_range(sli_run *run, sli_batch_range range, sl_evaluation *out)
{
    return sli_evaluate(&run->replica, run->task, run->has_rows ? &run->rows_of_ids : NULL, range,
                        &(sl_evaluate_options){.batch_size = run->options->eval_batch_size,
                                               .max_batches = run->options->eval_max_batches,
                                               .progress = report_evaluating,
                                               .context = run},
                        check_stop, out);
}

/* The mean of the sources that have this split, by their shares of the training. */
static sl_status evaluate_sources(sli_run *run, sl_split split, sl_evaluation *out)
{
    const sli_rows_task *task = &run->rows_of_ids;
    double loss = 0, shares = 0;
    int64_t tokens = 0;
    for (int i = 0; i < run->sources.count && !run->stopped; i++) {
        sli_batch_range range = {.split = split};
        sli_rows_task_batches(task, split, i, run->options->eval_batch_size, &range.first,
                              &range.count);
        run->sources.losses[i] = NAN;
        if (range.count == 0)
            continue;
        SL_TRY(evaluate_range(run, range, out));
        run->sources.losses[i] = out->loss;
        loss += task->mixture.shares[i] * out->loss;
        shares += task->mixture.shares[i];
        tokens += out->tokens;
    }
    *out = (sl_evaluation){loss / shares, exp(loss / shares), tokens};
    return SL_OK;
}

/* Evaluates a split in the epoch of *eval, which has no results where the run is stopped. */
static sl_status evaluate_split(sli_run *run, sl_split split, sl_eval_info *eval)
{
    double start = sli_clock_seconds();
    sl_evaluation result;
    run->evaluating = (sl_evaluating_info){.split = sl_split_name(split), .epoch = eval->epoch};
    SL_TRY(run->sources.count > 0
               ? evaluate_sources(run, split, &result)
               : evaluate_range(run, (sli_batch_range){split, 0, run->batches[split]}, &result));
    eval->split = sl_split_name(split);
    eval->step = run->position.steps;
    eval->loss = result.loss;
    eval->source_losses = run->sources.losses;
    eval->source_count = run->sources.count;
    eval->perplexity = result.perplexity;
    eval->tokens = result.tokens;
    eval->seconds = sli_clock_seconds() - start;
    return SL_OK;
}

static sl_status gather_rank_stats(sli_run *run)
{
    SL_TRY(sli_replica_gather_rank_stats(&run->replica));
    run->info.slowest = sli_rank_times_find_slowest(run->replica.rank_stats, run->info.rank_count);
    return SL_OK;
}

sl_status sli_run_refresh(sli_run *run)
{
    SL_TRY(gather_rank_stats(run));
    SLI_CALL_REPORTERS(run, refreshed, &run->info)
    return SL_OK;
}

static sl_status report_evaluated(sli_run *run, const sl_eval_info *eval)
{
    SL_TRY(gather_rank_stats(run));
    SLI_CALL_REPORTERS(run, evaluated, eval)
    return SL_OK;
}

/* Validates, and keeps parameters that are the best so far. Without data for it none are. */
static sl_status validate(sli_run *run, sl_eval_info *eval)
{
    if (run->batches[SL_SPLIT_VALID] == 0)
        return SL_OK;
    SL_TRY(evaluate_split(run, SL_SPLIT_VALID, eval));
    eval->best = !run->stopped && eval->loss < run->position.best_loss;
    if (!eval->best)
        return SL_OK;
    run->position.best_loss = eval->loss;
    run->position.best_step = run->position.steps;
    bool is_last = eval->ends_epoch && eval->epoch == run->options->epochs;
    if (!is_last) /* after the last epoch they are the current ones */
        SL_TRY(sli_best_keep(run->best, &run->replica));
    return save_best(run);
}

static sl_status validate_epoch(sli_run *run, double epoch_start)
{
    sl_eval_info eval = {.epoch = run->position.epoch + 1, .ends_epoch = true};
    SL_TRY(validate(run, &eval));
    if (run->stopped)
        return SL_OK;
    run->position.epoch++;
    run->position.batch = 0;
    eval.epoch_seconds = sli_clock_seconds() - epoch_start;
    if (run->batches[SL_SPLIT_VALID] > 0)
        SL_TRY(report_evaluated(run, &eval));
    return sli_checkpoints_after_validation(run->checkpoints, &eval, &run->stopped);
}

/* Every eval_every steps within an epoch, before the next step. No state is saved between its end
 * and that of the next step, so a run that resumes before the next step has it to do. */
static sl_status validate_within_epoch(sli_run *run, double epoch_start)
{
    int64_t every = run->options->eval_every;
    sl_eval_info eval = {.epoch = run->position.epoch + 1};
    if (every == 0 || run->position.batch == 0 || run->position.steps % every != 0 ||
        run->batches[SL_SPLIT_VALID] == 0)
        return SL_OK;
    SL_TRY(validate(run, &eval));
    if (run->stopped)
        return SL_OK;
    eval.epoch_seconds = sli_clock_seconds() - epoch_start;
    SL_TRY(report_evaluated(run, &eval));
    return sli_checkpoints_after_validation(run->checkpoints, &eval, &run->stopped);
}

static sl_status run_test(sli_run *run, sl_run_result *result)
{
    sl_eval_info eval = {.epoch = run->options->epochs};
    bool has_data = run->batches[SL_SPLIT_TEST] > 0;
    SL_TRY(sli_checkpoints_before_test(run->checkpoints));
    if (run->position.best_step != run->position.steps)
        SL_TRY(sli_best_restore(run->best, run->replica.pipe));
    /* A resumed run has not saved the best of before, nor a run without a finite validation the
     * last ones. finish_run tries again after an error. */
    (void)save_model(run);
    if (has_data)
        SL_TRY(evaluate_split(run, SL_SPLIT_TEST, &eval));
    if (run->stopped)
        return SL_OK;
    if (has_data)
        SL_TRY(report_evaluated(run, &eval));
    result->test_loss = has_data ? eval.loss : NAN;
    result->test_perplexity = has_data ? eval.perplexity : NAN;
    result->seconds = sli_run_seconds(run);
    return SL_OK;
}

/* ---- The loop --------------------------------------------------------------------------- */

/* Trains what is left of the epoch under way. */
static sl_status train_epoch(sli_run *run)
{
    double start = sli_clock_seconds();
    while (run->position.batch < run->batches_per_epoch && !run->stopped) {
        SL_TRY(validate_within_epoch(run, start));
        if (run->stopped)
            break;
        SL_TRY(train_batch(run));
        SL_TRY(sli_run_sample(run));
        SL_TRY(sli_checkpoints_after_step(run->checkpoints, &run->stopped));
    }
    if (run->stopped)
        return SL_OK;
    return validate_epoch(run, start);
}

/* Ends a run, or one that was stopped. That one leaves its best weights, or its last ones, where it
 * saves no checkpoints. Weights or a last checkpoint that could not be saved are the error of every
 * replica, after the results; no replica ends before the first one has saved them. */
static sl_status finish_run(sli_run *run, sl_run_result *result)
{
    sli_error_copy unsaved, unsaved_state = {.status = SL_OK};
    int64_t saved_step =
        isfinite(run->position.best_loss) ? run->position.best_step : run->position.steps;
    bool leaves_weights = !run->stopped || !run->options->checkpoints.directory;
    if (!run->stopped)
        SL_TRY(sli_checkpoints_finish(run->checkpoints, &unsaved_state));
    else if (leaves_weights && saves_model(run) && !run->saved && saved_step != run->position.steps)
        SL_TRY(sli_best_restore(run->best, run->replica.pipe));
    sli_error_save(&unsaved, leaves_weights ? save_model(run) : SL_OK);
    result->best_valid_loss = run->position.best_loss;
    result->steps = run->position.steps;
    result->stopped = run->stopped;
    result->saved = run->saved;
    result->saved_step = saved_step;
    if (run->stopped) {
        result->seconds = sli_run_seconds(run);
    } else {
        SL_TRY(gather_rank_stats(run));
        SLI_CALL_REPORTERS(run, finished, &run->info, result)
    }
    SL_TRY(sli_error_restore(&unsaved));
    SL_TRY(sli_error_restore(&unsaved_state));
    bool saves = (leaves_weights && run->options->save) || run->options->checkpoints.directory;
    bool must_wait = saves && run->replica.all;
    return must_wait ? sl_group_barrier(run->replica.all, NULL) : SL_OK;
}

static sl_status train_all(sli_run *run, sl_run_result *result)
{
    *result = (sl_run_result){0};
    SLI_CALL_REPORTERS(run, started, &run->info)
    while (run->position.epoch < run->options->epochs && !run->stopped)
        SL_TRY(train_epoch(run));
    if (!run->stopped)
        SL_TRY(run_test(run, result));
    return finish_run(run, result);
}

sl_status sli_run_rank(const sli_run *process, sl_group *group, int first, sl_run_result *result)
{
    sl_device *devices[SL_MAX_STAGES] = {NULL};
    sli_error_copy error;
    sli_run run = *process;
    int rank = group ? sl_group_rank(group) : 0;
    sli_rank_plan part = sli_plan_rank(run.plan, rank);
    run.started = sli_clock_seconds();
    run.last_step = -1;
    if (rank > 0)
        run.resume = (sli_resume){0};
    for (int r = 0; r < part.count; r++)
        devices[part.first + r] = sl_device_list_get(run.devices.list, first + r);
    sl_status status;
    SL_TRY_OR_FAIL(set_up(&run, group, devices));
    status = train_all(&run, result);
fail:
    if (status != SL_OK)
        status = sli_replica_abort(&run.replica, status);
    sli_error_save(&error, status); /* leaving broken groups leaves their errors */
    clean_up(&run);
    return sli_error_restore(&error);
}
