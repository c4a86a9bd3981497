/* A run as its log tells it: its layout, and what it has measured of itself. */
#include "cli/cli.h"
#include "report/history.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Its layout ----------------------------------------------------------------------------- */

static sl_status refuse_record(const cli_logged_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static sl_status refuse_record(const cli_logged_run *run, const char *format, ...)
{
    char why[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    return sl_error(SL_ERR_FORMAT, "%s: the record \"run\" has %s", run->history->name, why);
}

/* Its stages and pipeline ranks, so many as a run can have. */
static sl_status read_layout(cli_logged_run *run)
{
    const json_t *record = run->history->run, *partition = json_object_get(record, "partition"),
                 *virtual_stages = json_object_get(record, "virtual"),
                 *processes = json_object_get(record, "processes");
    size_t stages = json_array_size(partition);
    json_int_t each = json_is_integer(virtual_stages) ? json_integer_value(virtual_stages) : 1;
    if (stages == 0)
        return refuse_record(run, "no partition of the modules into stages");
    if (stages > SL_MAX_STAGES)
        return refuse_record(run, "a partition of %zu stages, there can be at most %d", stages,
                             SL_MAX_STAGES);
    for (size_t s = 0; s < stages; s++) {
        json_int_t modules = json_integer_value(json_array_get(partition, s));
        if (modules < 1 || modules > INT32_MAX)
            return refuse_record(run, "a partition with %lld modules in stage %zu",
                                 (long long)modules, s);
    }
    if (each < 1 || (json_int_t)stages % each != 0)
        return refuse_record(run, "%zu stages, which cannot be %lld of each pipeline rank", stages,
                             (long long)each);
    if (!json_is_integer(json_object_get(record, "replicas")))
        return refuse_record(run, "no replicas");
    run->processes = processes ? json_integer_value(processes) : 1;
    if (run->processes < 1)
        return refuse_record(run, "no number of processes");
    run->stages = (int)stages;
    run->pipeline_ranks = run->stages / (int)each;
    return SL_OK;
}

static sl_status check_devices(const cli_logged_run *run)
{
    const json_t *record = run->history->run, *devices = json_object_get(record, "devices");
    bool share_all = true;
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const char *name = json_string_value(json_array_get(devices, i));
        if (!name || strncmp(name, "cpu", strlen("cpu")) != 0)
            return sl_error(SL_ERR_UNSUPPORTED,
                            "%s: the steps of a run on CPUs alone can be planned by its log, not "
                            "of one on %s",
                            run->history->name, name ? name : "devices without a name");
        share_all &= strcmp(name, "cpu") == 0;
    }
    return share_all || !json_is_true(json_object_get(record, "oversubscribed"))
               ? SL_OK
               : sl_error(SL_ERR_UNSUPPORTED,
                          "%s: its devices share cores, so its times say nothing of other layouts",
                          run->history->name);
}

/* ---- Measures ------------------------------------------------------------------------------- */

/* In seconds; 0 where the log has none. */
static double median_of(const cli_logged_run *run, sli_step_field field)
{
    double median = sli_history_run_median(run->history, field);
    return isfinite(median) ? 1e-3 * median : 0;
}

/* Ranks whose devices have one name share its cores. Returns whether any do. */
static bool find_cores(const cli_logged_run *run, const sli_history_pipeline *pipeline, int *cores)
{
    const json_t *devices = json_object_get(run->history->run, "devices");
    const char *names[SL_MAX_STAGES] = {NULL};
    bool shares = false;
    for (int s = 0; s < pipeline->stages; s++)
        names[pipeline->placement[s]] = json_string_value(json_array_get(devices, (size_t)s));
    for (int rank = 0; rank < pipeline->ranks; rank++) {
        cores[rank] = rank;
        for (int other = rank - 1; other >= 0; other--)
            if (names[rank] && names[other] && strcmp(names[rank], names[other]) == 0)
                cores[rank] = other;
        shares |= cores[rank] != rank;
    }
    return shares;
}

/* So many first stages have no backward. */
static int count_forward_only(const sli_history_pipeline *pipeline)
{
    int first = pipeline->stages;
    for (int i = 0; i < pipeline->action_count; i++) {
        sl_action action = pipeline->measured[i].action;
        if (action.kind != SL_ACTION_FORWARD && action.kind != SL_ACTION_RECOMPUTE &&
            action.kind != SL_ACTION_HEAD_FORWARD && action.kind != SL_ACTION_HEAD_BACKWARD &&
            action.stage < first)
            first = action.stage;
    }
    return first;
}

static sl_status read_stages(cli_logged_run *run)
{
    const sli_history_pipeline *pipeline = sli_history_first_pipeline(run->history);
    int cores[SL_MAX_STAGES];
    sl_utilization utilization;
    if (run->stages == 1)
        return SL_OK;
    if (!pipeline || pipeline->stages != run->stages)
        return sl_error(SL_ERR_NOT_FOUND,
                        "%s: it has no timeline of a step: no epoch has ended, or a step has more "
                        "than %d actions",
                        run->history->name, SL_RUN_LOG_MOST_ACTIONS);
    if (pipeline->ranks != run->pipeline_ranks)
        return sl_error(SL_ERR_FORMAT, "%s: its timeline has %d pipeline ranks, the run has %d",
                        run->history->name, pipeline->ranks, run->pipeline_ranks);
    bool shares = find_cores(run, pipeline, cores);
    SL_TRY(sl_error_context(
        sl_timeline_utilization(
            pipeline->measured, pipeline->action_count,
            &(sl_schedule_options){.ranks = pipeline->ranks,
                                   .virtual_stages = pipeline->stages / pipeline->ranks,
                                   .placement = pipeline->placement,
                                   .slices = pipeline->measured[0].action.slices,
                                   .cores = shares ? cores : NULL,
                                   .forward_only = count_forward_only(pipeline)},
            &utilization),
        "%s: ", run->history->name));
    sl_run_meter_set_stages(&run->meter, &utilization);
    sl_utilization_clear(&utilization);
    return !run->meter.is_mixed
               ? SL_OK
               : sl_error(SL_ERR_UNSUPPORTED, "%s: only some of the pipeline ranks share cores",
                          run->history->name);
}

static sl_status read_memory(cli_logged_run *run)
{
    const sli_run_history *history = run->history;
    for (size_t i = 0; i < history->memory_count; i++) {
        const sli_history_memory *memory = &history->memory[i];
        if (strcmp(memory->host, history->memory[0].host) != 0)
            return sl_error(SL_ERR_UNSUPPORTED,
                            "%s: a run on one host can be planned by its log, not one on %s and %s",
                            history->name, history->memory[0].host, memory->host);
        sl_run_meter_add_memory(&run->meter, memory->peak_total_bytes,
                                memory->peak_bytes[SL_MEMORY_PARAMETERS],
                                memory->peak_bytes[SL_MEMORY_GRADIENTS],
                                memory->peak_bytes[SL_MEMORY_OPTIMIZER]);
    }
    return SL_OK;
}

static sl_status read_run(cli_logged_run *run)
{
    const json_t *one_stage = json_object_get(run->history->run, "one_stage");
    const sl_run_step_times medians = {median_of(run, SLI_STEP_MS),
                                       median_of(run, SLI_STEP_DATA_MS),
                                       median_of(run, SLI_STEP_REDUCE_MS),
                                       median_of(run, SLI_STEP_OPTIMIZER_MS)};
    if (!(medians.seconds > medians.data_seconds))
        return sl_error(SL_ERR_NOT_FOUND, "%s: it has no step since the run last began",
                        run->history->name);
    sl_run_meter_add_step(&run->meter, &medians);
    SL_TRY(read_stages(run));
    SL_TRY(read_memory(run));
    run->measures =
        sl_run_meter_measures(&run->meter,
                              json_is_number(one_stage) ? json_number_value(one_stage) : 0);
    return SL_OK;
}

sl_status cli_logged_run_read(const char *path, cli_logged_run *out)
{
    *out = (cli_logged_run){0};
    SL_TRY(sli_run_history_read(path, &out->history));
    SL_TRY(read_layout(out));
    SL_TRY(check_devices(out));
    return read_run(out);
}

void cli_logged_run_clear(cli_logged_run *run)
{
    sli_run_history_destroy(&run->history);
}
