/* What to change in a run, by what it has measured of itself: said at its end, and by sluice plan
 * --from. */
#include "cli/cli.h"
#include "sluice/app/plan.h"

#include <stdlib.h>
#include <string.h>

char *cli_balance_text(const int *balance, int stages)
{
    enum { NUMBER = 12 };
    size_t bytes = (size_t)stages * NUMBER + 1, used = 0;
    char *text = cli_allocate(bytes, 1);
    for (int s = 0; s < stages; s++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%d", s > 0 ? "," : "", balance[s]);
    return text;
}

/* ---- A change as options -------------------------------------------------------------------- */

/* The option that comes first is the thing that changes; what it replaces, `was`, stands for all.
 */
static void add_option(cli_change *out, const char *name, const char *value, const char *was)
{
    char *text = out->options.text;
    size_t used = strlen(text);
    snprintf(text + used, sizeof out->options.text - used, "%s--%s %s", used > 0 ? " " : "", name,
             value);
    if (out->count++ == 0)
        snprintf(out->replaced.text, sizeof out->replaced.text, "--%s %s", name, was);
}

static void add_number(cli_change *out, const char *name, int number, int was)
{
    char texts[2][16];
    snprintf(texts[0], sizeof texts[0], "%d", number);
    snprintf(texts[1], sizeof texts[1], "%d", was);
    add_option(out, name, texts[0], texts[1]);
}

static void add_balance(cli_change *out, const sl_train_options *options,
                        const sl_train_options *run)
{
    char *balance = cli_balance_text(options->balance, options->balance_count),
         *was = cli_balance_text(run->balance, run->balance_count);
    add_option(out, "balance", balance, was);
    free(balance);
    free(was);
}

/* Of one pipeline rank: a replica alone has all cores. */
static void add_devices(cli_change *out, const sl_train_options *options)
{
    char names[sizeof out->options.text];
    size_t used = (size_t)snprintf(names, sizeof names, "cpu%s", options->replicas > 1 ? ":0" : "");
    for (int replica = 1; replica < options->replicas && used < sizeof names; replica++)
        used += (size_t)snprintf(names + used, sizeof names - used, ",cpu:%d", replica);
    add_option(out, "devices", names, "");
}

/* 0: the schedule's own. */
static int virtual_stages(const sl_train_options *options)
{
    int own = sl_schedule_virtual_stages(options->schedule);
    return options->virtual_stages > 0 ? options->virtual_stages : own > 0 ? own : 1;
}

static bool is_other_text(const char *a, const char *b)
{
    return a && (!b || strcmp(a, b) != 0);
}

/* Another number of ranks has another number of chunks, where none is given. */
cli_change cli_describe_change(const cli_changed_line *line, const sl_found_plan *plan)
{
    cli_change out = {.count = 0};
    const sl_train_options *run = line->run, *changed = &plan->options;
    bool is_one_rank = changed->pipeline_ranks != run->pipeline_ranks;
    if (is_one_rank)
        add_number(&out, "pp", changed->pipeline_ranks, run->pipeline_ranks);
    if (is_one_rank && line->has_devices)
        add_devices(&out, changed);
    if (strcmp(changed->schedule, run->schedule) != 0)
        add_option(&out, "schedule", changed->schedule, run->schedule);
    if (virtual_stages(changed) != virtual_stages(run))
        add_number(&out, "virtual", virtual_stages(changed), virtual_stages(run));
    if (is_other_text(changed->placement, run->placement))
        add_option(&out, "placement", changed->placement, run->placement ? run->placement : "");
    if (is_one_rank || changed->chunks != run->chunks)
        add_number(&out, "chunks", changed->chunks, run->chunks);
    if (changed->recompute != run->recompute)
        add_option(&out, "recompute", sl_recompute_name(changed->recompute),
                   sl_recompute_name(run->recompute));
    bool is_other_cut = memcmp(changed->balance, run->balance,
                               (size_t)changed->balance_count * sizeof *run->balance) != 0;
    if (is_one_rank ? line->has_balance : is_other_cut)
        add_balance(&out, changed, run);
    if (out.count == 1) {
        const char *value = strchr(out.replaced.text, ' ') + 1;
        memmove(out.replaced.text, value, strlen(value) + 1);
    }
    return out;
}

/* ---- While a run goes on -------------------------------------------------------------------- */

static sl_status add_step(void *context, const sl_step_info *step)
{
    cli_run_meter *meter = context;
    if (meter->is_warm)
        sl_run_meter_add_step(&meter->meter,
                              &(sl_run_step_times){step->seconds, step->data_seconds,
                                                   step->reduce_seconds, step->optimizer_seconds});
    meter->is_warm = true;
    return SL_OK;
}

static sl_status keep_pipeline(void *context, const sl_pipeline_info *info)
{
    cli_run_meter *meter = context;
    if (info->ends_epoch && info->utilization && info->utilization->stages <= SL_MAX_STAGES)
        sl_run_meter_set_stages(&meter->meter, info->utilization);
    return SL_OK;
}

/* ---- At its end ----------------------------------------------------------------------------- */

static void add_devices_of(sl_run_meter *meter, const sl_run_info *info)
{
    meter->is_oversubscribed = info->oversubscribed;
    meter->processes = info->processes;
    meter->process_bytes = info->process_bytes;
    meter->one_stage = info->one_stage;
    for (int i = 0; i < info->rank_count; i++) {
        const sl_rank_stats *rank = &info->ranks[i];
        const uint64_t *peaks = rank->stats.peak_bytes;
        sl_run_meter_add_device(meter, &(sl_run_device){
                                           .host = rank->host,
                                           .name = rank->device,
                                           .rank = rank->rank,
                                           .total = (double)rank->stats.peak_total_bytes,
                                           .parameters = (double)peaks[SL_MEMORY_PARAMETERS],
                                           .gradients = (double)peaks[SL_MEMORY_GRADIENTS],
                                           .optimizer = (double)peaks[SL_MEMORY_OPTIMIZER],
                                           .usable = (double)rank->stats.usable_bytes,
                                       });
    }
}

enum { LEAST_STEPS = 5 };

/* Whether what was measured says how other layouts would be. */
static bool can_tell(const sl_run_meter *meter, const sl_run_info *info)
{
    return meter->steps + 1 >= LEAST_STEPS && !info->options->task &&
           (info->stage_count == 1 || meter->has_stages);
}

/* "9.4 ms with --balance 3,3 instead of 5,1 (1.96 times as fast), …"; empty where nothing gains
 * enough. */
static void print_changes(const cli_changed_line *line, const sl_found_plan *own,
                          const sl_found_plan *changes, int count, char *text, size_t bytes)
{
    const double least_gain = 1.1;
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < count && used < bytes; i++) {
        double gain = own->costs.seconds / changes[i].costs.seconds;
        if (gain <= least_gain)
            continue;
        const cli_change change = cli_describe_change(line, &changes[i]);
        used += (size_t)snprintf(text + used, bytes - used,
                                 "%s%.1f ms with %s instead of %s (%.2f times as fast)",
                                 used > 0 ? ", " : "", 1e3 * changes[i].costs.seconds,
                                 change.options.text, change.replaced.text, gain);
    }
}

__attribute__((format(printf, 2, 3))) static void print_line(const cli_run_meter *meter,
                                                             const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    cli_screen_print(meter->screen, 0, format, arguments);
    va_end(arguments);
}

/* A run that cannot be planned is no error. */
static sl_status print_hint(void *context, const sl_run_info *info, const sl_run_result *result)
{
    cli_run_meter *meter = context;
    char text[SL_PLAN_CHANGES * sizeof(cli_change)];
    int count;
    (void)result;
    if (!can_tell(&meter->meter, info))
        return SL_OK;
    sl_train_options run = *info->options;
    const cli_changed_line line = {.run = &run,
                                   .has_balance = run.balance_kind == SL_BALANCE_EXPLICIT,
                                   .has_devices = run.devices != NULL};
    run.balance_kind = SL_BALANCE_EXPLICIT;
    run.balance_count = info->stage_count;
    for (int s = 0; s < info->stage_count; s++)
        run.balance[s] = info->stages[s].count;
    add_devices_of(&meter->meter, info);
    sl_run_measures measures;
    sl_found_plan *plans = cli_allocate(SL_PLAN_CHANGES + 1, sizeof *plans), *own = plans,
                  *changes = plans + 1;
    if (sl_run_meter_measures(&meter->meter, &measures) == SL_OK &&
        sl_plan_find_changes(&run, &measures, own, changes, &count) == SL_OK) {
        print_changes(&line, own, changes, count, text, sizeof text);
        if (*text)
            print_line(meter, "By what this run measured, a step of %.1f ms would take %s",
                       1e3 * measures.step_seconds, text);
    }
    free(plans);
    return SL_OK;
}

sl_reporter cli_run_meter_reporter(cli_run_meter *meter)
{
    return (sl_reporter){.context = meter,
                         .step = add_step,
                         .pipeline = keep_pipeline,
                         .finished = print_hint};
}
