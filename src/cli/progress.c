#include "cli/progress.h"

#include "cli/arguments.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
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

static void clear_live(cli_progress *progress)
{
    if (progress->live_shown)
        fputs("\r\033[K", stderr);
    progress->live_shown = false;
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
    if (!progress->live || progress->quiet || now - progress->live_time < pause)
        return false;
    progress->live_time = now;
    progress->live_shown = true;
    return true;
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
    char left[CLI_NUMBER_BYTES];
    if (!is_due(progress))
        return;
    double each = progress->trained_seconds / (double)step->step;
    fprintf(stderr, "\r\033[Kepoch %" PRId64 " ", step->epoch);
    draw_bar(step->batch, step->batches_per_epoch);
    fprintf(stderr, " | loss %.3f | %.0f tokens/s | %s left to train", step->loss,
            (double)step->tokens / step->seconds,
            duration_text(each * (double)(progress->total_batches - step->step), left));
    fflush(stderr);
}

static sl_status draw_evaluating(void *context, const sl_evaluating_info *info)
{
    cli_progress *progress = context;
    if (is_due(progress)) {
        fprintf(stderr, "\r\033[K%s ", info->split == SL_SPLIT_VALID ? "validation" : "test");
        draw_bar(info->batch, info->batches);
        fflush(stderr);
    }
    return SL_OK;
}

/* ---- Lines -------------------------------------------------------------------------------- */

static void print_data(const sl_run_info *info)
{
    char text[CLI_NUMBER_BYTES];
    printf("Data: %s\n", info->options->data);
    for (int split = 0; split < SL_SPLITS; split++)
        printf("  %-5s %12s tokens  %s\n", sl_split_name((sl_split)split),
               cli_with_commas(sl_corpus_tokens(info->corpus, (sl_split)split)->count, text),
               sl_corpus_path(info->corpus, (sl_split)split));
    printf("  vocabulary of %s types\n",
           cli_with_commas(sl_vocab_size(sl_corpus_vocab(info->corpus)), text));
}

static void print_stages(const sl_run_info *info)
{
    for (int s = 0; s < sl_pipe_stages(info->pipe); s++) {
        int first, count;
        const sl_device *device = sl_pipe_device(info->pipe, s);
        sl_pipe_stage_modules(info->pipe, s, &first, &count);
        printf("  stage %d on %s (%d thread%s, %s): modules %d to %d\n", s, sl_device_name(device),
               sl_device_thread_count(device), sl_device_thread_count(device) == 1 ? "" : "s",
               sl_device_isa(device), first, first + count - 1);
    }
}

static sl_status print_started(void *context, const sl_run_info *info)
{
    cli_progress *progress = context;
    const sl_train_options *options = info->options;
    progress->total_batches = info->batches_per_epoch * options->epochs;
    if (info->oversubscribed)
        fprintf(stderr, "sluice: warning: devices share cores\n");
    if (progress->quiet)
        return SL_OK;
    char text[CLI_NUMBER_BYTES];
    print_data(info);
    printf("Model: emsize %" PRId64 ", nhid %" PRId64 ", %" PRId64 " layers, %" PRId64
           " heads, dropout %g, mask %s\n",
           options->model.emsize, options->model.nhid, options->model.nlayers, options->model.nhead,
           options->model.dropout, options->model.mask == SL_MASK_CAUSAL ? "causal" : "none");
    printf("Total parameters in model: %s\n", cli_with_commas(info->total_parameters, text));
    printf("Pipeline: %d stage%s, %d chunk%s, checkpoint %s, schedule %s\n",
           sl_pipe_stages(info->pipe), sl_pipe_stages(info->pipe) == 1 ? "" : "s", options->chunks,
           options->chunks == 1 ? "" : "s", sl_checkpoint_name(options->checkpoint),
           sl_schedule_kind_name(options->schedule));
    print_stages(info);
    fflush(stdout);
    return SL_OK;
}

/* Two decimals, as in the tutorials, or an exponent where they would show little. */
static const char *rate_text(double lr, char text[CLI_NUMBER_BYTES])
{
    snprintf(text, CLI_NUMBER_BYTES, lr == 0 || lr >= 0.1 ? "%.2f" : "%.2e", lr);
    return text;
}

static void print_interval(cli_progress *progress, const sl_step_info *step)
{
    char lr[CLI_NUMBER_BYTES];
    double loss = progress->interval_loss / (double)progress->interval_tokens;
    printf("| epoch %3" PRId64 " | %5" PRId64 "/%5" PRId64
           " batches | lr %s | ms/batch %5.2f | loss %5.2f | ppl %8.2f | %.0f tokens/s\n",
           step->epoch, step->batch, step->batches_per_epoch, rate_text(step->lr, lr),
           1e3 * progress->interval_seconds / (double)progress->interval_batches, loss, exp(loss),
           (double)progress->interval_tokens / progress->interval_seconds);
    fflush(stdout);
    progress->interval_loss = progress->interval_seconds = 0;
    progress->interval_tokens = progress->interval_batches = 0;
}

static sl_status print_step(void *context, const sl_step_info *step)
{
    cli_progress *progress = context;
    progress->interval_loss += step->loss * (double)step->tokens;
    progress->interval_tokens += step->tokens;
    progress->interval_seconds += step->seconds;
    progress->interval_batches++;
    progress->trained_seconds += step->seconds;
    if (progress->quiet)
        return SL_OK;
    bool last = step->batch == step->batches_per_epoch;
    if (step->batch % progress->log_interval == 0 || last) {
        clear_live(progress);
        print_interval(progress, step);
    } else {
        draw_step(progress, step);
    }
    return SL_OK;
}

static sl_status print_evaluated(void *context, const sl_eval_info *eval)
{
    cli_progress *progress = context;
    clear_live(progress);
    if (progress->quiet || eval->split != SL_SPLIT_VALID)
        return SL_OK;
    printf("%s\n| end of epoch %3" PRId64
           " | time: %5.2fs | valid loss %5.2f | valid ppl %8.2f%s\n%s\n",
           rule, eval->epoch, eval->epoch_seconds, eval->loss, eval->perplexity,
           eval->best ? " | best so far" : "", rule);
    fflush(stdout);
    return SL_OK;
}

static sl_status print_finished(void *context, const sl_run_info *info, const sl_run_result *result)
{
    (void)context;
    printf("| End of training | test loss %5.2f | test ppl %8.2f\n%s\n", result->test_loss,
           result->test_perplexity, rule);
    double best = result->best_possible_perplexity;
    if (best > 0)
        printf("The best possible perplexity on this corpus, seeing blocks of %" PRId64
               " tokens, is %.4f: the model is %.2f%% above it.\n",
               info->options->bptt, best, 100 * (result->test_perplexity / best - 1));
    fflush(stdout);
    return SL_OK;
}

sl_reporter cli_progress_reporter(cli_progress *progress)
{
    return (sl_reporter){.context = progress,
                         .started = print_started,
                         .step = print_step,
                         .evaluating = draw_evaluating,
                         .evaluated = print_evaluated,
                         .finished = print_finished};
}
