/* The training loop.
 *
 *   for each epoch
 *       for each block     zero_grad, pipe (forward and backward), norm, clip, update, report
 *       validate           on the whole split; a real copy of the parameters if it was the best
 *   test                   with the best parameters
 */
#include "core/clock.h"
#include "train/best.h"
#include "train/feed.h"
#include "train/session.h"
#include "train/update.h"
#include "train/weights.h"

#include <inttypes.h>
#include <math.h>

typedef struct run {
    sl_train_options options; /* completed by what the data say */
    const sl_reporter *reporters;
    int reporter_count;
    sl_vocab *vocab; /* that the initial weights were saved with, if any */
    sl_corpus *corpus;
    sli_session session;
    sl_batches batches;
    sli_feed feed;
    sli_update *update;
    sli_best *best;
    sl_run_info info;
    int64_t steps; /* done */
    int64_t best_step;
    double best_loss, started;
} run;

/* ---- Setting up ------------------------------------------------------------------------- */

static sl_status prepare_data(run *r)
{
    sl_train_options *options = &r->options;
    if (!options->data)
        return sl_error(SL_ERR_INVALID, "no data directory was given");
    if (options->init) /* its ids mean the tokens of its own vocabulary */
        SL_TRY(sli_weights_vocab(options->init, &r->vocab));
    SL_TRY(sl_corpus_load(options->data, r->vocab, &r->corpus));
    options->model.ntokens = sl_vocab_size(sl_corpus_vocab(r->corpus));
    const int64_t columns[SL_SPLITS] = {options->batch_size, options->eval_batch_size,
                                        options->eval_batch_size};
    for (int split = 0; split < SL_SPLITS; split++) { /* found impossible now, not after an epoch */
        const sl_tokens *tokens = sl_corpus_tokens(r->corpus, (sl_split)split);
        sl_batches cut;
        sl_status status =
            sl_batchify(tokens->ids, tokens->count, columns[split], options->bptt, &cut);
        if (status != SL_OK)
            return sl_error_context(status, "%s: ", sl_corpus_path(r->corpus, (sl_split)split));
        if (split == SL_SPLIT_TRAIN)
            r->batches = cut;
    }
    return SL_OK;
}

/* Finds out that the weights could not be written before hours have gone into them. */
static sl_status check_save(const run *r)
{
    return r->options.save ? sli_weights_check_save(r->session.pipe, r->options.save) : SL_OK;
}

static sl_status set_up(run *r)
{
    sl_train_options *options = &r->options;
    SL_TRY(sl_train_options_check(options));
    SL_TRY(prepare_data(r));
    SL_TRY(sli_session_create(options, &r->session));
    SL_TRY(check_save(r));
    SL_TRY(sli_feed_create(r->session.pipe, &r->batches, &r->feed));
    SL_TRY(sli_update_create(r->session.pipe, &options->optimizer, &r->update));
    SL_TRY(sli_best_create(r->session.pipe, &r->best));
    int64_t batches = sl_batches_count(&r->batches);
    if (options->max_batches > 0 && batches > options->max_batches)
        batches = options->max_batches;
    options->lr.total_steps = batches * options->epochs;
    options->stages = sl_pipe_stages(r->session.pipe);
    r->info = (sl_run_info){
        .options = options,
        .corpus = r->corpus,
        .pipe = r->session.pipe,
        .total_parameters = sl_module_parameter_elements(r->session.model),
        .batches_per_epoch = batches,
        .oversubscribed = r->session.oversubscribed,
    };
    r->best_loss = INFINITY;
    return SL_OK;
}

static void clean_up(run *r)
{
    sli_best_destroy(&r->best);
    sli_update_destroy(&r->update);
    sli_feed_clear(&r->feed);
    sli_session_clear(&r->session);
    sl_corpus_destroy(&r->corpus);
    sl_vocab_destroy(&r->vocab);
}

/* ---- Reporting -------------------------------------------------------------------------- */

static sl_status report_started(const run *r)
{
    for (int i = 0; i < r->reporter_count; i++)
        if (r->reporters[i].started)
            SL_TRY(r->reporters[i].started(r->reporters[i].context, &r->info));
    return SL_OK;
}

static sl_status report_step(const run *r, const sl_step_info *step)
{
    for (int i = 0; i < r->reporter_count; i++)
        if (r->reporters[i].step)
            SL_TRY(r->reporters[i].step(r->reporters[i].context, step));
    return SL_OK;
}

static sl_status report_evaluated(const run *r, const sl_eval_info *eval)
{
    for (int i = 0; i < r->reporter_count; i++)
        if (r->reporters[i].evaluated)
            SL_TRY(r->reporters[i].evaluated(r->reporters[i].context, eval));
    return SL_OK;
}

static sl_status report_finished(const run *r, const sl_run_result *result)
{
    for (int i = 0; i < r->reporter_count; i++)
        if (r->reporters[i].finished)
            SL_TRY(r->reporters[i].finished(r->reporters[i].context, &r->info, result));
    return SL_OK;
}

/* ---- Training --------------------------------------------------------------------------- */

static sl_status check_finite(const run *r, const char *what, double value,
                              const sl_step_info *step)
{
    if (isfinite(value) || r->options.allow_nan)
        return SL_OK;
    if (isnan(value))
        value = NAN; /* its sign says nothing */
    return sl_error(SL_ERR_NUMERIC,
                    "the %s is %g in epoch %" PRId64 ", batch %" PRId64 " (step %" PRId64
                    "): a lower --lr or a --clip may help, --allow-nan goes on",
                    what, value, step->epoch, step->batch, step->step);
}

static sl_status train_block(run *r, int64_t epoch, int64_t block)
{
    double start = sli_clock_seconds();
    sl_step_info step = {
        .epoch = epoch + 1,
        .batch = block + 1,
        .batches_per_epoch = r->info.batches_per_epoch,
        .step = r->steps + 1,
        .tokens = r->batches.columns * sl_batches_block_length(&r->batches, block),
        .lr = sl_lr_at(&r->options.lr, r->steps, epoch),
    };
    SL_TRY(sli_feed_load(&r->feed, block));
    sl_pipe_zero_grad(r->session.pipe);
    SL_TRY(sl_pipe_train(r->session.pipe,
                         &(sl_pipe_batch){.input = r->feed.input,
                                          .targets = r->feed.targets,
                                          .step = (uint64_t)r->steps},
                         &step.loss));
    SL_TRY(check_finite(r, "loss", step.loss, &step));
    SL_TRY(sli_update_norm(r->update, &step.grad_norm));
    SL_TRY(check_finite(r, "gradient norm", step.grad_norm, &step));
    SL_TRY(sli_update_apply(r->update, step.lr, step.grad_norm, r->options.clip));
    r->steps++;
    step.seconds = sli_clock_seconds() - start;
    return report_step(r, &step);
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
    const run *r = of->run;
    for (int i = 0; i < r->reporter_count; i++)
        if (r->reporters[i].evaluating)
            SL_TRY(r->reporters[i].evaluating(r->reporters[i].context, &of->info));
    return SL_OK;
}

static sl_status evaluate(run *r, sl_split split, sl_eval_info *eval)
{
    double start = sli_clock_seconds();
    evaluation of = {.run = r, .info = {.split = split, .epoch = eval->epoch}};
    sl_evaluation result;
    SL_TRY(sl_evaluate_tokens(r->session.pipe, sl_corpus_tokens(r->corpus, split),
                              &(sl_evaluate_options){.batch_size = r->options.eval_batch_size,
                                                     .bptt = r->options.bptt,
                                                     .max_batches = r->options.eval_max_batches,
                                                     .progress = report_evaluating,
                                                     .context = &of},
                              &result));
    eval->split = split;
    eval->loss = result.loss;
    eval->perplexity = result.perplexity;
    eval->tokens = result.tokens;
    eval->seconds = sli_clock_seconds() - start;
    return SL_OK;
}

static sl_status save_weights(run *r)
{
    if (!r->options.save)
        return SL_OK;
    return sl_weights_save(r->session.pipe, &r->options.model, sl_corpus_vocab(r->corpus),
                           r->options.save);
}

static sl_status validate(run *r, int64_t epoch, double epoch_start)
{
    sl_eval_info eval = {.epoch = epoch + 1};
    SL_TRY(evaluate(r, SL_SPLIT_VALID, &eval));
    eval.best = eval.loss < r->best_loss;
    if (eval.best) {
        r->best_loss = eval.loss;
        r->best_step = r->steps;
        if (epoch + 1 < r->options.epochs) /* after the last epoch they are the current ones */
            SL_TRY(sli_best_keep(r->best));
        SL_TRY(save_weights(r));
    }
    eval.epoch_seconds = sli_clock_seconds() - epoch_start;
    return report_evaluated(r, &eval);
}

static sl_status train_epoch(run *r, int64_t epoch)
{
    double start = sli_clock_seconds();
    for (int64_t block = 0; block < r->info.batches_per_epoch; block++)
        SL_TRY(train_block(r, epoch, block));
    return validate(r, epoch, start);
}

static sl_status test(run *r, sl_run_result *result)
{
    sl_eval_info eval = {.epoch = r->options.epochs};
    if (r->best_step != r->steps)
        SL_TRY(sli_best_restore(r->best));
    if (!isfinite(r->best_loss)) /* no validation gave a number: there is only the last state */
        SL_TRY(save_weights(r));
    SL_TRY(evaluate(r, SL_SPLIT_TEST, &eval));
    SL_TRY(report_evaluated(r, &eval));
    *result = (sl_run_result){
        .test_loss = eval.loss,
        .test_perplexity = eval.perplexity,
        .best_valid_loss = r->best_loss,
        .seconds = sli_clock_seconds() - r->started,
        .steps = r->steps,
    };
    return sl_synthetic_corpus_best_perplexity(r->options.data, r->options.bptt,
                                               &result->best_possible_perplexity);
}

static sl_status train_all(run *r, sl_run_result *result)
{
    SL_TRY(set_up(r));
    SL_TRY(report_started(r));
    for (int epoch = 0; epoch < r->options.epochs; epoch++)
        SL_TRY(train_epoch(r, epoch));
    SL_TRY(test(r, result));
    return report_finished(r, result);
}

sl_status sl_train_run(const sl_train_options *options, const sl_reporter *reporters,
                       int reporter_count, sl_run_result *result)
{
    run r = {.options = *options,
             .reporters = reporters,
             .reporter_count = reporter_count,
             .started = sli_clock_seconds()};
    sl_status status = train_all(&r, result);
    clean_up(&r);
    return status;
}
