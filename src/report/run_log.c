/* The run as JSON lines. Every record is written when it comes, so that a run which dies leaves all
 * that it did. */
#include "sluice/app/report.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "parallel/schedule/timeline.h"
#include "report/zscore.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *sl_time_kind_name(sl_time_kind kind)
{
    static const char *const names[SL_TIME_KINDS] = {"forward", "backward",  "recompute",
                                                     "waiting", "reducing",  "optimizer",
                                                     "data",    "checkpoint"};
    return (unsigned)kind < SL_TIME_KINDS ? names[kind] : "?";
}

struct sl_run_log {
    char *path, *command; /* NULL: the log does not say it */
    int descriptor;
    bool created;               /* the file was not there before */
    bool cut;                   /* the file's last line has no end */
    sl_reporter_failed *failed; /* NULL: a record that cannot be written ends the run */
    void *context;
    const sl_run_info *info; /* since the run began */
    bool resumed;
    int64_t resumed_step, lost_steps;
    json_t *left_out; /* names of tensors that were not loaded, as many as there is room for */
    int64_t left_out_count;
    size_t left_out_bytes;
    int64_t missing; /* records since the last that was written */
    bool complained;
    sli_zscore losses, norms;
    int64_t nonfinite_steps;
};

/* ---- The file ------------------------------------------------------------------------------- */

static sl_status cannot_write(const sl_run_log *log)
{
    return sl_error(SL_ERR_IO, "%s: the run log cannot be written: %s", log->path, strerror(errno));
}

/* -1: it is not a regular file, but a pipe or the like. */
static off_t file_size(const sl_run_log *log)
{
    struct stat found;
    return fstat(log->descriptor, &found) == 0 && S_ISREG(found.st_mode) ? found.st_size : -1;
}

/* Whether the last line has no end, as where a writer was killed. */
static bool is_cut(const sl_run_log *log)
{
    char last = '\n';
    off_t size = file_size(log);
    int reader = size > 0 ? open(log->path, O_RDONLY | O_CLOEXEC) : -1;
    if (reader < 0)
        return false;
    bool cut = pread(reader, &last, 1, size - 1) == 1 && last != '\n';
    close(reader);
    return cut;
}

static sl_status empty_file(sl_run_log *log)
{
    if (file_size(log) > 0 && ftruncate(log->descriptor, 0) != 0)
        return cannot_write(log);
    log->cut = false;
    return SL_OK;
}

/* Returns how many bytes were written; errno says why not all. */
static size_t write_bytes(const sl_run_log *log, const char *text, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t count = write(log->descriptor, text + done, bytes - done);
        if (count < 0 && errno != EINTR)
            break;
        done += count > 0 ? (size_t)count : 0;
    }
    return done;
}

/* Adds a line, whose last byte is '\n'. One that cannot be written whole is removed again, or else
 * ended before the next one. */
static sl_status write_line(sl_run_log *log, const char *line, size_t bytes)
{
    if (log->cut && write_bytes(log, "\n", 1) != 1)
        return cannot_write(log);
    log->cut = false;
    off_t before = file_size(log);
    size_t done = write_bytes(log, line, bytes);
    if (done == bytes)
        return SL_OK;
    sl_status status = cannot_write(log);
    log->cut = done > 0 && (before < 0 || ftruncate(log->descriptor, before) != 0);
    return status;
}

static sl_status open_log(sl_run_log *log)
{
    log->created = access(log->path, F_OK) != 0;
    /* The run empties it when it begins, so that a run which is refused destroys no other's log. */
    log->descriptor = open(log->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (log->descriptor < 0)
        return cannot_write(log);
    log->cut = is_cut(log);
    return SL_OK;
}

sl_status sl_run_log_create(const char *path, const char *command, sl_reporter_failed *failed,
                            void *context, sl_run_log **out)
{
    enum { MOST_BYTES = 1 << 16 }; /* readers of logs refuse long records */
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(path);
    sl_run_log *log = calloc(1, sizeof *log);
    if (log)
        *log = (sl_run_log){.path = strdup(path),
                            .command = command ? strndup(command, MOST_BYTES) : NULL,
                            .descriptor = -1,
                            .failed = failed,
                            .context = context};
    sl_status status = log && log->path && (log->command || !command)
                           ? open_log(log)
                           : sli_no_memory(NULL, "the run log");
    if (status != SL_OK)
        sl_run_log_destroy(&log);
    *out = log;
    return status;
}

void sl_run_log_destroy(sl_run_log **log)
{
    if (!log || !*log)
        return;
    if ((*log)->created && !(*log)->info && (*log)->descriptor >= 0)
        sli_file_remove_open((*log)->path, (*log)->descriptor);
    if ((*log)->descriptor >= 0)
        close((*log)->descriptor);
    json_decref((*log)->left_out);
    free((*log)->command);
    free((*log)->path);
    free(*log);
    *log = NULL;
}

/* ---- Records -------------------------------------------------------------------------------- */

/* Seconds since 1970, to a millisecond. */
static double wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-3 * floor(1e-6 * (double)now.tv_nsec);
}

/* Frees the record; NULL: there was no memory for it. */
static sl_status write_record(sl_run_log *log, json_t *record)
{
    if (record && json_object_set_new(record, "time", json_real(wall_time())) != 0) {
        json_decref(record);
        record = NULL;
    }
    char *text = record ? json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(record);
    if (!text)
        return sli_no_memory(log->path, "a record");
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in place of the zero */
    sl_status status = write_line(log, text, bytes + 1);
    free(text);
    return status;
}

/* Says how many records before this one could not be written. */
static sl_status write_gap(sl_run_log *log)
{
    if (log->missing == 0)
        return SL_OK;
    SL_TRY(write_record(log, json_pack("{ss sI}", "record", "gap", "records",
                                       (json_int_t)log->missing)));
    log->missing = 0;
    return SL_OK;
}

/* Frees the record. Where it cannot be written, the run goes on if it has said so. */
static sl_status log_record(sl_run_log *log, json_t *record)
{
    sl_status status = write_gap(log);
    if (status == SL_OK)
        status = write_record(log, record);
    else
        json_decref(record);
    if (status == SL_OK || !log->failed)
        return status;
    if (!log->complained)
        log->failed(log->context, sl_error_text());
    log->complained = true;
    log->missing++;
    return SL_OK;
}

static json_t *number_list(const double *values, int count, double factor)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, sli_json_number(factor * values[i]));
    return list;
}

/* A pair is logged as two numbers: "beta1" and "beta2". */
static void add_option(json_t *object, const sl_option *row, const void *options)
{
    char name[32], key[64];
    bool logged = !row->not_logged && !(row->ignored && row->ignored(options));
    json_t *value = logged ? sli_json_option(row, options, false) : NULL;
    snprintf(name, sizeof name, "%s", row->log_key ? row->log_key : row->name);
    for (char *letter = name; *letter; letter++)
        *letter = *letter == '-' ? '_' : *letter;
    if (value && row->type != SL_OPTION_PAIR)
        json_object_set(object, name, value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        snprintf(key, sizeof key, "%s%zu", name, i + 1);
        json_object_set(object, key, json_array_get(value, i));
    }
    json_decref(value);
}

/* Every option that has a key in the log: those of the model in its object, the others beside it. A
 * model without a vocabulary is the caller's own. */
static json_t *describe_options(const sl_run_info *info)
{
    json_t *ntokens = info->ntokens > 0 ? json_integer(info->ntokens) : NULL;
    json_t *model = json_pack("{sO*}", "ntokens", ntokens);
    json_t *all = json_pack("{so so*}", "model", model, "ntokens", ntokens);
    for (int i = 0; all && i < 2; i++)
        for (const sl_option *row = info->option_rows[i]; row && row->name; row++)
            add_option(row->in_model ? model : all, row, info->options);
    return all;
}

/* "devices" and "partition": each stage's device, and the number of its modules. */
static json_t *describe_run(const sl_run_info *info)
{
    json_t *devices = json_array(), *partition = json_array();
    for (int s = 0; s < info->stage_count; s++) {
        json_array_append_new(devices, json_string(info->stages[s].device));
        json_array_append_new(partition, json_integer(info->stages[s].count));
    }
    double peak = info->peak_flops_per_s > 0 ? info->peak_flops_per_s : NAN;
    return json_pack("{ss ss sI si so so sI so}", "record", "run", "version", sl_version(),
                     "parameters", (json_int_t)info->total_parameters, "replicas", info->replicas,
                     "devices", devices, "partition", partition, "batches_per_epoch",
                     (json_int_t)info->batches_per_epoch, "peak_flops_per_s",
                     sli_json_number(peak));
}

/* Of documents that are packed, how many, and into how many rows. */
static json_t *describe_packing(const sl_run_info *info)
{
    const sl_text_info *train = &info->texts[0];
    return train->documents > 0 ? json_pack("{sI sI}", "documents", (json_int_t)train->documents,
                                            "rows", (json_int_t)train->rows)
                                : json_object();
}

/* What a plan has said of a step. */
static json_t *describe_planned(const sl_run_info *info)
{
    return info->planned_step_seconds > 0
               ? json_pack("{so}", "planned_step_ms",
                           sli_json_number(1e3 * info->planned_step_seconds))
               : json_object();
}

/* How many processes there are and what each holds, whether devices share cores, and what the
 * profile that chose them has said of one stage. */
static json_t *describe_cores(const sl_run_info *info)
{
    json_t *cores =
        json_pack("{si sI sb}", "processes", info->processes, "process_bytes",
                  (json_int_t)info->process_bytes, "oversubscribed", (int)info->oversubscribed);
    if (info->profiled_seconds > 0)
        json_object_set_new(cores, "one_stage", sli_json_number(info->one_stage));
    return cores;
}

/* Names, and shares of the rows, of the sources of a mixture. */
static json_t *describe_sources(const sl_run_info *info)
{
    json_t *names = json_array(), *shares = json_array();
    for (int i = 0; i < info->source_count; i++) {
        json_array_append_new(names, json_string(info->sources[i].name));
        json_array_append_new(shares, sli_json_number(info->sources[i].share));
    }
    return json_pack("{so so}", "sources", names, "source_share", shares);
}

/* Moves `more`'s members to `record`, which is freed where there is no memory for that. */
static json_t *move_members(json_t *record, json_t *more)
{
    if (!record || !more || json_object_update(record, more) != 0) {
        json_decref(record);
        record = NULL;
    }
    json_decref(more);
    return record;
}

/* What was asked for, so that the run can be repeated, and what it runs on. */
static sl_status log_started(void *context, const sl_run_info *info)
{
    sl_run_log *log = context;
    log->info = info;
    if (!log->resumed)
        SL_TRY(empty_file(log));
    json_t *record = move_members(describe_run(info), describe_options(info));
    record = move_members(record, describe_planned(info));
    record = move_members(record, describe_cores(info));
    record = move_members(record, describe_packing(info));
    if (info->source_count > 0)
        record = move_members(record, describe_sources(info));
    if (log->command)
        record = move_members(record, json_pack("{so}", "command", sli_json_text(log->command)));
    if (log->resumed)
        record =
            move_members(record, json_pack("{sI sI}", "resumed_step", (json_int_t)log->resumed_step,
                                           "lost_steps", (json_int_t)log->lost_steps));
    if (log->left_out)
        record = move_members(record, json_pack("{sO sI}", "left_out", log->left_out,
                                                "left_out_count", (json_int_t)log->left_out_count));
    return log->resumed ? log_record(log, record) : write_record(log, record);
}

/* One number each for a source of a mixture. */
static json_t *describe_step_sources(const sl_source_step *sources, int count)
{
    json_t *shares = json_array(), *epochs = json_array(), *losses = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(shares, sli_json_number(sources[i].share));
        json_array_append_new(epochs, sli_json_number(sources[i].epochs));
        json_array_append_new(losses, sli_json_number(sources[i].loss));
    }
    return json_pack("{so so so}", "source_share", shares, "source_epochs", epochs, "source_loss",
                     losses);
}

static sl_status log_step(void *context, const sl_step_info *step)
{
    sl_run_log *log = context;
    log->nonfinite_steps +=
        step->targets > 0 && (!isfinite(step->loss) || !isfinite(step->grad_norm));
    json_t *loss_z = sli_json_number(sli_zscore_add(&log->losses, step->loss));
    json_t *norm_z = sli_json_number(sli_zscore_add(&log->norms, step->grad_norm));
    json_t *record =
        json_pack("{ss sI sI sI sI so so so so so so so so so so so so so so}", "record", "step",
                  "epoch", (json_int_t)step->epoch, "batch", (json_int_t)step->batch, "step",
                  (json_int_t)step->step, "targets", (json_int_t)step->targets, "loss",
                  sli_json_number(step->loss), "grad_norm", sli_json_number(step->grad_norm), "lr",
                  sli_json_number(step->lr), "padding",
                  sli_json_number((double)step->padding / (double)step->tokens), "ms",
                  sli_json_number(1e3 * step->seconds), "tokens_per_s",
                  sli_json_number((double)step->tokens / step->seconds), "flops_per_s",
                  sli_json_number(step->flops / step->seconds), "mfu", sli_json_number(step->mfu),
                  "data_ms", sli_json_number(1e3 * step->data_seconds), "optimizer_ms",
                  sli_json_number(1e3 * step->optimizer_seconds), "reduce_ms",
                  sli_json_number(1e3 * step->reduce_seconds), "waiting_ms",
                  sli_json_number(1e3 * step->waiting_seconds), "loss_z", loss_z, "grad_norm_z",
                  norm_z);
    if (step->source_count > 0)
        record = move_members(record, describe_step_sources(step->sources, step->source_count));
    return log_record(log, record);
}

/* [action, start, end] each, in microseconds. */
static json_t *timeline_list(const sl_timeline_entry *entries, int count)
{
    char action[SLI_ACTION_TEXT_BYTES];
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_pack("[sII]", sli_action_text(entries[i].action, action),
                                              (json_int_t)llround(1e6 * entries[i].start),
                                              (json_int_t)llround(1e6 * entries[i].end)));
    return list;
}

static json_t *describe_timeline(const sl_utilization *pipeline)
{
    json_t *placement = json_array();
    for (int stage = 0; stage < pipeline->stages; stage++)
        json_array_append_new(placement, json_integer(pipeline->placement[stage]));
    return json_pack("{so so so}", "placement", placement, "measured",
                     timeline_list(pipeline->measured, pipeline->action_count), "predicted",
                     timeline_list(pipeline->predicted, pipeline->action_count));
}

/* What the prediction has used: links of neighbouring stages, and cores where ranks share any. */
static json_t *describe_machine(const sl_utilization *pipeline)
{
    json_t *machine = json_object(), *cores = json_array();
    if (pipeline->links)
        json_object_set_new(machine, "link_ms",
                            number_list(pipeline->links, pipeline->stages - 1, 1e3));
    for (int rank = 0; pipeline->cores && rank < pipeline->ranks; rank++)
        json_array_append_new(cores, json_integer(pipeline->cores[rank]));
    if (pipeline->cores)
        json_object_set(machine, "cores", cores);
    json_decref(cores);
    return machine;
}

static sl_status log_utilization(sl_run_log *log, const sl_pipeline_info *info, int replica,
                                 const sl_utilization *pipeline)
{
    json_t *record = json_pack("{ss si sI sI sb so so so so so si}", "record", "pipeline",
                               "replica", replica, "epoch", (json_int_t)info->epoch, "step",
                               (json_int_t)info->step, "ends_epoch", (int)info->ends_epoch,
                               "bubble_predicted", sli_json_number(pipeline->bubble_predicted),
                               "bubble_measured", sli_json_number(pipeline->bubble_measured),
                               "idle", number_list(pipeline->idle, pipeline->ranks, 1), "waiting",
                               number_list(pipeline->waiting, pipeline->ranks, 1), "stage_ms",
                               number_list(pipeline->stage_seconds, pipeline->stages, 1e3),
                               "slowest_stage", pipeline->slowest_stage);
    record = move_members(record, describe_machine(pipeline));
    if (pipeline->action_count <= SL_RUN_LOG_MOST_ACTIONS)
        record = move_members(record, describe_timeline(pipeline));
    return log_record(log, record);
}

static json_t *by_category(const uint64_t *bytes)
{
    json_t *object = json_object();
    for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
        json_object_set_new(object, sl_memory_category_name((sl_memory_category)c),
                            json_integer((json_int_t)bytes[c]));
    return object;
}

static sl_status log_memory(sl_run_log *log)
{
    for (int i = 0; i < log->info->rank_count; i++) {
        const sl_rank_stats *rank = &log->info->ranks[i];
        const sl_memory_stats *stats = &rank->stats;
        SL_TRY(
            log_record(log, json_pack("{ss si si so ss so so sI sI sI sI}", "record", "memory",
                                      "rank", rank->rank, "stage", rank->stage, "host",
                                      sli_json_text(rank->host), "device", rank->device,
                                      "current_bytes", by_category(stats->current_bytes),
                                      "peak_bytes", by_category(stats->peak_bytes),
                                      "peak_total_bytes", (json_int_t)stats->peak_total_bytes,
                                      "reserved_bytes", (json_int_t)stats->reserved_bytes,
                                      "peak_reserved_bytes", (json_int_t)stats->peak_reserved_bytes,
                                      "usable_bytes", (json_int_t)stats->usable_bytes)));
    }
    return SL_OK;
}

/* The first replica's record, and those of the others. */
static sl_status log_utilizations(sl_run_log *log, const sl_pipeline_info *info)
{
    const sl_utilization *first = info->utilization;
    SL_TRY(log_utilization(log, info, 0, first));
    for (int replica = 1; info->timelines && replica < log->info->replicas; replica++) {
        sl_utilization other;
        SL_TRY(
            sl_timeline_utilization(info->timelines + (size_t)replica * (size_t)first->action_count,
                                    first->action_count, &info->layouts[replica], &other));
        sl_status status = log_utilization(log, info, replica, &other);
        sl_utilization_clear(&other);
        SL_TRY(status);
    }
    return SL_OK;
}

/* An evaluation comes after an epoch, and has the memory. */
static sl_status log_pipeline(void *context, const sl_pipeline_info *info)
{
    if (info->utilization)
        SL_TRY(log_utilizations(context, info));
    return info->ends_epoch ? SL_OK : log_memory(context);
}

static sl_status log_evaluated(void *context, const sl_eval_info *eval)
{
    sl_run_log *log = context;
    json_t *record =
        json_pack("{ss ss sI sI so so sI so sb}", "record", "eval", "split", eval->split, "epoch",
                  (json_int_t)eval->epoch, "step", (json_int_t)eval->step, "loss",
                  sli_json_number(eval->loss), "ppl", sli_json_number(eval->perplexity), "tokens",
                  (json_int_t)eval->tokens, "seconds", sli_json_number(eval->seconds), "best",
                  (int)eval->best);
    if (eval->source_count > 0)
        record = move_members(record,
                              json_pack("{so}", "source_loss",
                                        number_list(eval->source_losses, eval->source_count, 1)));
    SL_TRY(log_record(log, record));
    return log_memory(log);
}

static sl_status log_finished(void *context, const sl_run_info *info, const sl_run_result *result)
{
    (void)info;
    sl_run_log *log = context;
    return log_record(log, json_pack("{ss sI sI so so so so}", "record", "end", "steps",
                                     (json_int_t)result->steps, "nonfinite_steps",
                                     (json_int_t)log->nonfinite_steps, "seconds",
                                     sli_json_number(result->seconds), "best_valid_loss",
                                     sli_json_number(result->best_valid_loss), "test_loss",
                                     sli_json_number(result->test_loss), "test_ppl",
                                     sli_json_number(result->test_perplexity)));
}

/* Readers of logs refuse long records. As JSON a byte may take six. */
static void add_left_out(sl_run_log *log, const char *tensor)
{
    enum { MOST_BYTES = 1 << 16 };
    size_t bytes = strlen(tensor) + 1;
    if (!log->left_out)
        log->left_out = json_array();
    if (log->left_out_bytes + bytes <= MOST_BYTES)
        json_array_append_new(log->left_out, sli_json_text(tensor));
    log->left_out_bytes += bytes;
    log->left_out_count++;
}

/* Skipping, resuming and what is not loaded come before the run's record, which says the latter
 * two. */
static sl_status log_checkpoint(void *context, const sl_checkpoint_event *event)
{
    sl_run_log *log = context;
    bool saved = event->kind == SL_CHECKPOINT_SAVED;
    if (event->kind == SL_CHECKPOINT_RESUMED) {
        log->resumed = true;
        log->resumed_step = event->step;
        log->lost_steps = event->lost_steps;
    }
    if (event->kind == SL_WEIGHTS_LEFT_OUT)
        add_left_out(log, event->tensor);
    if (event->kind == SL_WEIGHTS_FAILED)
        return log_record(log,
                          json_pack("{ss sb sI so so}", "record", "weights", "saved", 0, "step",
                                    (json_int_t)event->step, "path", sli_json_text(event->path),
                                    "reason", sli_json_text(event->reason)));
    if (event->kind == SL_CHECKPOINT_UNPRUNED)
        return log_record(log,
                          json_pack("{ss sI so so}", "record", "unpruned", "step",
                                    (json_int_t)event->step, "path", sli_json_text(event->path),
                                    "reason", sli_json_text(event->reason)));
    if (!saved && event->kind != SL_CHECKPOINT_FAILED)
        return SL_OK;
    return log_record(log, json_pack("{ss sb sI so so so so*}", "record", "checkpoint", "saved",
                                     (int)saved, "step", (json_int_t)event->step, "path",
                                     sli_json_text(event->path), "copy_ms",
                                     sli_json_number(1e3 * event->copy_seconds), "write_ms",
                                     sli_json_number(1e3 * event->write_seconds), "reason",
                                     sli_json_text(event->reason)));
}

static sl_status log_sample(void *context, const sl_sample_info *sample)
{
    const char *text = sample->text, *reason = sample->reason;
    return log_record(context,
                      json_pack("{ss sI sI so so so*}", "record", "sample", "epoch",
                                (json_int_t)sample->epoch, "step", (json_int_t)sample->step,
                                "prompt", sli_json_text(sample->prompt), "text",
                                text ? sli_json_text(text) : json_null(), "reason",
                                reason ? sli_json_text(reason) : NULL));
}

sl_reporter sl_run_log_reporter(sl_run_log *log)
{
    return (sl_reporter){.context = log,
                         .started = log_started,
                         .step = log_step,
                         .pipeline = log_pipeline,
                         .evaluated = log_evaluated,
                         .finished = log_finished,
                         .checkpoint = log_checkpoint,
                         .sampled = log_sample};
}
