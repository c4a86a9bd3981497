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
    json_int_t count = processes ? json_integer_value(processes) : 1;
    if (count < 1 || count > SL_MAX_REPLICAS * SL_MAX_STAGES)
        return refuse_record(run, "no number of processes");
    run->meter.processes = (int)count;
    run->stages = (int)stages;
    run->pipeline_ranks = run->stages / (int)each;
    return SL_OK;
}

/* What stands in it for the measures. */
static void read_process(cli_logged_run *run)
{
    const json_t *record = run->history->run, *bytes = json_object_get(record, "process_bytes");
    double fraction = json_number_value(json_object_get(record, "one_stage"));
    run->meter.is_oversubscribed = json_is_true(json_object_get(record, "oversubscribed"));
    run->meter.process_bytes = json_integer_value(bytes) > 0 ? json_integer_value(bytes) : 0;
    run->meter.one_stage = fraction > 0 ? fraction : 0;
}

/* ---- Measures ------------------------------------------------------------------------------- */

/* In seconds; 0 where the log has none. */
static double median_of(const cli_logged_run *run, sli_step_field field)
{
    double median = sli_history_run_median(run->history, field);
    return isfinite(median) ? 1e-3 * median : 0;
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
    SL_TRY(sl_error_context(
        sl_timeline_utilization(
            pipeline->measured, pipeline->action_count,
            &(sl_schedule_options){.ranks = pipeline->ranks,
                                   .virtual_stages = pipeline->stages / pipeline->ranks,
                                   .placement = pipeline->placement,
                                   .slices = pipeline->measured[0].action.slices,
                                   .links = pipeline->links,
                                   .cores = pipeline->cores,
                                   .forward_only = count_forward_only(pipeline)},
            &utilization),
        "%s: ", run->history->name));
    sl_run_meter_set_stages(&run->meter, &utilization);
    sl_utilization_clear(&utilization);
    return SL_OK;
}

/* 0 where the log has none. */
static double number_of(double value)
{
    return isfinite(value) ? value : 0;
}

/* Whether an earlier stage has the device too, as all of a rank do. */
static bool is_named_before(const json_t *names, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (json_equal(json_array_get(names, i), json_array_get(names, index)))
            return true;
    return false;
}

/* Before an evaluation has ended, the names of the first replica's are all that is known, one for
 * each stage. */
static void read_devices(cli_logged_run *run)
{
    const sli_run_history *history = run->history;
    const json_t *names = json_object_get(history->run, "devices");
    for (size_t i = 0; i < history->memory_count; i++) {
        const sli_history_memory *memory = &history->memory[i];
        const double *peaks = memory->peak_bytes;
        sl_run_meter_add_device(&run->meter,
                                &(sl_run_device){
                                    .host = memory->host,
                                    .name = memory->device,
                                    .rank = memory->rank,
                                    .total = number_of(memory->peak_total_bytes),
                                    .parameters = number_of(peaks[SL_MEMORY_PARAMETERS]),
                                    .gradients = number_of(peaks[SL_MEMORY_GRADIENTS]),
                                    .optimizer = number_of(peaks[SL_MEMORY_OPTIMIZER]),
                                    .usable = number_of(memory->usable_bytes),
                                });
    }
    bool is_alone = run->meter.processes == 1 && history->memory_count == 0;
    for (size_t i = 0; is_alone && i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (!is_named_before(names, i))
            sl_run_meter_add_device(&run->meter,
                                    &(sl_run_device){.host = "", .name = name ? name : "?"});
    }
}

static sl_status read_run(cli_logged_run *run)
{
    const sl_run_step_times medians = {median_of(run, SLI_STEP_MS),
                                       median_of(run, SLI_STEP_DATA_MS),
                                       median_of(run, SLI_STEP_REDUCE_MS),
                                       median_of(run, SLI_STEP_OPTIMIZER_MS)};
    if (!(medians.seconds > medians.data_seconds))
        return sl_error(SL_ERR_NOT_FOUND, "%s: it has no step since the run last began",
                        run->history->name);
    sl_run_meter_add_step(&run->meter, &medians);
    SL_TRY(read_stages(run));
    read_devices(run);
    return sl_error_context(sl_run_meter_measures(&run->meter, &run->measures),
                            "%s: ", run->history->name);
}

sl_status cli_logged_run_read(const char *path, cli_logged_run *out)
{
    *out = (cli_logged_run){0};
    SL_TRY(sli_run_history_read(path, &out->history));
    SL_TRY(read_layout(out));
    read_process(out);
    return read_run(out);
}

void cli_logged_run_clear(cli_logged_run *run)
{
    sli_run_history_destroy(&run->history);
}
