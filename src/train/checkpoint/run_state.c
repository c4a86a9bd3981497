/* What state.json says of a run beside its tensors: written, read, and compared with another run.
 */
#include "core/error.h"
#include "train/checkpoint/checkpoints.h"

#include "core/json.h"
#include "optim/optimizer.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Describing ------------------------------------------------------------------------- */

static bool is_ignored(const sl_option *row, const sl_train_options *options)
{
    return row->ignored && row->ignored(options);
}

/* The options that decide the run's numbers, by their names, and the data. NULL: there is no
 * memory. */
static json_t *describe_options(const sli_run *run)
{
    const sl_option *row;
    const sl_train_options *options = run->options;
    json_t *all = json_pack("{sI}", "ntokens", (json_int_t)options->model.ntokens);
    int failed = !all;
    for (int i = 0; !failed && (row = sl_train_option_row(i)); i++)
        if (row->affects_numbers && row->affects_numbers(options) && !is_ignored(row, options))
            failed = json_object_set_new(all, row->name, sli_json_option(row, options, true));
    for (int split = 0; !failed && split < SL_SPLITS; split++) {
        char name[32];
        snprintf(name, sizeof name, "%s %s", sl_split_name((sl_split)split),
                 run->corpus ? "text" : "data");
        if (run->task->data[split])
            failed = json_object_set_new(all, name, json_string(run->task->data[split]));
    }
    if (!failed)
        return all;
    json_decref(all);
    return NULL;
}

/* Where the base of the run's adapters is, and what it is. */
static json_t *describe_base(const sli_run *run)
{
    const char *given = run->init ? sli_saved_model_path(run->init) : run->options->init;
    char *path = realpath(given, NULL);
    json_t *base = json_pack("{ss ss}", "path", path ? path : given, "checksum", run->base);
    free(path);
    return base;
}

sl_status sli_run_state_print(const sli_run *run, char **text)
{
    const sli_position *position = &run->position;
    const sl_train_options *options = run->options;
    const char *settings = options->checkpoints.settings, *job = run->launch.job;
    json_t *layout =
        json_pack("{si si si ss}", "replicas", options->replicas, "stages", run->plan->stages,
                  "chunks", options->chunks, "schedule", options->schedule);
    json_t *json =
        json_pack("{sI sI sI sI so so ss ss* so so so* so*}", "step", (json_int_t)position->steps,
                  "epoch", (json_int_t)position->epoch, "block", (json_int_t)position->batch,
                  "best_step", (json_int_t)position->best_step, "best_loss",
                  sli_json_number(position->best_loss), "seconds",
                  sli_json_number(sli_run_seconds(run)), "identity", run->identity.text, "job", job,
                  "options", describe_options(run), "layout", layout, "settings",
                  settings ? json_loads(settings, 0, NULL) : NULL, "base",
                  sli_run_has_adapters(run) ? describe_base(run) : NULL);
    *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(json);
    return *text ? SL_OK : sli_no_memory(NULL, "a run's state");
}

/* ---- Reading ---------------------------------------------------------------------------- */

static sl_status parse_state(const char *text, json_t **out)
{
    enum { MOST_BYTES = 1 << 16 }; /* far more than any run has to say */
    const sli_json json = {"the run's state", text, strlen(text)};
    return sli_json_parse(&json, (sli_json_value){text, text + json.length}, MOST_BYTES, out);
}

static sl_status read_position(const json_t *json, sli_position *out)
{
    static const char *const keys[] = {"step", "epoch", "block", "best_step"};
    int64_t *const values[] = {&out->steps, &out->epoch, &out->batch, &out->best_step};
    if (!json_object_get(json, keys[0])) /* a mean, or one that a program wrote */
        return sl_error(SL_ERR_FORMAT,
                        "it has no training state: use it with init instead of resume");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(json, keys[i]);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return sl_error(SL_ERR_FORMAT, "\"%s\" of the run must be a whole number from 0",
                            keys[i]);
        *values[i] = json_integer_value(value);
    }
    const json_t *best = json_object_get(json, "best_loss");
    if (!json_is_null(best) && !json_is_real(best))
        return sl_error(SL_ERR_FORMAT, "\"best_loss\" of the run must be a number or null");
    out->best_loss = json_is_null(best) ? INFINITY : json_real_value(best);
    const json_t *seconds = json_object_get(json, "seconds");
    if (!json_is_number(seconds) || !(json_number_value(seconds) >= 0))
        return sl_error(SL_ERR_FORMAT, "\"seconds\" of the run must be a number from 0");
    out->seconds = json_number_value(seconds);
    if (out->best_step > out->steps)
        return sl_error(SL_ERR_FORMAT, "\"best_step\" of the run must not come after its \"step\"");
    return SL_OK;
}

static sl_status read_identity(const json_t *json, sli_identity *out)
{
    const json_t *value = json_object_get(json, "identity");
    const char *text = json_string_value(value);
    *out = (sli_identity){""};
    if (!value || (text && *text == '\0'))
        return SL_OK;
    if (!text || strlen(text) != sizeof out->text - 1 ||
        strspn(text, "0123456789abcdef") != strlen(text))
        return sl_error(SL_ERR_FORMAT, "\"identity\" of the run must be 16 hexadecimal digits");
    memcpy(out->text, text, sizeof out->text);
    return SL_OK;
}

/* *path (optional) is the state's own. A run without adapters has none: nothing is set. */
static sl_status read_base(const json_t *json, const char **path,
                           char checksum[SLI_BASE_CHECKSUM_BYTES])
{
    const json_t *base = json_object_get(json, "base");
    const char *digits = json_string_value(json_object_get(base, "checksum"));
    *path = json_string_value(json_object_get(base, "path"));
    *checksum = '\0';
    if (!base)
        return SL_OK;
    if (!*path || !digits || strlen(digits) != SLI_BASE_CHECKSUM_BYTES - 1 ||
        strspn(digits, "0123456789abcdef") != strlen(digits))
        return sl_error(SL_ERR_FORMAT, "\"base\" of the run must have a \"path\", and a "
                                       "\"checksum\" of 16 hexadecimal digits");
    memcpy(checksum, digits, SLI_BASE_CHECKSUM_BYTES);
    return SL_OK;
}

static sl_status read_recorded(const json_t *json, sli_recorded *out)
{
    const char *base;
    SL_TRY(read_identity(json, &out->identity));
    SL_TRY(read_base(json, &base, out->base));
    const json_t *options = json_object_get(json, "options"), *lr = json_object_get(options, "lr");
    const json_t *shards = json_object_get(options, "shards");
    if (!json_is_integer(shards) || json_integer_value(shards) < 1 ||
        json_integer_value(shards) > SL_MAX_REPLICAS)
        return sl_error(SL_ERR_FORMAT,
                        "\"shards\" of the run's options must be a whole number from 1 to %d",
                        SL_MAX_REPLICAS);
    if (!json_is_number(lr) || !(json_number_value(lr) >= 0))
        return sl_error(SL_ERR_FORMAT, "\"lr\" of the run's options must be a number from 0");
    const json_t *chunks = json_object_get(json_object_get(json, "layout"), "chunks");
    if (!json_is_integer(chunks) || json_integer_value(chunks) < 1 ||
        json_integer_value(chunks) > SL_MAX_CHUNKS)
        return sl_error(SL_ERR_FORMAT,
                        "\"chunks\" of the run's layout must be a whole number from 1 to %d",
                        SL_MAX_CHUNKS);
    out->chunks = (int)json_integer_value(chunks);
    out->shards = (int)json_integer_value(shards);
    out->lr = json_number_value(lr);
    return SL_OK;
}

sl_status sli_run_state_read(const char *text, sli_recorded *out)
{
    json_t *json;
    *out = (sli_recorded){0};
    SL_TRY(parse_state(text, &json));
    sl_status status;
    SL_TRY_OR_FAIL(read_position(json, &out->position));
    status = read_recorded(json, out);
fail:
    json_decref(json);
    return status;
}

sl_status sli_run_state_owner(const char *text, sli_owner *out)
{
    json_t *json;
    *out = (sli_owner){{""}, ""};
    SL_TRY(parse_state(text, &json));
    sl_status status = read_identity(json, &out->identity);
    const char *job = json_string_value(json_object_get(json, "job"));
    snprintf(out->job, sizeof out->job, "%s", job ? job : "");
    json_decref(json);
    return status;
}

sl_status sli_run_state_settings(const char *text, char **settings)
{
    json_t *json;
    *settings = NULL;
    SL_TRY(parse_state(text, &json));
    const json_t *found = json_object_get(json, "settings");
    if (found)
        *settings = json_dumps(found, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(json);
    return found && !*settings ? sli_no_memory(NULL, "a run's settings") : SL_OK;
}

sl_status sli_run_state_base(const char *text, char **path, char checksum[SLI_BASE_CHECKSUM_BYTES])
{
    json_t *json = NULL;
    const char *found = NULL;
    *path = NULL;
    sl_status status;
    if (text)
        SL_TRY(parse_state(text, &json));
    SL_TRY_OR_FAIL(read_base(json, &found, checksum));
    if (!found)
        SL_TRY_OR_FAIL(sl_error(SL_ERR_FORMAT, "it has adapters, but does not say of which model"));
    if (!(*path = strdup(found)))
        status = sli_no_memory(NULL, "the path of a model");
fail:
    json_decref(json);
    return status;
}

/* ---- Comparing -------------------------------------------------------------------------- */

enum { DIFFERENCES_BYTES = 800 };

/* A value as a person would give it. */
static void value_text(const json_t *value, char *text, size_t bytes)
{
    char *printed =
        value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(7)) : NULL;
    snprintf(text, bytes, "%s", printed ? printed : "not given");
    free(printed);
}

static void add_difference(const char *name, const json_t *there, const json_t *here, char *text)
{
    char there_text[128], here_text[128];
    size_t used = strlen(text);
    value_text(there, there_text, sizeof there_text);
    value_text(here, here_text, sizeof here_text);
    snprintf(text + used, DIFFERENCES_BYTES - used, "%s%s %s, this run has %s %s", used ? "; " : "",
             name, there_text, name, here_text);
}

/* The checkpoint's options against these, each difference named. */
static sl_status compare_options(json_t *there, json_t *here)
{
    char differences[DIFFERENCES_BYTES] = "";
    const char *name;
    json_t *value;
    if (!json_is_object(there))
        return sl_error(SL_ERR_FORMAT, "\"options\" of the run must be an object");
    json_object_foreach(here, name, value)
    {
        const json_t *other = json_object_get(there, name);
        if (!other || !json_equal(other, value))
            add_difference(name, other, value, differences);
    }
    json_object_foreach(there, name, value)
    {
        if (!json_object_get(here, name))
            add_difference(name, value, NULL, differences);
    }
    if (differences[0])
        return sl_error(SL_ERR_INVALID, "the checkpoint was made with %s", differences);
    return SL_OK;
}

static sl_status check_position(const sli_run *run)
{
    const sli_position *position = &run->resume.recorded.position;
    int64_t batches = run->batches_per_epoch;
    int epochs = run->options->epochs;
    if (position->batch > batches || position->epoch > INT64_MAX / batches - 1 ||
        position->steps != position->epoch * batches + position->batch)
        return sl_error(SL_ERR_FORMAT,
                        "%" PRId64 " steps do not end at batch %" PRId64 " of epoch %" PRId64,
                        position->steps, position->batch, position->epoch);
    if (position->epoch > epochs || (position->epoch == epochs && position->batch > 0))
        return sl_error(SL_ERR_INVALID,
                        "the checkpoint is in epoch %" PRId64 ", but epochs is %d: raise it",
                        position->epoch + 1, epochs);
    return SL_OK;
}

sl_status sli_run_state_check(const char *text, const sli_run *run)
{
    json_t *json;
    SL_TRY(parse_state(text, &json));
    json_t *here = describe_options(run);
    sl_status status = here ? compare_options(json_object_get(json, "options"), here)
                            : sli_no_memory(NULL, "the options");
    json_decref(here);
    json_decref(json);
    return status == SL_OK ? check_position(run) : status;
}
