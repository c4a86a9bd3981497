/* The run as JSON lines. Every record is written when it comes, so that a run which dies leaves all
 * that it did. */
#include "core/directory.h"
#include "core/given.h"
#include "optim/optimizer.h"
#include "sluice/train.h"
#include "train/line_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

struct sl_run_log {
    sli_line_file file;
    char *path;
    sl_run_log_failed *failed; /* NULL: what cannot be written ends the run */
    void *context;
    const sl_run_info *info; /* since the run began */
    bool resumed;
    int64_t resumed_step, lost_steps;
    int64_t missing; /* records since the last that was written */
    bool complained;
};

static sl_status cannot_write(const sl_run_log *log, sl_status status)
{
    return sl_error_context(status, "%s: the run log cannot be written: ", log->path);
}

sl_status sl_run_log_create(const char *path, sl_run_log_failed *failed, void *context,
                            sl_run_log **out)
{
    SLI_GIVEN(out);
    *out = NULL;
    SLI_GIVEN(path);
    sl_run_log *log = calloc(1, sizeof *log);
    if (!log || !(log->path = strdup(path))) {
        free(log);
        return sl_error(SL_ERR_MEMORY, "no memory for the run log");
    }
    log->failed = failed;
    log->context = context;
    /* Emptied when the run begins, so that a run which is refused destroys no other's log. */
    sl_status status = cannot_write(log, sli_line_file_open(log->path, &log->file));
    if (status != SL_OK) {
        free(log->path);
        free(log);
        return status;
    }
    *out = log;
    return SL_OK;
}

void sl_run_log_destroy(sl_run_log **log)
{
    if (!log || !*log)
        return;
    if ((*log)->file.created && !(*log)->info)
        sli_directory_remove_open((*log)->path, (*log)->file.descriptor);
    sli_line_file_close(&(*log)->file);
    free((*log)->path);
    free(*log);
    *log = NULL;
}

/* Takes the record; NULL: there was no memory for it. */
static sl_status write_record(sl_run_log *log, json_t *record)
{
    char *text = record ? json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(record);
    if (!text)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a record", log->path);
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in place of the zero */
    sl_status status = cannot_write(log, sli_line_file_add(&log->file, text, bytes + 1));
    free(text);
    return status;
}

/* After records that could not be written one says how many they were. */
static sl_status write_gap(sl_run_log *log)
{
    if (log->missing == 0)
        return SL_OK;
    SL_TRY(write_record(log, json_pack("{ss sI}", "record", "gap", "records",
                                       (json_int_t)log->missing)));
    log->missing = 0;
    return SL_OK;
}

/* Takes a record of a run that is under way, which is not lost for the sake of its log. */
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

/* JSON has no NaN or infinity; they are written as null. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* As few digits as give the same float: 0.9, not the 0.89999997615814209 that it is as a double. */
static json_t *number_of_float(float value)
{
    char digits[32];
    int precision = 6;
    do
        snprintf(digits, sizeof digits, "%.*g", precision++, value);
    while (precision <= 9 && strtof(digits, NULL) != value);
    return number(strtod(digits, NULL));
}

/* JSON is UTF-8, names of files are any bytes: what is none becomes U+FFFD. NULL for NULL. */
static json_t *text_value(const char *text)
{
    json_t *value = json_string(text);
    if (value || !text)
        return value;
    size_t left = strlen(text), used = 0;
    uint8_t *clean = malloc(3 * left + 1);
    if (!clean)
        return NULL;
    for (const uint8_t *at = (const uint8_t *)text; left > 0;) {
        ucs4_t character;
        int length = u8_mbtouc(&character, at, left);
        used += (size_t)u8_uctomb(clean + used, character, 4);
        at += length;
        left -= (size_t)length;
    }
    value = json_stringn((const char *)clean, used);
    free(clean);
    return value;
}

/* JSON's readers hold integers in 64 signed bits; a seed beyond them is written as a string. */
static json_t *seed_value(uint64_t seed)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, seed);
    return seed <= INT64_MAX ? json_integer((json_int_t)seed) : json_string(digits);
}

static json_t *describe_model(const sl_model_options *model)
{
    return json_pack("{sI sI sI sI sI so ss ss sb}", "ntokens", (json_int_t)model->ntokens,
                     "emsize", (json_int_t)model->emsize, "nhid", (json_int_t)model->nhid,
                     "nlayers", (json_int_t)model->nlayers, "nhead", (json_int_t)model->nhead,
                     "dropout", number_of_float(model->dropout), "mask",
                     model->mask == SL_MASK_CAUSAL ? "causal" : "none", "activation",
                     model->activation == SL_ACTIVATION_RELU ? "relu" : "gelu", "pre_norm",
                     (int)model->pre_norm);
}

static json_t *describe_stages(const sl_pipe *pipe, bool devices)
{
    json_t *list = json_array();
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        int first, count;
        sl_pipe_stage_modules(pipe, s, &first, &count);
        json_array_append_new(list, devices ? json_string(sl_device_name(sl_pipe_device(pipe, s)))
                                            : json_integer(count));
    }
    return list;
}

static json_t *describe_batches(const sl_train_options *options)
{
    return json_pack("{so so* si sI sI sI sI sI si si ss ss so sb}", "data",
                     text_value(options->data), "init", text_value(options->init), "shares",
                     options->shares, "batch_size", (json_int_t)options->batch_size,
                     "eval_batch_size", (json_int_t)options->eval_batch_size, "bptt",
                     (json_int_t)options->bptt, "max_batches", (json_int_t)options->max_batches,
                     "eval_max_batches", (json_int_t)options->eval_max_batches, "epochs",
                     options->epochs, "chunks", options->chunks, "checkpoint",
                     sl_checkpoint_name(options->checkpoint), "schedule",
                     sl_schedule_kind_name(options->schedule), "seed", seed_value(options->seed),
                     "allow_nan", (int)options->allow_nan);
}

static json_t *describe_updates(const sl_train_options *options)
{
    sl_optimizer_options optimizer = sli_optimizer_filled(&options->optimizer);
    const sl_lr_schedule *lr = &options->lr;
    return json_pack("{ss sb so so sb so so so so so ss so si sI}", "optimizer",
                     sl_optimizer_kind_name(optimizer.kind), "zero", (int)options->zero, "momentum",
                     number_of_float(optimizer.momentum), "dampening",
                     number_of_float(optimizer.dampening), "nesterov", (int)optimizer.nesterov,
                     "beta1", number_of_float(optimizer.beta1), "beta2",
                     number_of_float(optimizer.beta2), "eps", number_of_float(optimizer.eps),
                     "weight_decay", number_of_float(optimizer.weight_decay), "clip",
                     number(options->clip), "lr_schedule",
                     lr->kind == SL_LR_STEP ? "step" : "cosine", "gamma", number(lr->gamma),
                     "step_epochs", lr->step_epochs, "warmup_steps", (json_int_t)lr->warmup_steps);
}

static json_t *describe_run(const sl_run_info *info)
{
    const sl_train_options *options = info->options;
    return json_pack("{ss ss ss* so sI sI si so so so}", "record", "run", "version", SLUICE_VERSION,
                     "preset", options->preset, "model", describe_model(&options->model),
                     "parameters", (json_int_t)info->total_parameters, "ntokens",
                     (json_int_t)options->model.ntokens, "replicas", info->replicas, "devices",
                     describe_stages(info->pipe, true), "partition",
                     describe_stages(info->pipe, false), "lr", number(options->lr.lr));
}

/* Moves `more`'s members to `record`, which is freed where there is no memory for that. */
static json_t *join(json_t *record, json_t *more)
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
    if (log->resumed)
        sli_line_file_continue(&log->file);
    else
        SL_TRY(cannot_write(log, sli_line_file_empty(&log->file)));
    json_t *record = join(describe_run(info), describe_batches(info->options));
    record = join(record, describe_updates(info->options));
    if (log->resumed)
        record = join(record, json_pack("{sI sI}", "resumed_step", (json_int_t)log->resumed_step,
                                        "lost_steps", (json_int_t)log->lost_steps));
    return log->resumed ? log_record(log, record) : write_record(log, record);
}

static sl_status log_step(void *context, const sl_step_info *step)
{
    return log_record(context,
                      json_pack("{ss sI sI sI so so so so so}", "record", "step", "epoch",
                                (json_int_t)step->epoch, "batch", (json_int_t)step->batch, "step",
                                (json_int_t)step->step, "loss", number(step->loss), "grad_norm",
                                number(step->grad_norm), "lr", number(step->lr), "ms",
                                number(1e3 * step->seconds), "tokens_per_s",
                                number((double)step->tokens / step->seconds)));
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
    int count = log->info->replicas * sl_pipe_stages(log->info->pipe);
    for (int i = 0; i < count; i++) {
        const sl_stage_memory *memory = &log->info->memory[i];
        const sl_memory_stats *stats = &memory->stats;
        SL_TRY(log_record(log,
                          json_pack("{ss si si ss so so sI sI}", "record", "memory", "rank",
                                    memory->rank, "stage", memory->stage, "device", memory->device,
                                    "current_bytes", by_category(stats->current_bytes),
                                    "peak_bytes", by_category(stats->peak_bytes),
                                    "peak_total_bytes", (json_int_t)stats->peak_total_bytes,
                                    "reserved_bytes", (json_int_t)stats->reserved_bytes)));
    }
    return SL_OK;
}

static sl_status log_evaluated(void *context, const sl_eval_info *eval)
{
    sl_run_log *log = context;
    SL_TRY(log_record(log, json_pack("{ss ss sI so so sI so sb}", "record", "eval", "split",
                                     sl_split_name(eval->split), "epoch", (json_int_t)eval->epoch,
                                     "loss", number(eval->loss), "ppl", number(eval->perplexity),
                                     "tokens", (json_int_t)eval->tokens, "seconds",
                                     number(eval->seconds), "best", (int)eval->best)));
    return log_memory(log);
}

static sl_status log_finished(void *context, const sl_run_info *info, const sl_run_result *result)
{
    (void)info;
    return log_record(context,
                      json_pack("{ss sI so so so so so}", "record", "end", "steps",
                                (json_int_t)result->steps, "seconds", number(result->seconds),
                                "best_valid_loss", number(result->best_valid_loss), "test_loss",
                                number(result->test_loss), "test_ppl",
                                number(result->test_perplexity), "best_possible_ppl",
                                result->best_possible_perplexity > 0
                                    ? json_real(result->best_possible_perplexity)
                                    : json_null()));
}

/* Skipping and resuming come before the run's record, which says the latter. */
static sl_status log_checkpoint(void *context, const sl_checkpoint_event *event)
{
    sl_run_log *log = context;
    bool saved = event->kind == SL_CHECKPOINT_SAVED;
    if (event->kind == SL_CHECKPOINT_RESUMED) {
        log->resumed = true;
        log->resumed_step = event->step;
        log->lost_steps = event->lost_steps;
    }
    if (event->kind == SL_WEIGHTS_FAILED)
        return log_record(log,
                          json_pack("{ss sb sI so so}", "record", "weights", "saved", 0, "step",
                                    (json_int_t)event->step, "path", text_value(event->path),
                                    "reason", text_value(event->reason)));
    if (!saved && event->kind != SL_CHECKPOINT_FAILED)
        return SL_OK;
    return log_record(log, json_pack("{ss sb sI so so so so*}", "record", "checkpoint", "saved",
                                     (int)saved, "step", (json_int_t)event->step, "path",
                                     text_value(event->path), "copy_ms",
                                     number(1e3 * event->copy_seconds), "write_ms",
                                     number(1e3 * event->write_seconds), "reason",
                                     text_value(event->reason)));
}

sl_reporter sl_run_log_reporter(sl_run_log *log)
{
    return (sl_reporter){.context = log,
                         .started = log_started,
                         .step = log_step,
                         .evaluated = log_evaluated,
                         .finished = log_finished,
                         .checkpoint = log_checkpoint};
}
