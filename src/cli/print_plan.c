/* A run's plan, as train --print-plan and model show it. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void cli_plan_print_stages(const sl_plan *plan, int replica)
{
    char modules[32];
    int ranks = plan->options.pipeline_ranks;
    if (plan->options.replicas > 1)
        printf("Replica %d:\n", replica);
    printf("%-6s %-10s %-10s %14s %12s %12s %12s %12s %12s\n", "stage", "device", "modules",
           "elements", "parameters", "gradients", "optimizer", "activations", "workspace");
    for (int s = 0; s < plan->stages; s++) {
        const sl_stage_plan *stage = &plan->stage[s];
        snprintf(modules, sizeof modules, "%d-%d", stage->first, stage->first + stage->count - 1);
        printf("%-6d %-10s %-10s %14s %12s %12s %12s %12s %12s\n", s,
               plan->devices[replica * ranks + stage->rank].name, modules,
               cli_count_text(stage->parameter_elements).text,
               cli_bytes_text(stage->parameter_bytes).text,
               cli_bytes_text(stage->gradient_bytes).text,
               cli_bytes_text(stage->optimizer_bytes).text,
               cli_bytes_text(stage->activation_bytes).text,
               cli_bytes_text(stage->workspace_bytes + stage->cached_bytes).text);
    }
    printf("\n");
}

/* Prints what was decided, and by whom. `option` decided it unless the line does not have it, and a
 * preset has. */
__attribute__((format(printf, 4, 5))) static void
print_decision(const cli_line *line, const char *option, sl_decider by, const char *format, ...)
{
    static const char *const deciders[] = {"default",    "given",  "launch",
                                           "checkpoint", "search", "profile"};
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bool is_preset = by == SL_BY_OPTIONS && !cli_line_value(line, option);
    printf("%-12s %-50s %s\n", option, text, is_preset ? "preset" : deciders[by]);
}

static void print_layout(const cli_line *line, const sl_plan *plan)
{
    const sl_train_options *options = &plan->options;
    const char *balances[] = {"layers", "auto", "as given"};
    print_decision(line, "dp", plan->by.replicas, "%d replica%s", options->replicas,
                   options->replicas == 1 ? "" : "s");
    print_decision(line, "pp", plan->by.pipeline_ranks, "%d pipeline rank%s of each, %d stage%s",
                   options->pipeline_ranks, options->pipeline_ranks == 1 ? "" : "s", plan->stages,
                   plan->stages == 1 ? "" : "s");
    print_decision(line, "balance", plan->by.balance, "%s", balances[options->balance_kind]);
    print_decision(line, "placement", plan->by.placement, "%s",
                   options->placement ? options->placement : "the schedule's");
    print_decision(line, "devices", plan->by.devices, "%s", plan->device_names);
    print_decision(line, "schedule", SL_BY_OPTIONS, "%s, recompute %s", options->schedule,
                   sl_recompute_name(options->recompute));
    print_decision(line, "chunks", plan->by.chunks, "%d micro-batch%s of an accumulation step",
                   options->chunks, options->chunks == 1 ? "" : "es");
    if (options->slices > 1)
        print_decision(line, "slices", SL_BY_OPTIONS, "%d of each micro-batch", options->slices);
    print_decision(line, "accumulate", SL_BY_OPTIONS, "%d: batches of %d micro-batch%s",
                   options->accumulate, plan->micros, plan->micros == 1 ? "" : "es");
    print_decision(line, "shards", plan->by.shards, "%d of %" PRId64 " rows in a batch",
                   options->shards, options->batch_size);
    print_decision(line, "lr", plan->by.lr, "%g", options->lr.lr);
}

/* "0 2" */
static void list_stages(const sl_plan *plan, int pipeline_rank, char *text, size_t bytes)
{
    size_t used = 0;
    *text = '\0';
    for (int s = 0; s < plan->stages && used < bytes; s++)
        if (plan->stage[s].rank == pipeline_rank)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? " " : "", s);
}

static void print_ranks(const sl_plan *plan)
{
    char stages[64];
    int pipeline_ranks = plan->options.pipeline_ranks;
    printf("%-5s %-8s %-8s %-14s %-10s %-12s %s\n", "rank", "process", "replica", "pipeline rank",
           "stages", "device", "threads");
    for (int i = 0; i < plan->options.replicas * pipeline_ranks; i++) {
        int rank = plan->devices[i].rank;
        list_stages(plan, i % pipeline_ranks, stages, sizeof stages);
        printf("%-5d %-8d %-8d %-14d %-10s %-12s %d\n", rank, plan->processes ? rank : 0,
               i / pipeline_ranks, i % pipeline_ranks, stages, plan->devices[i].name,
               plan->devices[i].threads);
    }
    printf("\n");
}

void cli_plan_print(const cli_line *line, const sl_plan *plan)
{
    char uses[SL_HOST_PLAN_BYTES];
    if (plan->resumes)
        print_decision(line, "resume",
                       cli_line_value(line, "resume") ? SL_BY_OPTIONS : SL_BY_LAUNCH,
                       "after step %" PRId64 ", from %s", plan->resumes_step, plan->resumes);
    print_layout(line, plan);
    printf("\n");
    if (plan->total_parameters == 0) {
        printf("This layout is for %d process%s, fewer than there are.\n", plan->ranks,
               plan->ranks == 1 ? "" : "es");
        return;
    }
    print_ranks(plan);
    cli_plan_print_stages(plan, 0);
    printf("This host needs %s: %s.\nIt has %s.\n", cli_bytes_text(plan->host.total_bytes).text,
           sl_host_plan_text(&plan->host, uses), cli_bytes_text((int64_t)sl_usable_memory()).text);
}
