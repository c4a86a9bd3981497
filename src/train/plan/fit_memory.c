/* Refuses a run that does not fit into its host's memory, and says which changes would make it fit.
 */
#include "train/plan/plan.h"

#include "core/error.h"
#include "core/memory.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A run, and the memory that it is to fit into. */
typedef struct run_demand {
    sli_plan_inputs inputs;
    const sl_plan *plan;
    const sl_module *model;
    uint64_t usable_bytes;
    char changes[512]; /* "A, B, C", each of which makes the run fit */
} run_demand;

/* To a list in `text`, whose end may be cut. */
static void append(char *text, size_t bytes, const char *item)
{
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", item);
}

/* Whether a run may have these options, and fits with them. */
static bool run_fits(const run_demand *demand, const sl_train_options *options)
{
    sli_plan_inputs inputs = demand->inputs;
    sl_plan *plan;
    inputs.options = options;
    if (sli_train_options_check_values(options) != SL_OK ||
        sli_plan_layout(&inputs, &plan) != SL_OK)
        return false;
    bool fits = sli_plan_cut(plan, demand->model, NULL) == SL_OK &&
                (uint64_t)plan->host.total_bytes <= demand->usable_bytes;
    sl_plan_destroy(&plan);
    return fits;
}

/* Adds a change to those that make the run fit, if it does. */
__attribute__((format(printf, 3, 4))) static void
try_change(run_demand *demand, const sl_train_options *changed, const char *format, ...)
{
    char text[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (run_fits(demand, changed))
        append(demand->changes, sizeof demand->changes, text);
}

static void try_pipeline(run_demand *demand)
{
    const sl_train_options *given = demand->inputs.options;
    sl_train_options changed = *given;
    changed.recompute = SL_RECOMPUTE_ALWAYS;
    if (given->recompute != SL_RECOMPUTE_ALWAYS)
        try_change(demand, &changed, "activations recomputed always");
    for (int i = 0; sl_schedule_names[i]; i++) {
        changed = *given;
        changed.schedule = sl_schedule_names[i];
        changed.table = NULL;
        if (strcmp(demand->plan->options.schedule, changed.schedule) != 0)
            try_change(demand, &changed, "the schedule %s", changed.schedule);
    }
    changed = *given;
    changed.chunks = demand->plan->options.chunks;
    while (changed.chunks <= changed.batch_size / 2 && !run_fits(demand, &changed))
        changed.chunks *= 2;
    try_change(demand, &changed, "%d chunks", changed.chunks);
}

/* A run that resumes keeps its checkpoint's batch size. */
static void try_replicas(run_demand *demand)
{
    const sl_train_options *given = demand->inputs.options;
    sl_train_options changed = *given;
    while (!changed.checkpoints.resume && changed.batch_size > 1 && !run_fits(demand, &changed))
        changed.batch_size /= 2;
    try_change(demand, &changed, "a batch size of %" PRId64, changed.batch_size);
    changed = *given;
    changed.zero = true;
    if (!given->zero && demand->plan->options.replicas > 1)
        try_change(demand, &changed, "zero, which shards the optimizer's state");
    if (demand->plan->processes)
        return;
    changed = *given;
    changed.devices = NULL; /* there must be one for each stage of each replica */
    changed.pipeline_ranks = demand->plan->options.pipeline_ranks;
    changed.replicas = demand->plan->options.replicas;
    while (changed.replicas > 1 && !run_fits(demand, &changed))
        changed.replicas--;
    try_change(demand, &changed, "%d replica%s", changed.replicas,
               changed.replicas == 1 ? "" : "s");
}

static void try_copies(run_demand *demand)
{
    const sl_train_options *given = demand->inputs.options;
    sl_train_options changed = *given;
    changed.epochs = 1;
    if (given->epochs > 1 && given->eval_every == 0 && !given->checkpoints.resume)
        try_change(demand, &changed, "one epoch, which keeps no copy of the best parameters");
    changed = *given;
    changed.checkpoints.directory = NULL;
    if (given->checkpoints.directory)
        try_change(demand, &changed, "no checkpoints, which are copied before they are written");
}

sl_status sli_plan_check_memory(const sli_plan_inputs *inputs, const sl_plan *plan,
                                const sl_module *model, uint64_t usable_bytes)
{
    run_demand demand = {*inputs, plan, model, usable_bytes, ""};
    const sl_host_plan *host = &plan->host;
    char needed[SLI_BYTES_TEXT_SIZE], usable[SLI_BYTES_TEXT_SIZE], uses[SL_HOST_PLAN_BYTES];
    if ((uint64_t)host->total_bytes <= usable_bytes)
        return SL_OK;
    try_pipeline(&demand);
    try_replicas(&demand);
    try_copies(&demand);
    bool can_fit = *demand.changes != '\0';
    return sl_error(SL_ERR_MEMORY, "the run needs %s of memory (%s), but this host has %s. %s%s%s",
                    sli_bytes_text(host->total_bytes, needed), sl_host_plan_text(host, uses),
                    sli_bytes_text((int64_t)usable_bytes, usable),
                    can_fit ? "It fits with one of: " : "", demand.changes,
                    can_fit ? ". force starts it anyway"
                            : "Make the model or the batch smaller, or set force");
}

sl_status sl_plan_check_memory(const sl_train_options *options, const sl_train_launch *launch,
                               sl_module *model, uint64_t usable_bytes)
{
    static const sl_train_launch alone;
    sl_plan *plan;
    SLI_CHECK_NOT_NULL(model);
    SL_TRY(sl_plan_create(options, launch, model, NULL, &plan));
    const sli_plan_inputs inputs = {.options = options, .launch = launch ? launch : &alone};
    sl_status status = sli_plan_check_memory(&inputs, plan, model, usable_bytes);
    sl_plan_destroy(&plan);
    return status;
}
