/* What a person sees of a run: on standard output lines in the form of PyTorch's tutorials, on
 * standard error warnings. And the run's log. */
#include "cli/cli.h"
#include "synthetic/chain.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's; a reporter's context. */
typedef struct display {
    cli_progress *progress;
    int rank;
    int64_t resumed_step;          /* 0: the run has begun anew */
    const sl_source_info *sources; /* [source_count] of a mixture */
    int source_count;
    double interval_loss, interval_seconds; /* since the last line */
    int64_t interval_tokens, interval_padding, interval_targets, interval_batches;
    double trained_seconds; /* since the run began */
    double first_seconds;   /* of its first step, which warms up */
    int64_t trained_batches, total_batches;
} display;

struct cli_progress {
    cli_progress_options options;
    int reporter_count;
    display *displays;      /* [count] */
    sl_reporter *reporters; /* [reporter_count]: one a display, the meter's and the log's */
    cli_run_meter meter;
    cli_outputs outputs;
    cli_screen screen;
};

static const char rule[] =
    "-----------------------------------------------------------------------------------------";

/* ---- The screen --------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void print_line(const display *view,
                                                             const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    cli_screen_print(&view->progress->screen, view->rank, format, arguments);
    va_end(arguments);
}

static void warn_of_output(void *context, const char *reason)
{
    const display *view = context;
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

static void draw_step(const display *view, const sl_step_info *step)
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
    const display *view = context;
    cli_screen_draw_live(&view->progress->screen, "%s " BAR,
                         is_validation(info->split) ? "validation" : "test",
                         bar_length(info->batch, info->batches), full_bar, info->batch,
                         info->batches);
    return SL_OK;
}

/* ---- The start ---------------------------------------------------------------------------- */

static void print_data(const display *view, const sl_run_info *info)
{
    print_line(view, "Data: %s", info->options->data);
    for (int split = 0; split < SL_SPLITS; split++) {
        const sl_text_info *text = &info->texts[split];
        char packed[96] = "";
        if (text->documents > 0)
            snprintf(packed, sizeof packed, ": %s documents in %s rows",
                     cli_count_text(text->documents).text, cli_count_text(text->rows).text);
        if (text->path)
            print_line(view, "  %-5s %12s tokens  %s%s", sl_split_name(split),
                       cli_count_text(text->tokens).text, text->path, packed);
    }
    for (int i = 0; i < info->source_count; i++) {
        const sl_source_info *source = &info->sources[i];
        print_line(view, "  %5.2f%% of the rows from %s: %s tokens in %s rows  %s",
                   100 * source->share, source->name, cli_count_text(source->tokens).text,
                   cli_count_text(source->rows).text, source->path);
    }
    print_line(view, "  vocabulary of %s types", cli_count_text(info->ntokens).text);
}

/* What all replicas have in common. */
static void print_model(const display *view, const sl_run_info *info)
{
    const sl_train_options *options = info->options;
    const sl_model_options *model = &options->model;
    int stages = info->stage_count;
    print_line(view,
               "Model: emsize %" PRId64 ", nhid %" PRId64 ", %" PRId64 " layers, %" PRId64
               " heads, dropout %g, mask %s",
               model->emsize, model->nhid, model->nlayers, model->nhead, model->dropout,
               model->mask == SL_MASK_CAUSAL ? "causal" : "none");
    print_line(view, "Total parameters in model: %s", cli_count_text(info->total_parameters).text);
    if (model->lora.adapts || model->freeze || model->train_layers > 0)
        print_line(view, "Trained parameters: %s", cli_count_text(info->trained_parameters).text);
    if (info->replicas > 1 || options->shards > 1)
        print_line(view, "Data parallelism: %d replica%s, batches of %d x %" PRId64 " columns%s",
                   info->replicas, plural(info->replicas), options->shards, options->batch_size,
                   options->zero ? ", optimizer state sharded" : "");
    print_line(view, "Optimizer: %s, lr %g", sl_optimizer_kind_name(options->optimizer.kind),
               options->lr.lr);
    print_line(view, "Pipeline: %d stage%s, %d chunk%s, recompute %s, schedule %s", stages,
               plural(stages), options->chunks, plural(options->chunks),
               sl_recompute_name(options->recompute), options->schedule);
}

/* "0 (modules 0 to 2), 3 (modules 6 to 8)" */
static void write_stages(const sl_run_info *info, int pipeline_rank, char *text, size_t bytes)
{
    size_t used = 0;
    for (int s = 0; s < info->stage_count && used < bytes; s++) {
        const sl_stage_info *stage = &info->stages[s];
        if (stage->rank == pipeline_rank)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d (modules %d to %d)",
                                     used ? ", " : "", s, stage->first,
                                     stage->first + stage->count - 1);
    }
}

/* Prints the line of info->ranks[index], or for -1 the heading. */
typedef void print_row(const display *view, const sl_run_info *info, int index);

/* A line for each pipeline rank of each replica; of very many the first, then how many more there
 * are, and `where` (may be ""). */
static void print_table(const display *view, const sl_run_info *info, print_row *row,
                        const char *where)
{
    enum { MOST_ROWS = 64 };
    int count = info->rank_count;
    for (int i = -1; i < count && i < MOST_ROWS; i++)
        row(view, info, i);
    if (count > MOST_ROWS)
        print_line(view, "and %d more%s", count - MOST_ROWS, where);
}

static void print_location(const display *view, const sl_run_info *info, int index)
{
    if (index < 0) {
        print_line(view, "%-5s %-16s %-10s %-12s %s", "rank", "host", "device", "cores", "stages");
        return;
    }
    const sl_rank_stats *rank = &info->ranks[index];
    char cores[48], stages[256];
    snprintf(cores, sizeof cores, "%d (%s)", rank->threads, rank->isa);
    write_stages(info, index % (info->rank_count / info->replicas), stages, sizeof stages);
    print_line(view, "%-5d %-16s %-10s %-12s %s", rank->rank, rank->host, rank->device, cores,
               stages);
}

/* Tells the launcher the stages of each process, where none has all of them. */
static void tell_stages(const sl_run_info *info)
{
    char stages[200], text[210];
    int count = info->rank_count, ranks = count / info->replicas;
    for (int i = 0; i < count && info->ranks[0].rank != info->ranks[ranks - 1].rank; i++) {
        write_stages(info, i % ranks, stages, sizeof stages);
        snprintf(text, sizeof text, "stage %s", stages);
        sl_launch_link_role(cli_launcher, info->ranks[i].rank, text);
    }
}

static sl_status print_started(void *context, const sl_run_info *info)
{
    display *view = context;
    bool is_first = view->rank == 0;
    const cli_progress_options *options = &view->progress->options;
    view->total_batches = info->batches_per_epoch * info->options->epochs;
    view->sources = info->sources;
    if (is_first) {
        cli_warn_of_run(info);
        tell_stages(info);
        sl_launch_link_steps(cli_launcher, view->resumed_step);
    }
    if (options->quiet)
        return SL_OK;
    if (is_first) {
        if (options->restarts > 0 && view->resumed_step == 0)
            print_line(view,
                       "Restart %d: there is no checkpoint yet, the run starts from the beginning",
                       options->restarts);
        print_data(view, info);
        print_model(view, info);
        print_table(view, info, print_location, "");
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

static void print_interval(display *view, const sl_step_info *step)
{
    double loss = view->interval_loss / (double)view->interval_targets;
    double padding = 100 * (double)view->interval_padding / (double)view->interval_tokens;
    char padded[32] = "";
    if (padding > 0)
        snprintf(padded, sizeof padded, " | padding %.0f%%", padding);
    print_line(view,
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

/* Milliseconds of a step. */
static void print_rank_times(const display *view, const sl_run_info *info, int index)
{
    enum { COLUMN = 11 };
    char columns[SL_TIME_KINDS * (COLUMN + 24) + 1];
    const sl_rank_stats *rank = index < 0 ? NULL : &info->ranks[index];
    int used = 0;
    for (int kind = 0; kind < SL_TIME_KINDS; kind++) {
        double ms = rank && rank->steps > 0 ? 1e3 * rank->seconds[kind] / (double)rank->steps : 0;
        used += snprintf(columns + used, sizeof columns - (size_t)used, " %*s", COLUMN,
                         rank ? cli_real_text(ms, 2).text : sl_time_kind_name((sl_time_kind)kind));
    }
    if (rank)
        print_line(view, "%-5d %-5d%s", rank->rank, rank->stage, columns);
    else
        print_line(view, "%-5s %-5s%s", "rank", "stage", columns);
}

static sl_status print_times(void *context, const sl_run_info *info)
{
    const display *view = context;
    print_line(view, "Time of a step in ms, by what it went to:");
    print_table(view, info, print_rank_times, "");
    if (info->slowest && info->rank_count > 1)
        print_line(view, "Slowest of all: rank %d on %s, %s, from stage %d on", info->slowest->rank,
                   info->slowest->host, info->slowest->device, info->slowest->stage);
    return SL_OK;
}

static sl_status print_step(void *context, const sl_step_info *step)
{
    display *view = context;
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
        print_line(view, "warning: no row of step %" PRId64 " has a target: it changed nothing",
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
    if (due || step->batch == step->batches_per_epoch)
        print_interval(view, step);
    else
        draw_step(view, step);
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
static void print_shared_pipeline(display *view, const sl_pipeline_info *info)
{
    const sl_stage_info *slowest = info->slowest;
    const sl_utilization *utilization = info->utilization;
    double worked[SL_MAX_STAGES];
    char text[PERCENTS_BYTES];
    for (int r = 0; r < utilization->ranks; r++)
        worked[r] = 1 - utilization->idle[r];
    print_line(view,
               "| pipeline: the ranks share the cores, and worked %s of the step | slowest: stage "
               "%d, modules %d to %d",
               percents_text(worked, utilization->ranks, text), utilization->slowest_stage,
               slowest->first, slowest->first + slowest->count - 1);
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
    print_line(context,
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
static void print_source_losses(const display *view, const sl_eval_info *eval)
{
    for (int i = 0; i < eval->source_count; i++)
        if (!isnan(eval->source_losses[i]))
            print_line(view, "|   %s: valid loss %5s | valid ppl %8s", view->sources[i].name,
                       cli_real_text(eval->source_losses[i], 2).text,
                       cli_real_text(exp(eval->source_losses[i]), 2).text);
}

static sl_status print_evaluated(void *context, const sl_eval_info *eval)
{
    if (!is_validation(eval->split))
        return SL_OK;
    if (!eval->ends_epoch) {
        print_line(context,
                   "| epoch %3" PRId64 " | step %" PRId64 " | valid loss %5s | valid ppl %8s%s",
                   eval->epoch, eval->step, cli_real_text(eval->loss, 2).text,
                   cli_real_text(eval->perplexity, 2).text, eval->best ? " | best so far" : "");
        print_source_losses(context, eval);
        return SL_OK;
    }
    print_line(context, "%s", rule);
    print_line(context,
               "| end of epoch %3" PRId64 " | time: %5.2fs | valid loss %5s | valid ppl %8s%s",
               eval->epoch, eval->epoch_seconds, cli_real_text(eval->loss, 2).text,
               cli_real_text(eval->perplexity, 2).text, eval->best ? " | best so far" : "");
    print_source_losses(context, eval);
    print_line(context, "%s", rule);
    return SL_OK;
}

static sl_status print_sample(void *context, const sl_sample_info *sample)
{
    if (sample->text)
        print_line(context, "| sample after step %" PRId64 " | %s", sample->step, sample->text);
    else
        print_line(context, "| no sample after step %" PRId64 ": %s", sample->step, sample->reason);
    return SL_OK;
}

/* ---- The end ------------------------------------------------------------------------------ */

static void print_result(const display *view, const sl_run_info *info, const sl_run_result *result)
{
    if (info->texts[SL_SPLIT_TEST].path)
        print_line(view, "| End of training | test loss %5s | test ppl %8s",
                   cli_real_text(result->test_loss, 2).text,
                   cli_real_text(result->test_perplexity, 2).text);
    print_line(view, "%s", rule);
    double best = sli_synthetic_best_perplexity(info->options->bptt);
    if (view->progress->options.synthetic && isfinite(result->test_perplexity))
        print_line(view,
                   "The best possible perplexity on this text, seeing blocks of %" PRId64
                   " tokens, is %.4f: the model is %s%% above it.",
                   info->options->bptt, best,
                   cli_real_text(100 * (result->test_perplexity / best - 1), 2).text);
}

/* Beside what the plan has said. */
static void print_planned(const display *view, const sl_run_info *info)
{
    double planned = info->planned_step_seconds, count = (double)view->trained_batches - 1;
    double measured = (view->trained_seconds - view->first_seconds) / count;
    if (planned > 0 && count > 0)
        print_line(view,
                   "A step took %.1f ms, the mean of all but the first; planned were %.1f ms "
                   "(%+.1f%%)",
                   1e3 * measured, 1e3 * planned, 100 * (planned / measured - 1));
}

static void print_peaks(const display *view, const sl_run_info *info, int index)
{
    enum { COLUMN = 13 };
    char columns[SL_MEMORY_CATEGORY_COUNT * (COLUMN + 16) + 1];
    const sl_rank_stats *rank = index < 0 ? NULL : &info->ranks[index];
    int used = 0;
    for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
        used += snprintf(columns + used, sizeof columns - (size_t)used, " %12s",
                         rank ? cli_bytes_text((int64_t)rank->stats.peak_bytes[c]).text
                              : sl_memory_category_name(c));
    if (rank)
        print_line(view, "%-5d %-5d %-10s %12s%s", rank->rank, rank->stage, rank->device,
                   cli_bytes_text((int64_t)rank->stats.peak_total_bytes).text, columns);
    else
        print_line(view, "%-5s %-5s %-10s %12s%s", "rank", "stage", "device", "peak", columns);
}

static sl_status print_ranks(void *context, const sl_run_info *info)
{
    print_line(context, "Peak memory of each device, in all and by what it is for:");
    print_table(context, info, print_peaks, ": --log-json has all");
    return print_times(context, info);
}

static sl_status print_finished(void *context, const sl_run_info *info, const sl_run_result *result)
{
    display *view = context;
    print_result(view, info, result);
    if (!view->progress->options.quiet) {
        print_planned(view, info);
        (void)print_ranks(view, info);
    }
    if (result->saved && !view->progress->options.quiet)
        print_line(view, "The best weights are in %s", info->options->save);
    const char *debug = getenv("SL_DEBUG"); /* which the run has checked */
    if (info->ddp_log && debug && strstr(debug, "ddp"))
        sl_ddp_log_print(info->ddp_log, stderr);
    return SL_OK;
}

/* ---- Checkpoints and the log -------------------------------------------------------------- */

static void print_resumed(display *view, const sl_checkpoint_event *event)
{
    char begin[48] = "Resuming";
    view->resumed_step = event->step;
    if (view->progress->options.quiet)
        return;
    if (view->progress->options.restarts > 0)
        snprintf(begin, sizeof begin, "Restart %d: resuming", view->progress->options.restarts);
    print_line(view, "%s after step %" PRId64 " from %s", begin, event->step, event->path);
    if (event->lost_steps > 0)
        print_line(view, "Repeating %" PRId64 " step%s, lost since the checkpoint",
                   event->lost_steps, plural(event->lost_steps));
}

static sl_status print_checkpoint(void *context, const sl_checkpoint_event *event)
{
    display *view = context;
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
            print_line(view, "Not loaded from %s: %s (%s)", event->path, event->tensor,
                       event->reason);
        break;
    case SL_CHECKPOINT_RESUMED:
        print_resumed(view, event);
        break;
    case SL_CHECKPOINT_SAVED:
        if (!view->progress->options.quiet)
            print_line(view, "| saved %s | copied in %.0f ms, written in %.0f ms", event->path,
                       1e3 * event->copy_seconds, 1e3 * event->write_seconds);
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
        progress->displays[i] = (display){.progress = progress, .rank = first_rank + i};
        progress->reporters[i] = (sl_reporter){.context = &progress->displays[i],
                                               .started = print_started,
                                               .step = print_step,
                                               .pipeline = options->quiet ? NULL : print_pipeline,
                                               .evaluating = shows ? draw_evaluating : NULL,
                                               .evaluated = shows ? print_evaluated : NULL,
                                               .sampled = shows ? print_sample : NULL,
                                               .refreshed = is_first ? print_ranks : NULL,
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
