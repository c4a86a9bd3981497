/* Reading a run log. Every line is a record by itself, so a log is read line by line; what a record
 * must have is checked where it is added to the history. */
#include "report/history.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "report/history_pipeline.h"
#include "report/history_sources.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LINE_BYTES = 1 << 20, MOST_RECORDS = 1 << 25 /* of a kind */ };

const char *const sli_step_keys[SLI_STEP_FIELDS] = {"loss",         "targets",      "padding",
                                                    "grad_norm",    "lr",           "ms",
                                                    "tokens_per_s", "flops_per_s",  "mfu",
                                                    "data_ms",      "optimizer_ms", "reduce_ms",
                                                    "waiting_ms",   "time",         "loss_z",
                                                    "grad_norm_z"};

/* ---- Fields -------------------------------------------------------------------------------- */

sl_status sli_record_real(const json_t *record, const char *key, double lowest, double *out)
{
    const json_t *value = json_object_get(record, key);
    *out = NAN;
    if (!value || json_is_null(value))
        return SL_OK;
    if (!json_is_number(value) || json_number_value(value) < lowest)
        return sl_error(SL_ERR_FORMAT, "%s must be a number%s or null", key,
                        lowest == 0 ? " of 0 or more" : "");
    *out = json_number_value(value);
    return SL_OK;
}

sl_status sli_record_integer(const json_t *record, const char *key, int64_t lowest, int64_t highest,
                             int64_t *out)
{
    const json_t *value = json_object_get(record, key);
    *out = lowest;
    if (!json_is_integer(value) || json_integer_value(value) < lowest ||
        json_integer_value(value) > highest)
        return sl_error(SL_ERR_FORMAT, "%s must be a whole number from %" PRId64 " to %" PRId64,
                        key, lowest, highest);
    *out = json_integer_value(value);
    return SL_OK;
}

/* ---- Records ------------------------------------------------------------------------------- */

static int64_t last_step(const sli_run_history *history)
{
    return history->step_count > 0 ? history->steps[history->step_count - 1].step : 0;
}

static void tell(const sli_run_history *history, sli_record_kind kind, const void *record)
{
    if (history->added)
        history->added(history->added_context, kind, record);
}

static bool has_other_stages(const sli_run_history *history, const json_t *record)
{
    static const char *const names[] = {"partition", "devices"};
    for (size_t i = 0; history->run && i < sizeof names / sizeof *names; i++) {
        json_t *before = json_object_get(history->run, names[i]);
        if (before && !json_equal(before, json_object_get(record, names[i])))
            return true;
    }
    return false;
}

/* A run that resumes may have fewer replicas, other stages and other ranks than the one before it.
 */
static void remove_ranks(sli_run_history *history, const json_t *record)
{
    const json_t *replicas = json_object_get(record, "replicas");
    bool is_other = has_other_stages(history, record);
    while ((is_other || json_is_integer(replicas)) && history->pipeline_count > 0) {
        sli_history_pipeline *last = &history->pipelines[history->pipeline_count - 1];
        if (!is_other && last->replica < json_integer_value(replicas))
            break;
        sli_history_pipeline_clear(last);
        history->pipeline_count--;
    }
    history->memory_count = 0;
}

static sl_status add_run(sli_run_history *history, json_t *record)
{
    SL_TRY(sli_history_sources_begin(history, record));
    remove_ranks(history, record);
    json_decref(history->run);
    history->run = json_incref(record);
    history->ended = false;
    history->run_step = 0;
    tell(history, SLI_RECORD_RUN, NULL);
    return SL_OK;
}

/* Removes samples from number `first` on, at most `count`. */
static void remove_samples(sli_run_history *history, size_t first, size_t count)
{
    sli_history_sample *samples = history->samples;
    for (size_t i = first; i < first + count; i++)
        free(samples[i].text);
    history->sample_count -= count;
    memmove(samples + first, samples + first + count,
            (history->sample_count - first) * sizeof *samples);
}

static void remove_samples_from(sli_run_history *history, int64_t step)
{
    while (history->sample_count > 0 && history->samples[history->sample_count - 1].step >= step)
        remove_samples(history, history->sample_count - 1, 1);
}

/* A run that resumes repeats steps: what came after the step before them does not count. */
static void remove_from(sli_run_history *history, int64_t step)
{
    remove_samples_from(history, step);
    while (history->step_count > 0 && last_step(history) >= step)
        history->step_count--;
    while (history->eval_count > 0 && history->evals[history->eval_count - 1].step >= step)
        history->eval_count--;
}

/* Where there are as many as there may be, leaves out every second of the older half. */
static void thin(const sli_run_history *history, void *records, size_t bytes, size_t *count)
{
    char *first = records;
    size_t half = *count / 2, kept = (half + 1) / 2;
    if (history->most_records == 0 || *count < history->most_records)
        return;
    for (size_t i = 1; i < kept; i++)
        memcpy(first + i * bytes, first + 2 * i * bytes, bytes);
    memmove(first + kept * bytes, first + half * bytes, (*count - half) * bytes);
    *count -= half - kept;
}

static sl_status add_step(sli_run_history *history, json_t *record)
{
    sli_history_step step;
    SL_TRY(sli_record_integer(record, "epoch", 1, INT64_MAX, &step.epoch));
    SL_TRY(sli_record_integer(record, "batch", 1, INT64_MAX, &step.batch));
    SL_TRY(sli_record_integer(record, "step", 1, INT64_MAX, &step.step));
    for (int field = 0; field < SLI_STEP_FIELDS; field++) {
        bool any_sign = field == SLI_STEP_LOSS || field >= SLI_STEP_LOSS_Z;
        SL_TRY(sli_record_real(record, sli_step_keys[field], any_sign ? -INFINITY : 0,
                               &step.values[field]));
    }
    SL_TRY(sli_history_sources_add_step(history, record, step.step));
    remove_from(history, step.step);
    thin(history, history->steps, sizeof step, &history->step_count);
    SL_TRY(sli_array_reserve(&history->steps, &history->step_room, history->step_count + 1,
                             sizeof step, MOST_RECORDS, "steps"));
    history->steps[history->step_count++] = step;
    if (history->run_step == 0 || step.step < history->run_step)
        history->run_step = step.step;
    tell(history, SLI_RECORD_STEP, &step);
    return SL_OK;
}

/* Whether `a` is of a later step than `b`, or of the same, where the test comes last. */
static bool is_later(const sli_history_eval *a, const sli_history_eval *b)
{
    return a->step != b->step ? a->step > b->step : a->is_test && !b->is_test;
}

/* A run that resumes may repeat evaluations without a step before them. */
static void remove_evals_from(sli_run_history *history, const sli_history_eval *eval)
{
    while (history->eval_count > 0 && !is_later(eval, &history->evals[history->eval_count - 1]))
        history->eval_count--;
}

static sl_status add_eval(sli_run_history *history, json_t *record)
{
    const char *split = json_string_value(json_object_get(record, "split"));
    sli_history_eval eval = {0};
    if (!split || (strcmp(split, "valid") != 0 && strcmp(split, "test") != 0))
        return sl_error(SL_ERR_FORMAT, "split must be valid or test");
    eval.is_test = strcmp(split, "test") == 0;
    SL_TRY(sli_record_integer(record, "step", 0, INT64_MAX, &eval.step));
    SL_TRY(sli_record_integer(record, "epoch", 1, INT64_MAX, &eval.epoch));
    SL_TRY(sli_record_real(record, "loss", -INFINITY, &eval.loss));
    SL_TRY(sli_record_real(record, "ppl", 0, &eval.perplexity));
    SL_TRY(sli_record_real(record, "seconds", 0, &eval.seconds));
    SL_TRY(sli_record_real(record, "time", 0, &eval.time));
    SL_TRY(sli_history_sources_add_eval(history, record, eval.is_test));
    remove_evals_from(history, &eval);
    thin(history, history->evals, sizeof eval, &history->eval_count);
    SL_TRY(sli_array_reserve(&history->evals, &history->eval_room, history->eval_count + 1,
                             sizeof eval, MOST_RECORDS, "evaluations"));
    history->evals[history->eval_count++] = eval;
    tell(history, SLI_RECORD_EVAL, &eval);
    return SL_OK;
}

/* One without a text is not shown. */
static sl_status add_sample(sli_run_history *history, json_t *record)
{
    const char *text = json_string_value(json_object_get(record, "text"));
    sli_history_sample sample;
    SL_TRY(sli_record_integer(record, "step", 1, INT64_MAX, &sample.step));
    remove_samples_from(history, sample.step);
    if (!text)
        return SL_OK;
    sample.text = strdup(text);
    if (!sample.text)
        return sli_no_memory(NULL, "a sample");
    if (history->sample_count == SLI_MOST_SAMPLES)
        remove_samples(history, 0, 1);
    history->samples[history->sample_count++] = sample;
    return SL_OK;
}

static sl_status add_memory(sli_run_history *history, json_t *record)
{
    sli_history_memory memory = {0};
    int64_t rank, stage;
    const char *device = json_string_value(json_object_get(record, "device"));
    const char *host = json_string_value(json_object_get(record, "host"));
    const json_t *peak = json_object_get(record, "peak_bytes");
    SL_TRY(sli_record_integer(record, "rank", 0, INT32_MAX, &rank));
    SL_TRY(sli_record_integer(record, "stage", 0, INT32_MAX, &stage));
    memory.rank = (int)rank;
    memory.stage = (int)stage;
    snprintf(memory.host, sizeof memory.host, "%s", host ? host : "");
    snprintf(memory.device, sizeof memory.device, "%s", device ? device : "?");
    for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
        SL_TRY(sli_record_real(peak, sl_memory_category_name((sl_memory_category)c), 0,
                               &memory.peak_bytes[c]));
    SL_TRY(sli_record_real(record, "peak_total_bytes", 0, &memory.peak_total_bytes));
    SL_TRY(sli_record_real(record, "usable_bytes", 0, &memory.usable_bytes));
    const sli_history_memory *first = history->memory;
    if (history->memory_count > 0 && memory.rank == first->rank && memory.stage == first->stage)
        history->memory_count = 0; /* all ranks again */
    SL_TRY(sli_array_reserve(&history->memory, &history->memory_room, history->memory_count + 1,
                             sizeof memory, MOST_RECORDS, "devices"));
    history->memory[history->memory_count++] = memory;
    return SL_OK;
}

/* Takes the pipeline over, instead of the replica's former one. */
static sl_status set_pipeline(sli_run_history *history, sli_history_pipeline *pipeline)
{
    size_t index = 0, count = history->pipeline_count;
    while (index < count && history->pipelines[index].replica < pipeline->replica)
        index++;
    if (index < count && history->pipelines[index].replica == pipeline->replica) {
        sli_history_pipeline_clear(&history->pipelines[index]);
        history->pipelines[index] = *pipeline;
        return SL_OK;
    }
    sl_status status = sli_array_reserve(&history->pipelines, &history->pipeline_room, count + 1,
                                         sizeof *pipeline, MOST_RECORDS, "pipelines");
    if (status != SL_OK) {
        sli_history_pipeline_clear(pipeline);
        return status;
    }
    memmove(history->pipelines + index + 1, history->pipelines + index,
            (count - index) * sizeof *pipeline);
    history->pipelines[index] = *pipeline;
    history->pipeline_count++;
    return SL_OK;
}

const sli_history_pipeline *sli_history_first_pipeline(const sli_run_history *history)
{
    bool there = history->pipeline_count > 0 && history->pipelines[0].replica == 0;
    return there ? &history->pipelines[0] : NULL;
}

static sl_status add_pipeline(sli_run_history *history, json_t *record)
{
    sli_history_pipeline pipeline;
    SL_TRY(sli_history_pipeline_read(record, &pipeline));
    tell(history, SLI_RECORD_PIPELINE, &pipeline);
    return set_pipeline(history, &pipeline);
}

static sl_status add_gap(sli_run_history *history, json_t *record)
{
    int64_t records;
    SL_TRY(sli_record_integer(record, "records", 1, INT32_MAX, &records));
    history->missing += records;
    return SL_OK;
}

static sl_status add_end(sli_run_history *history, json_t *record)
{
    SL_TRY(sli_record_real(record, "seconds", 0, &history->seconds));
    history->ended = true;
    return SL_OK;
}

static const struct {
    const char *kind;
    sl_status (*add)(sli_run_history *history, json_t *record);
} record_kinds[] = {
    {"run", add_run},       {"step", add_step}, {"pipeline", add_pipeline}, {"eval", add_eval},
    {"memory", add_memory}, {"gap", add_gap},   {"end", add_end},           {"sample", add_sample},
};

static sl_status add_record(sli_run_history *history, json_t *record)
{
    const char *kind = json_string_value(json_object_get(record, "record"));
    if (!kind)
        return sl_error(SL_ERR_FORMAT, "must be an object whose \"record\" is a string");
    for (size_t i = 0; i < sizeof record_kinds / sizeof *record_kinds; i++)
        if (strcmp(kind, record_kinds[i].kind) == 0)
            return record_kinds[i].add(history, record);
    return SL_OK;
}

/* ---- Lines --------------------------------------------------------------------------------- */

static sl_status add_line(sli_run_history *history, const char *line, size_t bytes)
{
    json_error_t error;
    if (bytes == 0)
        return SL_OK;
    json_t *record =
        bytes > MOST_LINE_BYTES ? NULL : json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!record && bytes <= MOST_LINE_BYTES && json_error_code(&error) == json_error_out_of_memory)
        return sli_no_memory(NULL, "a record");
    if (!record) {
        history->damaged++;
        return SL_OK;
    }
    sl_status status = add_record(history, record);
    json_decref(record);
    return status;
}

sl_status sli_run_history_create(const char *name, sli_run_history **out)
{
    *out = calloc(1, sizeof **out);
    if (*out && ((*out)->name = strdup(name)))
        return SL_OK;
    sli_run_history_destroy(out);
    return sli_no_memory(name, "the log");
}

/* The end of a line; what it has is lost where it was too long to be kept. */
static sl_status end_line(sli_run_history *history, const char *line, size_t bytes)
{
    history->lines++;
    if (!history->in_long_line)
        return sl_error_context(add_line(history, line, bytes), "%s: line %" PRId64 ": ",
                                history->name, history->lines);
    history->in_long_line = false;
    history->damaged++;
    return SL_OK;
}

sl_status sli_run_history_add(sli_run_history *history, const char *text, size_t bytes,
                              size_t *used)
{
    const char *line_end;
    *used = 0;
    while ((line_end = memchr(text + *used, '\n', bytes - *used))) {
        const char *line = text + *used;
        *used = (size_t)(line_end - text) + 1;
        SL_TRY(end_line(history, line, (size_t)(line_end - line)));
    }
    if (bytes - *used > MOST_LINE_BYTES || history->in_long_line) {
        history->in_long_line = true;
        *used = bytes;
    }
    return SL_OK;
}

sl_status sli_run_history_check(const sli_run_history *history)
{
    return history->run ? SL_OK
                        : sl_error(SL_ERR_FORMAT, "%s: is no run log: it has no record \"run\"",
                                   history->name);
}

void sli_run_history_destroy(sli_run_history **history)
{
    if (!history || !*history)
        return;
    for (size_t i = 0; i < (*history)->pipeline_count; i++)
        sli_history_pipeline_clear(&(*history)->pipelines[i]);
    free((*history)->pipelines);
    remove_samples(*history, 0, (*history)->sample_count);
    json_decref((*history)->run);
    free((*history)->steps);
    free((*history)->evals);
    free((*history)->sources);
    free((*history)->memory);
    free((*history)->name);
    free(*history);
    *history = NULL;
}

/* ---- Figures ------------------------------------------------------------------------------- */

double sli_history_best_loss(const sli_run_history *history)
{
    double best = NAN;
    for (size_t i = 0; i < history->eval_count; i++)
        if (!history->evals[i].is_test)
            best = fmin(best, history->evals[i].loss);
    return best;
}

static double median_from(const sli_run_history *history, int64_t first_step, sli_step_field field)
{
    size_t count = 0;
    double median = NAN, *values = calloc(history->step_count + 1, sizeof *values);
    for (size_t i = 0; values && i < history->step_count; i++)
        if (history->steps[i].step >= first_step && isfinite(history->steps[i].values[field]))
            values[count++] = history->steps[i].values[field];
    if (count > 0) {
        qsort(values, count, sizeof *values, sli_compare_seconds);
        median = values[count / 2];
    }
    free(values);
    return median;
}

double sli_history_median(const sli_run_history *history, sli_step_field field)
{
    return median_from(history, 0, field);
}

double sli_history_run_median(const sli_run_history *history, sli_step_field field)
{
    return median_from(history, history->run_step > 0 ? history->run_step : INT64_MAX, field);
}

double sli_history_peak_bytes(const sli_run_history *history)
{
    double peak = NAN;
    for (size_t i = 0; i < history->memory_count; i++)
        peak = fmax(peak, history->memory[i].peak_total_bytes);
    return peak;
}
