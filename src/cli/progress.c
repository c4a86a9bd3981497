/* What a person sees of a run: on standard output lines in the form of PyTorch's tutorials, on
 * standard error warnings. And the run's log. */
#include "cli/progress.h"
#include "synthetic/chain.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char rule[] =
    "-----------------------------------------------------------------------------------------";

/* ---- The screen --------------------------------------------------------------------------- */

void cli_display_print(const cli_display *view, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    cli_screen_print(&view->progress->screen, view->rank, format, arguments);
    va_end(arguments);
}

static void warn_of_output(void *context, const char *reason)
{
    const cli_display *view = context;
    cli_screen_warn(&view->progress->screen, "%s%s", reason,
                    cli_signals_output_lost() ? "" : "; the run goes on without it");
}

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* ---- The progress line -------------------------------------------------------------------- */

/* "[#####     ] 10/50" */
#define BAR "[%-24.*s] %" PRId64 "/%" PRId64
static const char full_bar[] = "########################";

static int bar_length(int64_t done, int64_t all)
{
    return (int)((int64_t)strlen(full_bar) * done / all);
}

static void draw_step(const cli_display *view, const sl_step_info *step)
{
    if (view->rank > 0)
        return;
    double each = view->trained_seconds / (double)view->trained_batches;
    cli_screen_draw_live(&view->progress->screen,
                         "epoch %" PRId64 " " BAR " | loss %s | %.0f tokens/s | %s left to train",
                         step->epoch, bar_length(step->batch, step->batches_per_epoch), full_bar,
                         step->batch, step->batches_per_epoch, cli_real_text(step->loss, 3).text,
                         (double)step->tokens / step->seconds,
                         cli_duration_text(each * (double)(view->total_batches - step->step)).text);
}

static bool is_validation(const char *split)
{
    return strcmp(split, sl_split_name(SL_SPLIT_VALID)) == 0;
}

static sl_status draw_evaluating(void *context, const sl_evaluating_info *info)
{
    const cli_display *view = context;
    cli_screen_draw_live(&view->progress->screen, "%s " BAR,
                         is_validation(info->split) ? "validation" : "test",
                         bar_length(info->batch, info->batches), full_bar, info->batch,
                         info->batches);
    return SL_OK;
}

/* ---- The start ---------------------------------------------------------------------------- */

static void print_data(const cli_display *view, const sl_run_info *info)
{
    cli_display_print(view, "Data: %s", info->options->data);
    for (int split = 0; split < SL_SPLITS; split++) {
        const sl_text_info *text = &info->texts[split];
        char packed[96] = "";
        if (text->documents > 0)
            snprintf(packed, sizeof packed, ": %s documents in %s rows",
                     cli_count_text(text->documents).text, cli_count_text(text->rows).text);
        if (text->path)
            cli_display_print(view, "  %-5s %12s tokens  %s%s", sl_split_name(split),
                              cli_count_text(text->tokens).text, text->path, packed);
    }
    for (int i = 0; i < info->source_count; i++) {
        const sl_source_info *source = &info->sources[i];
        cli_display_print(view, "  %5.2f%% of the rows from %s: %s tokens in %s rows  %s",
                          100 * source->share, source->name, cli_count_text(source->tokens).text,
                          cli_count_text(source->rows).text, source->path);
    }
    cli_display_print(view, "  vocabulary of %s types", cli_count_text(info->ntokens).text);
}

/* What all replicas have in common. */
static void print_model(const cli_display *view, const sl_run_info *info)
{
    const sl_train_options *options = info->options;
    const sl_model_options *model = &options->model;
    int stages = info->stage_count;
    cli_display_print(view,
                      "Model: emsize %" PRId64 ", nhid %" PRId64 ", %" PRId64 " layers, %" PRId64
                      " heads, dropout %g, mask %s",
                      model->emsize, model->nhid, model->nlayers, model->nhead, model->dropout,
                      model->mask == SL_MASK_CAUSAL ? "causal" : "none");
    cli_display_print(view, "Total parameters in model: %s",
                      cli_count_text(info->total_parameters).text);
    if (model->lora.adapts || model->freeze || model->train_layers > 0)
        cli_display_print(view, "Trained parameters: %s",
                          cli_count_text(info->trained_parameters).text);
    if (info->replicas > 1 || options->shards > 1)
        cli_display_print(view,
                          "Data parallelism: %d replica%s, batches of %d x %" PRId64 " columns%s",
                          info->replicas, plural(info->replicas), options->shards,
                          options->batch_size, options->zero ? ", optimizer state sharded" : "");
    cli_display_print(view, "Optimizer: %s, lr %g", sl_optimizer_kind_name(options->optimizer.kind),
                      options->lr.lr);
    cli_display_print(view, "Pipeline: %d stage%s, %d chunk%s, recompute %s, schedule %s", stages,
                      plural(stages), options->chunks, plural(options->chunks),
                      sl_recompute_name(options->recompute), options->schedule);
}

/* Tells the launcher the stages of each process, where none has all of them. */
static void tell_stages(const sl_run_info *info)
{
    char stages[200], text[210];
    int count = info->rank_count, ranks = count / info->replicas;
    for (int i = 0; i < count && info->ranks[0].rank != info->ranks[ranks - 1].rank; i++) {
        cli_write_stages(info, i % ranks, stages, sizeof stages);
        snprintf(text, sizeof text, "stage %s", stages);
        sl_launch_link_role(cli_launcher, info->ranks[i].rank, text);
    }
}

static sl_status print_started(void *context, const sl_run_info *info)
{
    cli_display *view = context;
    bool is_first = view->rank == 0;
    const cli_progress_options *options = &view->progress->options;
    view->total_batches = info->batches_per_epoch * info->options->epochs;
    view->sources = info->sources;
    if (is_first) {
        cli_warn_of_run(info, options->quiet);
        tell_stages(info);
        sl_launch_link_steps(cli_launcher, view->resumed_step);
    }
    if (options->quiet)
        return SL_OK;
    if (is_first) {
        if (options->restarts > 0 && view->resumed_step == 0)
            cli_display_print(
                view, "Restart %d: there is no checkpoint yet, the run starts from the beginning",
                options->restarts);
        print_data(view, info);
        print_model(view, info);
        cli_print_locations(view, info);
    }
    return SL_OK;
}

/* ---- Steps and evaluations ---------------------------------------------------------------- */

/* Two decimals, as in the tutorials, or an exponent where they would show little. */
static cli_text rate_text(double lr)
{
    cli_text out;
    snprintf(out.text, sizeof out.text, lr == 0 || (lr >= 0.1 && lr < 1e6) ? "%.2f" : "%.2e", lr);
    return out;
}

static void print_interval(cli_display *view, const sl_step_info *step)
{
    double loss = view->interval_loss / (double)view->interval_targets;
    double padding = 100 * (double)view->interval_padding / (double)view->interval_tokens;
    char padded[32] = "";
    if (padding > 0)
        snprintf(padded, sizeof padded, " | padding %.0f%%", padding);
    cli_display_print(view,
                      "| epoch %3" PRId64 " | %5" PRId64 "/%5" PRId64
                      " batches | lr %s | ms/batch %5.2f | loss %5s | ppl %8s | %.0f tokens/s%s",
                      step->epoch, step->batch, step->batches_per_epoch, rate_text(step->lr).text,
                      1e3 * view->interval_seconds / (double)view->interval_batches,
                      cli_real_text(loss, 2).text, cli_real_text(exp(loss), 2).text,
                      (double)view->interval_tokens / view->interval_seconds, padded);
    view->interval_loss = view->interval_seconds = 0;
    view->interval_tokens = view->interval_padding = view->interval_targets = 0;
    view->interval_batches = 0;
}

/* Of a mixture: what its rows in the epoch had, as far as this process has trained it. */
static void add_sources(cli_display *view, const sl_step_info *step)
{
    for (int i = 0; i < step->source_count; i++) {
        const sl_source_step *source = &step->sources[i];
        if (source->targets > 0)
            view->source_sums[i].loss += source->loss * (double)source->targets;
        view->source_sums[i].targets += source->targets;
    }
}

static void print_sources(cli_display *view, const sl_step_info *step)
{
    for (int i = 0; i < step->source_count; i++) {
        struct cli_source_sum *sum = &view->source_sums[i];
        double loss = sum->loss / (double)sum->targets;
        if (sum->targets > 0)
            cli_display_print(view, "|   %s: loss %5s | ppl %8s | passed %.2f times",
                              view->sources[i].name, cli_real_text(loss, 2).text,
                              cli_real_text(exp(loss), 2).text, step->sources[i].epochs);
        *sum = (struct cli_source_sum){0};
    }
}

static sl_status print_step(void *context, const sl_step_info *step)
{
    cli_display *view = context;
    const cli_progress_options *options = &view->progress->options;
    if (view->rank == 0) {
        sl_launch_link_steps(cli_launcher, step->step);
        const char *reason = cli_outputs_check(&view->progress->outputs);
        if (reason)
            warn_of_output(view, reason);
    }
    if (options->quiet)
        return SL_OK;
    if (step->targets == 0 && view->rank == 0)
        cli_display_print(view,
                          "warning: no row of step %" PRId64 " has a target: it changed nothing",
                          step->step);
    view->interval_loss += step->replica_loss * (double)step->targets;
    view->interval_targets += step->targets;
    view->interval_tokens += step->tokens;
    view->interval_padding += step->padding;
    view->interval_seconds += step->seconds;
    view->interval_batches++;
    if (view->trained_batches == 0)
        view->first_seconds = step->seconds;
    view->trained_seconds += step->seconds;
    view->trained_batches++;
    bool due = options->log_interval ? step->batch % options->log_interval == 0
                                     : view->interval_seconds >= options->log_seconds;
    bool ends_epoch = step->batch == step->batches_per_epoch;
    add_sources(view, step);
    if (due || ends_epoch)
        print_interval(view, step);
    else
        draw_step(view, step);
    if (ends_epoch && view->rank == 0)
        print_sources(view, step);
    return SL_OK;
}

enum { PERCENTS_BYTES = 6 * SL_MAX_STAGES }; /* "100%, " each */

/* "12%, 30%", and returns it. */
static const char *percents_text(const double *fractions, int count, char text[PERCENTS_BYTES])
{
    size_t used = 0;
    for (int i = 0; i < count && used < PERCENTS_BYTES; i++)
        used += (size_t)snprintf(text + used, PERCENTS_BYTES - used, "%s%.0f%%", i > 0 ? ", " : "",
                                 100 * fractions[i]);
    return text;
}

/* Of ranks that have all cores together: those that one leaves idle the others use. */
static void print_shared_pipeline(cli_display *view, const sl_pipeline_info *info)
{
    const sl_stage_info *slowest = info->slowest;
    const sl_utilization *utilization = info->utilization;
    double worked[SL_MAX_STAGES];
    char text[PERCENTS_BYTES];
    for (int r = 0; r < utilization->ranks; r++)
        worked[r] = 1 - utilization->idle[r];
    cli_display_print(
        view,
        "| pipeline: the ranks share the cores, and worked %s of the step | slowest: stage "
        "%d, modules %d to %d",
        percents_text(worked, utilization->ranks, text), utilization->slowest_stage, slowest->first,
        slowest->first + slowest->count - 1);
}

static sl_status print_pipeline(void *context, const sl_pipeline_info *info)
{
    const sl_stage_info *slowest = info->slowest;
    const sl_utilization *utilization = info->utilization;
    char idle[PERCENTS_BYTES], waiting[PERCENTS_BYTES];
    if (!info->ends_epoch)
        return SL_OK;
    if (strcmp(slowest->device, "cpu") == 0) {
        print_shared_pipeline(context, info);
        return SL_OK;
    }
    cli_display_print(
        context,
        "| pipeline: bubble %.1f%% (predicted %.1f%%) | idle %s | waiting %s | slowest: "
        "stage %d on %s, modules %d to %d",
        100 * utilization->bubble_measured, 100 * utilization->bubble_predicted,
        percents_text(utilization->idle, utilization->ranks, idle),
        percents_text(utilization->waiting, utilization->ranks, waiting),
        utilization->slowest_stage, slowest->device, slowest->first,
        slowest->first + slowest->count - 1);
    return SL_OK;
}

/* Of a mixture. */
static void print_source_losses(const cli_display *view, const sl_eval_info *eval)
{
    for (int i = 0; i < eval->source_count; i++)
        if (!isnan(eval->source_losses[i]))
            cli_display_print(view, "|   %s: valid loss %5s | valid ppl %8s", view->sources[i].name,
                              cli_real_text(eval->source_losses[i], 2).text,
                              cli_real_text(exp(eval->source_losses[i]), 2).text);
}

static sl_status print_evaluated(void *context, const sl_eval_info *eval)
{
    if (!is_validation(eval->split))
        return SL_OK;
    if (!eval->ends_epoch) {
        cli_display_print(context,
                          "| epoch %3" PRId64 " | step %" PRId64
                          " | valid loss %5s | valid ppl %8s%s",
                          eval->epoch, eval->step, cli_real_text(eval->loss, 2).text,
                          cli_real_text(eval->perplexity, 2).text,
                          eval->best ? " | best so far" : "");
        print_source_losses(context, eval);
        return SL_OK;
    }
    cli_display_print(context, "%s", rule);
    cli_display_print(context,
                      "| end of epoch %3" PRId64
                      " | time: %5.2fs | valid loss %5s | valid ppl %8s%s",
                      eval->epoch, eval->epoch_seconds, cli_real_text(eval->loss, 2).text,
                      cli_real_text(eval->perplexity, 2).text, eval->best ? " | best so far" : "");
    print_source_losses(context, eval);
    cli_display_print(context, "%s", rule);
    return SL_OK;
}

static sl_status print_sample(void *context, const sl_sample_info *sample)
{
    if (sample->text)
        cli_display_print(context, "| sample after step %" PRId64 " | %s", sample->step,
                          sample->text);
    else
        cli_display_print(context, "| no sample after step %" PRId64 ": %s", sample->step,
                          sample->reason);
    return SL_OK;
}

/* ---- The end ------------------------------------------------------------------------------ */

static void print_result(const cli_display *view, const sl_run_info *info,
                         const sl_run_result *result)
{
    if (info->texts[SL_SPLIT_TEST].path)
        cli_display_print(view, "| End of training | test loss %5s | test ppl %8s",
                          cli_real_text(result->test_loss, 2).text,
                          cli_real_text(result->test_perplexity, 2).text);
    cli_display_print(view, "%s", rule);
    double best = sli_synthetic_best_perplexity(info->options->bptt);
    if (view->progress->options.synthetic && isfinite(result->test_perplexity))
        cli_display_print(view,
                          "The best possible perplexity on this text, seeing blocks of %" PRId64
                          " tokens, is %.4f: the model is %s%% above it.",
                          info->options->bptt, best,
                          cli_real_text(100 * (result->test_perplexity / best - 1), 2).text);
}

/* Beside what the plan has said. */
static void print_planned(const cli_display *view, const sl_run_info *info)
{
    double planned = info->planned_step_seconds, count = (double)view->trained_batches - 1;
    double measured = (view->trained_seconds - view->first_seconds) / count;
    if (planned > 0 && count > 0)
        cli_display_print(
            view,
            "A step took %.1f ms, the mean of all but the first; planned were %.1f ms "
            "(%+.1f%%)",
            1e3 * measured, 1e3 * planned, 100 * (planned / measured - 1));
}

static sl_status print_finished(void *context, const sl_run_info *info, const sl_run_result *result)
{
    cli_display *view = context;
    print_result(view, info, result);
    if (!view->progress->options.quiet) {
        print_planned(view, info);
        (void)cli_print_ranks(view, info);
    }
    if (result->saved && !view->progress->options.quiet)
        cli_display_print(view, "The best weights are in %s", info->options->save);
    const char *debug = getenv("SL_DEBUG"); /* which the run has checked */
    if (info->ddp_log && debug && strstr(debug, "ddp"))
        sl_ddp_log_print(info->ddp_log, stderr);
    return SL_OK;
}

/* ---- Checkpoints and the log -------------------------------------------------------------- */

static void print_resumed(cli_display *view, const sl_checkpoint_event *event)
{
    char begin[48] = "Resuming";
    view->resumed_step = event->step;
    if (view->progress->options.quiet)
        return;
    if (view->progress->options.restarts > 0)
        snprintf(begin, sizeof begin, "Restart %d: resuming", view->progress->options.restarts);
    cli_display_print(view, "%s after step %" PRId64 " from %s", begin, event->step, event->path);
    if (event->lost_steps > 0)
        cli_display_print(view, "Repeating %" PRId64 " step%s, lost since the checkpoint",
                          event->lost_steps, plural(event->lost_steps));
}

static sl_status print_checkpoint(void *context, const sl_checkpoint_event *event)
{
    cli_display *view = context;
    switch (event->kind) {
    case SL_CHECKPOINT_SKIPPED:
        cli_screen_warn(&view->progress->screen, "checkpoint %s is skipped: %s", event->path,
                        event->reason);
        break;
    case SL_CHECKPOINT_FAILED:
        cli_screen_warn(&view->progress->screen,
                        "step %" PRId64 " is not saved, the run goes on: %s", event->step,
                        event->reason);
        break;
    case SL_CHECKPOINT_UNPRUNED:
        cli_screen_warn(&view->progress->screen, "older checkpoints stay: %s", event->reason);
        break;
    case SL_WEIGHTS_FAILED:
        cli_screen_warn(&view->progress->screen,
                        "the best weights are not saved, the run goes on: %s", event->reason);
        break;
    case SL_WEIGHTS_LEFT_OUT:
        if (!view->progress->options.quiet)
            cli_display_print(view, "Not loaded from %s: %s (%s)", event->path, event->tensor,
                              event->reason);
        break;
    case SL_CHECKPOINT_RESUMED:
        print_resumed(view, event);
        break;
    case SL_CHECKPOINT_SAVED:
        if (!view->progress->options.quiet)
            cli_display_print(view, "| saved %s | copied in %.0f ms, written in %.0f ms",
                              event->path, 1e3 * event->copy_seconds, 1e3 * event->write_seconds);
        break;
    }
    return SL_OK;
}

/* ---- All ---------------------------------------------------------------------------------- */

void cli_progress_destroy(cli_progress **progress)
{
    if (!*progress)
        return;
    cli_screen_clear(&(*progress)->screen); /* the replicas have ended */
    cli_outputs_clear(&(*progress)->outputs);
    free((*progress)->reporters);
    free((*progress)->displays);
    free(*progress);
    *progress = NULL;
}

sl_status cli_progress_create(const cli_progress_options *options, int first_rank, int count,
                              int replicas, cli_progress **out)
{
    cli_progress *progress = cli_allocate(1, sizeof *progress);
    *progress = (cli_progress){.options = *options, .reporter_count = count};
    progress->displays = cli_allocate((size_t)count, sizeof *progress->displays);
    progress->reporters = cli_allocate((size_t)count + 2, sizeof *progress->reporters);
    cli_screen_create(&progress->screen, replicas, options->live);
    for (int i = 0; i < count; i++) {
        bool is_first = first_rank + i == 0; /* all have the same evaluations and results */
        bool shows = is_first && !options->quiet;
        progress->displays[i] = (cli_display){.progress = progress, .rank = first_rank + i};
        progress->reporters[i] = (sl_reporter){.context = &progress->displays[i],
                                               .started = print_started,
                                               .step = print_step,
                                               .pipeline = options->quiet ? NULL : print_pipeline,
                                               .evaluating = shows ? draw_evaluating : NULL,
                                               .evaluated = shows ? print_evaluated : NULL,
                                               .sampled = shows ? print_sample : NULL,
                                               .refreshed = is_first ? cli_print_ranks : NULL,
                                               .finished = is_first ? print_finished : NULL,
                                               .rank = first_rank + i,
                                               .checkpoint = print_checkpoint};
    }
    progress->meter.screen = &progress->screen;
    if (first_rank == 0 && !options->quiet)
        progress->reporters[progress->reporter_count++] = cli_run_meter_reporter(&progress->meter);
    *out = progress;
    sl_status status = first_rank > 0 ? SL_OK
                                      : cli_outputs_create(options, warn_of_output,
                                                           progress->displays, &progress->outputs);
    if (progress->outputs.log)
        progress->reporters[progress->reporter_count++] =
            sl_run_log_reporter(progress->outputs.log);
    if (status != SL_OK)
        cli_progress_destroy(out);
    return status;
}

const sl_reporter *cli_progress_reporters(const cli_progress *progress, int *count)
{
    *count = progress->reporter_count;
    return progress->reporters;
}
