/* Whether a run fits into a host's memory, and what would make it fit. */
#include "core/error.h"
#include "core/usable_memory.h"
#include "train/layout.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

uint64_t sl_usable_memory(void)
{
    return sli_usable_memory("");
}

sl_status sl_plan_host(const sl_train_options *options, const sl_module *model, int processes,
                       bool first, sl_host_plan *out)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(out);
    sl_plan plan;
    int64_t replicas = sli_layout_local_replicas(options), state = 0;
    *out = (sl_host_plan){.process_bytes = processes * (int64_t)sli_resident_memory()};
    SL_TRY(sl_plan_create(options, model, 0, &plan));
    for (int s = 0; s < plan.stages; s++) {
        const sl_stage_plan *stage = &plan.stage[s];
        out->parameter_bytes += replicas * stage->parameter_bytes;
        out->gradient_bytes += replicas * stage->gradient_bytes;
        out->optimizer_bytes += replicas * stage->optimizer_bytes;
        out->activation_bytes += replicas * (stage->activation_bytes + stage->workspace_bytes);
        out->best_bytes += processes * stage->best_bytes;
        state += stage->parameter_bytes + stage->best_bytes +
                 (options->zero ? 0 : stage->optimizer_bytes);
    }
    if (options->checkpoints.directory)
        out->saved_bytes = (first ? state : 0) + (options->zero ? out->optimizer_bytes : 0);
    out->total_bytes = out->parameter_bytes + out->gradient_bytes + out->optimizer_bytes +
                       out->activation_bytes + out->best_bytes + out->saved_bytes +
                       out->process_bytes;
    return SL_OK;
}

/* ---- What would fit --------------------------------------------------------------------- */

/* Of one run. */
typedef struct question {
    const sl_train_options *options;
    const sl_module *model;
    int processes;
    bool first;
    uint64_t usable_bytes;
} question;

/* Whether a run may have these options, and fits with them. */
static bool fits(const question *of, const sl_train_options *options)
{
    sl_host_plan plan;
    return sl_train_options_check(options) == SL_OK &&
           sl_plan_host(options, of->model, of->processes, of->first, &plan) == SL_OK &&
           (uint64_t)plan.total_bytes <= of->usable_bytes;
}

/* "A, B, C" */
typedef struct words {
    char text[512];
    size_t used;
} words;

__attribute__((format(printf, 2, 3))) static void add(words *to, const char *format, ...)
{
    va_list arguments;
    if (to->used > 0)
        to->used += (size_t)snprintf(to->text + to->used, sizeof to->text - to->used, ", ");
    va_start(arguments, format);
    to->used +=
        (size_t)vsnprintf(to->text + to->used, sizeof to->text - to->used, format, arguments);
    va_end(arguments);
}

/* Each adds what would fit by itself. */
static void ask_of_recomputing(const question *of, words *to)
{
    sl_train_options other = *of->options;
    other.recompute = SL_RECOMPUTE_ALWAYS;
    if (of->options->recompute != SL_RECOMPUTE_ALWAYS && fits(of, &other))
        add(to, "activations that are always recomputed");
    other = *of->options;
    other.schedule = SL_SCHEDULE_1F1B;
    if (of->options->schedule == SL_SCHEDULE_GPIPE && fits(of, &other))
        add(to, "the schedule 1f1b");
}

static void ask_of_batches(const question *of, words *to)
{
    sl_train_options other = *of->options;
    while (other.chunks <= other.batch_size / 2 && !fits(of, &other))
        other.chunks *= 2;
    if (fits(of, &other))
        add(to, "%d chunks", other.chunks);
    other = *of->options;
    while (!other.checkpoints.resume && other.batch_size > 1 && !fits(of, &other))
        other.batch_size /= 2;
    if (fits(of, &other))
        add(to, "a batch size of %" PRId64, other.batch_size);
}

static void ask_of_replicas(const question *of, words *to)
{
    sl_train_options other = *of->options;
    other.zero = true;
    if (!of->options->zero && sl_train_options_replicas(&other) > 1 && fits(of, &other))
        add(to, "an optimizer whose state is sharded");
    other = *of->options;
    other.devices = NULL; /* which are as many as replicas */
    other.stages = sli_layout_stages(of->options);
    other.replicas = sl_train_options_replicas(of->options);
    if (!other.checkpoints.resume) /* else the text stays cut as it is */
        other.shards = 0;
    if (of->processes > 1)
        return;
    while (other.replicas > 1 && !fits(of, &other))
        other.replicas--;
    if (fits(of, &other))
        add(to, "%d replica%s", other.replicas, other.replicas == 1 ? "" : "s");
}

static void ask_of_copies(const question *of, words *to)
{
    sl_train_options other = *of->options;
    other.epochs = 1;
    if (of->options->epochs > 1 && !other.checkpoints.resume && fits(of, &other))
        add(to, "one epoch, which keeps no copy of the best parameters");
    other = *of->options;
    other.checkpoints.directory = NULL;
    if (of->options->checkpoints.directory && fits(of, &other))
        add(to, "no checkpoints, which are copied before they are written");
}

/* ---- Refusing --------------------------------------------------------------------------- */

enum { AMOUNT_BYTES = 24 };

static const char *amount(int64_t bytes, char text[AMOUNT_BYTES])
{
    const double mib = 1 << 20, gib = 1 << 30;
    bool large = (double)bytes >= gib;
    snprintf(text, AMOUNT_BYTES, "%.2f %s", (double)bytes / (large ? gib : mib),
             large ? "GiB" : "MiB");
    return text;
}

static void list_parts(const sl_host_plan *plan, words *to)
{
    const struct {
        const char *name;
        int64_t bytes;
    } parts[] = {
        {"parameters", plan->parameter_bytes},
        {"gradients", plan->gradient_bytes},
        {"optimizer", plan->optimizer_bytes},
        {"activations and workspace", plan->activation_bytes},
        {"best parameters", plan->best_bytes},
        {"copies for checkpoints", plan->saved_bytes},
        {"the program", plan->process_bytes},
    };
    char text[AMOUNT_BYTES];
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].bytes > 0)
            add(to, "%s %s", parts[i].name, amount(parts[i].bytes, text));
}

sl_status sl_plan_check_memory(const sl_train_options *options, const sl_module *model,
                               int processes, bool first, uint64_t usable_bytes)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(model);
    const question asked = {options, model, processes, first, usable_bytes};
    sl_host_plan plan;
    words parts = {.used = 0}, ways = {.used = 0};
    char needed[AMOUNT_BYTES], usable[AMOUNT_BYTES];
    SL_TRY(sl_plan_host(options, model, processes, first, &plan));
    if ((uint64_t)plan.total_bytes <= usable_bytes)
        return SL_OK;
    list_parts(&plan, &parts);
    ask_of_recomputing(&asked, &ways);
    ask_of_batches(&asked, &ways);
    ask_of_replicas(&asked, &ways);
    ask_of_copies(&asked, &ways);
    return sl_error(SL_ERR_MEMORY, "the run needs %s of memory (%s), but this host has %s. %s%s%s",
                    amount(plan.total_bytes, needed), parts.text,
                    amount((int64_t)usable_bytes, usable), ways.used ? "It fits with one of: " : "",
                    ways.text,
                    ways.used ? ". force starts it anyway"
                              : "Make the model or the batch smaller, or set force");
}
