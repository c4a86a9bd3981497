/* Every number of the timelines is checked here, before it becomes an index or a coordinate. */
#include "report/history_pipeline.h"

#include "core/error.h"
#include "parallel/schedule/timeline.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_STAGES = 4096, MOST_MICROS = 1 << 20, MOST_SLICES = 1 << 10, MOST_REPLICAS = 4096 };
static const json_int_t most_microseconds = (json_int_t)1e15;
static const double most_link_seconds = 1e6;

/* The stages' ranks, of which each from 0 to the highest has a stage. */
static sl_status read_placement(const json_t *list, sli_history_pipeline *out)
{
    size_t stages = json_array_size(list);
    if (stages < 1 || stages > MOST_STAGES)
        return sl_error(SL_ERR_FORMAT, "placement must have 1 to %d ranks", MOST_STAGES);
    out->placement = calloc(stages, sizeof *out->placement);
    if (!out->placement)
        return sli_no_memory(NULL, "the ranks of %zu stages", stages);
    out->stages = (int)stages;
    for (size_t i = 0; i < stages; i++) {
        const json_t *rank = json_array_get(list, i);
        if (!json_is_integer(rank) || json_integer_value(rank) < 0 ||
            json_integer_value(rank) >= (json_int_t)stages)
            return sl_error(SL_ERR_FORMAT, "placement must have ranks from 0 to %zu", stages - 1);
        out->placement[i] = (int)json_integer_value(rank);
        if (out->placement[i] >= out->ranks)
            out->ranks = out->placement[i] + 1;
    }
    return SL_OK;
}

/* "2F0", or "2F0.1", whose slice *out has as `slices` until all are read. */
static bool read_action(const char *text, int stages, sl_action *out)
{
    char *end;
    *out = (sl_action){0};
    if (text[0] < '0' || text[0] > '9')
        return false;
    long stage = strtol(text, &end, 10);
    if (stage >= stages || !sli_action_kind_of(*end, &out->kind) || end[1] < '0' || end[1] > '9')
        return false;
    long micro = strtol(end + 1, &end, 10), slice = 0;
    if (*end == '.' && end[1] >= '0' && end[1] <= '9')
        slice = strtol(end + 1, &end, 10);
    if (micro > MOST_MICROS || slice >= MOST_SLICES || *end)
        return false;
    out->slices = (int)slice;
    out->stage = (int)stage;
    out->micro = (int)micro;
    return true;
}

static sl_status read_entry(json_t *entry, int stages, sl_timeline_entry *out)
{
    const char *action;
    json_int_t start, end;
    if (json_unpack(entry, "[sII!]", &action, &start, &end) != 0 ||
        !read_action(action, stages, &out->action) || start < 0 || end < start ||
        end > most_microseconds)
        return sl_error(SL_ERR_FORMAT,
                        "a timeline's entry must be an action and its start and end in "
                        "microseconds, as in [\"0F0\",0,250]");
    out->start = 1e-6 * (double)start;
    out->end = 1e-6 * (double)end;
    return SL_OK;
}

static sl_status read_entries(const json_t *list, const sli_history_pipeline *pipeline,
                              sl_timeline_entry **out)
{
    *out = calloc((size_t)pipeline->action_count, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "%d actions", pipeline->action_count);
    int slices = 1;
    for (int i = 0; i < pipeline->action_count; i++) {
        sl_action *action = &(*out)[i].action;
        SL_TRY(read_entry(json_array_get(list, (size_t)i), pipeline->stages, &(*out)[i]));
        slices = action->slices >= slices ? action->slices + 1 : slices;
    }
    for (int i = 0; i < pipeline->action_count; i++) {
        sl_action *action = &(*out)[i].action;
        action->micro = sli_slice_number(action->micro, action->slices, slices);
        action->slices = slices;
    }
    return SL_OK;
}

/* Of each stage but the last. */
static sl_status read_links(const json_t *list, sli_history_pipeline *out)
{
    size_t count = (size_t)out->stages - 1;
    if (!list)
        return SL_OK;
    if (json_array_size(list) != count)
        return sl_error(SL_ERR_FORMAT, "link_ms must have %zu numbers, got %zu", count,
                        json_array_size(list));
    out->links = calloc(count + 1, sizeof *out->links);
    if (!out->links)
        return sli_no_memory(NULL, "the links of %zu stages", count + 1);
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        out->links[i] = 1e-3 * json_number_value(value);
        if (!json_is_number(value) || out->links[i] < 0 || out->links[i] > most_link_seconds)
            return sl_error(SL_ERR_FORMAT, "link_ms must have numbers from 0 to %g",
                            1e3 * most_link_seconds);
    }
    return SL_OK;
}

/* Of each rank. */
static sl_status read_cores(const json_t *list, sli_history_pipeline *out)
{
    size_t count = (size_t)out->ranks;
    if (!list)
        return SL_OK;
    if (json_array_size(list) != count)
        return sl_error(SL_ERR_FORMAT, "cores must have %zu numbers, got %zu", count,
                        json_array_size(list));
    out->cores = calloc(count, sizeof *out->cores);
    if (!out->cores)
        return sli_no_memory(NULL, "the cores of %zu ranks", count);
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < INT32_MIN || number > INT32_MAX)
            return sl_error(SL_ERR_FORMAT, "cores must have whole numbers of 32 bits");
        out->cores[i] = (int)number;
    }
    return SL_OK;
}

static sl_status read_timelines(const json_t *record, sli_history_pipeline *out)
{
    const json_t *measured = json_object_get(record, "measured"),
                 *predicted = json_object_get(record, "predicted");
    size_t count = json_array_size(measured);
    if (!json_object_get(record, "placement"))
        return SL_OK;
    if (count < 1 || count > SL_RUN_LOG_MOST_ACTIONS || json_array_size(predicted) != count)
        return sl_error(SL_ERR_FORMAT,
                        "measured and predicted must have as many actions, 1 to %d, got %zu and "
                        "%zu",
                        SL_RUN_LOG_MOST_ACTIONS, count, json_array_size(predicted));
    out->action_count = (int)count;
    SL_TRY(read_placement(json_object_get(record, "placement"), out));
    SL_TRY(read_links(json_object_get(record, "link_ms"), out));
    SL_TRY(read_cores(json_object_get(record, "cores"), out));
    SL_TRY(read_entries(measured, out, &out->measured));
    return read_entries(predicted, out, &out->predicted);
}

sl_status sli_history_pipeline_read(const json_t *record, sli_history_pipeline *out)
{
    *out = (sli_history_pipeline){0};
    int64_t replica;
    SL_TRY(sli_record_integer(record, "replica", 0, MOST_REPLICAS - 1, &replica));
    out->replica = (int)replica;
    SL_TRY(sli_record_integer(record, "epoch", 1, INT64_MAX, &out->epoch));
    SL_TRY(sli_record_integer(record, "step", 1, INT64_MAX, &out->step));
    SL_TRY(sli_record_real(record, "time", 0, &out->time));
    out->ends_epoch =
        !json_is_false(json_object_get(record, "ends_epoch")); /* 0.1.0 has no other */
    SL_TRY(sli_record_real(record, "bubble_measured", 0, &out->bubble_measured));
    SL_TRY(sli_record_real(record, "bubble_predicted", 0, &out->bubble_predicted));
    sl_status status = read_timelines(record, out);
    if (status != SL_OK)
        sli_history_pipeline_clear(out);
    return status;
}

void sli_history_pipeline_clear(sli_history_pipeline *pipeline)
{
    free(pipeline->placement);
    free(pipeline->links);
    free(pipeline->cores);
    free(pipeline->measured);
    free(pipeline->predicted);
    *pipeline = (sli_history_pipeline){0};
}
