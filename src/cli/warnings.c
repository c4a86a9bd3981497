/* Warnings that a run, an evaluation or a text begins with. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Warns where more than half of the text is <unk>. */
static void warn_unknown_tokens(const sl_text_info *text, const char *init, const char *source)
{
    if (2 * text->unknown > text->tokens)
        cli_complain("warning: %.0f%% of the tokens in %s are <unk>: the vocabulary of %s does not "
                     "have them",
                     100.0 * (double)text->unknown / (double)text->tokens, text->path,
                     init ? init : source);
}

void cli_warn_of_text(const sl_text_info *text, const char *init, const char *source)
{
    if (text->invalid_bytes > 0)
        cli_complain("warning: %s has %" PRId64 " byte%s not UTF-8: is it in another encoding?",
                     text->path, text->invalid_bytes,
                     text->invalid_bytes == 1 ? " that is" : "s that are");
    warn_unknown_tokens(text, init, source);
}

/* Does a list name two different GPUs? Virtual devices of one count once. */
static bool names_two_gpus(const char *devices)
{
    const char prefix[] = "cuda:";
    long first = -1;
    for (const char *at = devices; at && (at = strstr(at, prefix)); at += sizeof prefix - 1) {
        long gpu = strtol(at + sizeof prefix - 1, NULL, 10);
        if (first >= 0 && gpu != first)
            return true;
        first = gpu;
    }
    return false;
}

void cli_warn_of_devices(const sl_pipe *pipe, const char *devices, sl_precision precision)
{
    bool is_slow = false, is_untried = names_two_gpus(devices);
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_device *device = sl_pipe_device(pipe, s);
        if (!device)
            continue; /* another process's */
        is_slow |= precision == SL_PRECISION_BF16 && !sl_device_has_bf16(device);
        is_untried |=
            !sl_device_has_host_memory(device) && strcmp(sl_device_isa(device), "sm_90") != 0;
    }
    if (is_slow)
        cli_complain("warning: without AVX-512 BF16, --precision bf16 is slower than f32");
    if (is_untried)
        cli_complain(
            "warning: CUDA devices have been tried on one H100 alone: docs/cuda.md says what "
            "is untested");
}

/* Clearly, and in steps that are not over in a moment anyway. */
static bool is_one_stage_faster(const sl_run_info *info)
{
    return info->profiled_seconds >= 0.05 && info->one_stage < 0.95;
}

void cli_warn_of_run(const sl_run_info *info, bool quiet)
{
    const sl_train_options *options = info->options;
    int64_t rows = options->batch_size;
    if (info->oversubscribed)
        cli_complain("warning: devices share cores");
    if (!quiet && is_one_stage_faster(info))
        cli_complain(
            "warning: one stage (--pp 1) would take %.0f%% of a step's time, by a short profile: "
            "sluice plan finds the fastest layout",
            100 * info->one_stage);
    cli_warn_of_devices(info->pipe, options->devices, options->precision);
    int steps = options->accumulate;
    if (steps * options->chunks > rows)
        cli_complain("warning: --chunks%s is %d, but a batch has %" PRId64
                     " row%s: it is cut into %" PRId64 " micro-batch%s of one row",
                     steps > 1 ? " times --accumulate" : "", steps * options->chunks, rows,
                     rows == 1 ? "" : "s", rows, rows == 1 ? "" : "es");
    for (int split = 0; split < SL_SPLITS; split++)
        cli_warn_of_text(&info->texts[split], options->init, info->texts[SL_SPLIT_TRAIN].path);
}
