#define _GNU_SOURCE /* vasprintf */

#include "cli/progress.h"

#include "cli/arguments.h"
#include "cli/memory_table.h"
#include "cli/signals.h"
#include "cli/warnings.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char rule[] =
    "-----------------------------------------------------------------------------------------";

static double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- The live line ------------------------------------------------------------------------ */

static void clear_live(cli_progress *drawer)
{
    if (drawer->live_shown)
        fputs("\r\033[K", stderr);
    drawer->live_shown = false;
}

/* "1:02:03" or "2:03" */
static const char *duration_text(double seconds, char text[CLI_NUMBER_BYTES])
{
    int64_t whole = (int64_t)(seconds + 0.5);
    if (whole >= 3600)
        snprintf(text, CLI_NUMBER_BYTES, "%" PRId64 ":%02d:%02d", whole / 3600,
                 (int)(whole % 3600 / 60), (int)(whole % 60));
    else
        snprintf(text, CLI_NUMBER_BYTES, "%d:%02d", (int)(whole / 60), (int)(whole % 60));
    return text;
}

/* Whether the live line may be drawn (again) now. */
static bool is_due(cli_progress *progress)
{
    const double pause = 0.1; /* a person cannot read faster */
    double now = clock_seconds();
    if (!progress->live || progress->quiet || progress->replica > 0 ||
        now - progress->live_time < pause)
        return false;
    progress->live_time = now;
    return true;
}

static void begin_live(cli_progress *progress)
{
    pthread_mutex_lock(progress->screen);
    progress->live_shown = true;
    fputs("\r\033[K", stderr);
}

static void end_live(cli_progress *progress)
{
    fflush(stderr);
    pthread_mutex_unlock(progress->screen);
}

/* "[#####     ] 10/50" */
static void draw_bar(int64_t done, int64_t all)
{
    enum { BAR = 24 };
    static const char full[] = "########################";
    int length = (int)(BAR * done / all);
    fprintf(stderr, "[%-*.*s] %" PRId64 "/%" PRId64, BAR, length, full, done, all);
}

static void draw_step(cli_progress *progress, const sl_step_info *step)
{
    char left[CLI_NUMBER_BYTES], loss[CLI_NUMBER_BYTES];
    if (!is_due(progress))
        return;
    double each = progress->trained_seconds / (double)progress->trained_batches;
    begin_live(progress);
    fprintf(stderr, "epoch %" PRId64 " ", step->epoch);
    draw_bar(step->batch, step->batches_per_epoch);
    fprintf(stderr, " | loss %s | %.0f tokens/s | %s left to train",
            cli_real_text(step->loss, 3, loss), (double)step->tokens / step->seconds,
            duration_text(each * (double)(progress->total_batches - step->step), left));
    end_live(progress);
}

static sl_status draw_evaluating(void *context, const sl_evaluating_info *info)
{
    cli_progress *progress = context;
    if (is_due(progress)) {
        begin_live(progress);
        fprintf(stderr, "%s ", info->split == SL_SPLIT_VALID ? "validation" : "test");
        draw_bar(info->batch, info->batches);
        end_live(progress);
    }
    return SL_OK;
}

/* ---- Lines -------------------------------------------------------------------------------- */

static void begin_lines(cli_progress *progress)
{
    pthread_mutex_lock(progress->screen);
    clear_live(progress->drawer ? progress->drawer : progress);
}

static void end_lines(cli_progress *progress)
{
    fflush(stdout);
    pthread_mutex_unlock(progress->screen);
}

/* One line, its end included, as one write even where MPI has taken standard output's buffer away:
 * the lines of other processes come between writes. */
__attribute__((format(printf, 2, 3))) static void say(const cli_progress *progress,
                                                      const char *format, ...)
{
    char *line;
    va_list arguments;
    va_start(arguments, format);
    int bytes = vasprintf(&line, format, arguments);
    va_end(arguments);
    if (bytes < 0)
        return;
    if (progress->replicas > 1)
        printf("[RANK %d]: %s", progress->replica, line);
    else
        fputs(line, stdout);
    free(line);
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

static void say_data(const cli_progress *progress, const sl_run_info *info)
{
    char text[CLI_NUMBER_BYTES];
    say(progress, "Data: %s\n", info->options->data);
    for (int split = 0; split < SL_SPLITS; split++)
        say(progress, "  %-5s %12s tokens  %s\n", sl_split_name((sl_split)split),
            cli_with_commas(sl_corpus_tokens(info->corpus, (sl_split)split)->count, text),
            sl_corpus_path(info->corpus, (sl_split)split));
    say(progress, "  vocabulary of %s types\n",
        cli_with_commas(sl_vocab_size(sl_corpus_vocab(info->corpus)), text));
}

/* What all replicas have in common. */
static void say_model(const cli_progress *progress, const sl_run_info *info)
{
    char text[CLI_NUMBER_BYTES];
    const sl_train_options *options = info->options;
    const sl_model_options *model = &options->model;
    say(progress,
        "Model: emsize %" PRId64 ", nhid %" PRId64 ", %" PRId64 " layers, %" PRId64
        " heads, dropout %g, mask %s\n",
        model->emsize, model->nhid, model->nlayers, model->nhead, model->dropout,
        model->mask == SL_MASK_CAUSAL ? "causal" : "none");
    say(progress, "Total parameters in model: %s\n", cli_with_commas(info->total_parameters, text));
    if (info->replicas > 1 || options->shards > 1)
        say(progress, "Data parallelism: %d replica%s, batches of %d x %" PRId64 " columns%s\n",
            info->replicas, plural(info->replicas), options->shards, options->batch_size,
            options->zero ? ", optimizer state sharded" : "");
    say(progress, "Optimizer: %s, lr %g\n", sl_optimizer_kind_name(options->optimizer.kind),
        options->lr.lr);
    say(progress, "Pipeline: %d stage%s, %d chunk%s, checkpoint %s, schedule %s\n",
        sl_pipe_stages(info->pipe), plural(sl_pipe_stages(info->pipe)), options->chunks,
        plural(options->chunks), sl_recompute_name(options->recompute),
        sl_schedule_kind_name(options->schedule));
}

static void say_stages(const cli_progress *progress, const sl_run_info *info)
{
    for (int s = 0; s < sl_pipe_stages(info->pipe); s++) {
        int first, count;
        const sl_device *device = sl_pipe_device(info->pipe, s);
        int threads = sl_device_thread_count(device);
        sl_pipe_stage_modules(info->pipe, s, &first, &count);
        say(progress, "  stage %d on %s (%d thread%s, %s): modules %d to %d\n", s,
            sl_device_name(device), threads, plural(threads), sl_device_isa(device), first,
            first + count - 1);
    }
}

static sl_status print_started(void *context, const sl_run_info *info)
{
    cli_progress *progress = context;
    bool is_first = progress->replica == 0;
    progress->total_batches = info->batches_per_epoch * info->options->epochs;
    if (info->oversubscribed && is_first)
        cli_complain("warning: devices share cores");
    if (is_first) {
        cli_warn_chunks(info->options, info->replicas);
        cli_warn_unknown_corpus(info->corpus, info->options->init);
    }
    if (progress->quiet)
        return SL_OK;
    begin_lines(progress);
    if (is_first) {
        if (progress->restarts > 0 && !progress->resumed)
            say(progress, "Restart %d: there is no checkpoint yet, the run begins anew\n",
                progress->restarts);
        say_data(progress, info);
        say_model(progress, info);
    }
    say_stages(progress, info);
    end_lines(progress);
    return SL_OK;
}

/* Two decimals, as in the tutorials, or an exponent where they would show little. */
static const char *rate_text(double lr, char text[CLI_NUMBER_BYTES])
{
    snprintf(text, CLI_NUMBER_BYTES, lr == 0 || (lr >= 0.1 && lr < 1e6) ? "%.2f" : "%.2e", lr);
    return text;
}

static void print_interval(cli_progress *progress, const sl_step_info *step)
{
    char lr[CLI_NUMBER_BYTES], loss_text[CLI_NUMBER_BYTES], perplexity[CLI_NUMBER_BYTES];
    double loss = progress->interval_loss / (double)progress->interval_tokens;
    begin_lines(progress);
    say(progress,
        "| epoch %3" PRId64 " | %5" PRId64 "/%5" PRId64
        " batches | lr %s | ms/batch %5.2f | loss %5s | ppl %8s | %.0f tokens/s\n",
        step->epoch, step->batch, step->batches_per_epoch, rate_text(step->lr, lr),
        1e3 * progress->interval_seconds / (double)progress->interval_batches,
        cli_real_text(loss, 2, loss_text), cli_real_text(exp(loss), 2, perplexity),
        (double)progress->interval_tokens / progress->interval_seconds);
    end_lines(progress);
    progress->interval_loss = progress->interval_seconds = 0;
    progress->interval_tokens = progress->interval_batches = 0;
}

static sl_status print_step(void *context, const sl_step_info *step)
{
    cli_progress *progress = context;
    progress->interval_loss += step->replica_loss * (double)step->tokens;
    progress->interval_tokens += step->tokens;
    progress->interval_seconds += step->seconds;
    progress->interval_batches++;
    progress->trained_seconds += step->seconds;
    progress->trained_batches++;
    if (progress->quiet)
        return SL_OK;
    bool last = step->batch == step->batches_per_epoch;
    if (step->batch % progress->log_interval == 0 || last)
        print_interval(progress, step);
    else
        draw_step(progress, step);
    return SL_OK;
}

static sl_status print_evaluated(void *context, const sl_eval_info *eval)
{
    char loss[CLI_NUMBER_BYTES], perplexity[CLI_NUMBER_BYTES];
    cli_progress *progress = context;
    if (progress->replica > 0) /* has the same numbers */
        return SL_OK;
    begin_lines(progress);
    if (!progress->quiet && eval->split == SL_SPLIT_VALID) {
        say(progress, "%s\n", rule);
        say(progress,
            "| end of epoch %3" PRId64 " | time: %5.2fs | valid loss %5s | valid ppl %8s%s\n",
            eval->epoch, eval->epoch_seconds, cli_real_text(eval->loss, 2, loss),
            cli_real_text(eval->perplexity, 2, perplexity), eval->best ? " | best so far" : "");
        say(progress, "%s\n", rule);
    }
    end_lines(progress);
    return SL_OK;
}

static void say_result(const cli_progress *progress, const sl_run_info *info,
                       const sl_run_result *result)
{
    char loss[CLI_NUMBER_BYTES], perplexity[CLI_NUMBER_BYTES], above[CLI_NUMBER_BYTES];
    double best = result->best_possible_perplexity;
    say(progress, "| End of training | test loss %5s | test ppl %8s\n",
        cli_real_text(result->test_loss, 2, loss),
        cli_real_text(result->test_perplexity, 2, perplexity));
    say(progress, "%s\n", rule);
    if (best > 0 && isfinite(result->test_perplexity))
        say(progress,
            "The best possible perplexity on this corpus, seeing blocks of %" PRId64
            " tokens, is %.4f: the model is %s%% above it.\n",
            info->options->bptt, best,
            cli_real_text(100 * (result->test_perplexity / best - 1), 2, above));
}

static void say_line(void *progress, const char *line)
{
    say(progress, "%s\n", line);
}

static sl_status print_finished(void *context, const sl_run_info *info, const sl_run_result *result)
{
    cli_progress *progress = context;
    if (progress->replica > 0) /* has the same numbers */
        return SL_OK;
    begin_lines(progress);
    say_result(progress, info, result);
    if (!progress->quiet)
        cli_memory_table(info, say_line, progress);
    if (result->saved && !progress->quiet)
        say(progress, "The best weights are in %s\n", info->options->save);
    end_lines(progress);
    if (progress->debug && info->ddp)
        sl_ddp_print_log(info->ddp, stderr);
    return SL_OK;
}

static void say_saved(const cli_progress *progress, const sl_checkpoint_event *event)
{
    say(progress, "| saved %s | copied in %.0f ms, written in %.0f ms\n", event->path,
        1e3 * event->copy_seconds, 1e3 * event->write_seconds);
}

static void say_resumed(cli_progress *progress, const sl_checkpoint_event *event)
{
    progress->resumed = true;
    if (progress->quiet)
        return;
    if (progress->restarts > 0)
        say(progress, "Restart %d: resuming after step %" PRId64 " from %s\n", progress->restarts,
            event->step, event->path);
    else
        say(progress, "Resuming after step %" PRId64 " from %s\n", event->step, event->path);
    if (event->lost_steps > 0)
        say(progress, "Lost since the checkpoint, and done again: %" PRId64 " step%s\n",
            event->lost_steps, event->lost_steps == 1 ? "" : "s");
}

static sl_status print_checkpoint(void *context, const sl_checkpoint_event *event)
{
    cli_progress *progress = context;
    begin_lines(progress);
    switch (event->kind) {
    case SL_CHECKPOINT_SKIPPED:
        cli_complain("warning: checkpoint %s is skipped: %s", event->path, event->reason);
        break;
    case SL_CHECKPOINT_FAILED:
        cli_complain("warning: step %" PRId64 " is not saved, the run goes on: %s", event->step,
                     event->reason);
        break;
    case SL_WEIGHTS_FAILED:
        cli_complain("warning: the best weights are not saved, the run goes on: %s", event->reason);
        break;
    case SL_CHECKPOINT_RESUMED:
        say_resumed(progress, event);
        break;
    case SL_CHECKPOINT_SAVED:
        if (!progress->quiet)
            say_saved(progress, event);
        break;
    }
    end_lines(progress);
    return SL_OK;
}

void cli_progress_log_failed(void *context, const char *reason)
{
    cli_progress *progress = context;
    begin_lines(progress);
    cli_complain("warning: %s%s", reason,
                 cli_signals_output_lost() ? "" : "; the run goes on without");
    end_lines(progress);
}

void cli_progress_end(cli_progress *progress)
{
    clear_live(progress);
    fflush(stderr);
}

sl_reporter cli_progress_reporter(cli_progress *progress)
{
    return (sl_reporter){.context = progress,
                         .started = print_started,
                         .step = print_step,
                         .evaluating = draw_evaluating,
                         .evaluated = print_evaluated,
                         .finished = print_finished,
                         .replica = progress->replica,
                         .checkpoint = print_checkpoint};
}
