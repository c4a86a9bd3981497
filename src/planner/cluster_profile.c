/* The times of a model's modules that sluice profile has measured, in a cluster file:
 *
 *     "profile": {"precision": "bf16", "row_tokens": 2048, "model": {"model_type": "llama", ...},
 *                 "modules": [{"count": 1, "parameters": 100, "trained": 100,
 *                              "seconds": [[forward, backward, input, weight], ...]}, ...]}
 *
 * with the times of a micro-batch of 1, 2, 4 ... rows, of `count` modules that are alike, and the
 * config.json of the model that has them. */
#include "planner/cluster_reader.h"

#include "core/error.h"
#include "nn/module.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNGS = 24, MOST_MODULES = 4096, TIMES = 4 };

void sli_kind_profile_clear(sli_kind_profile *profile)
{
    for (int i = 0; i < profile->rungs; i++)
        free(profile->times[i]);
    free(profile->times);
    free(profile->parameters);
    free(profile->trained);
    free(profile->model);
    *profile = (sli_kind_profile){0};
}

static const char *const expected_seconds =
    "1 to 24 lists of 4 numbers from 0 to 1e+06: forward, backward, and its two halves, not all 0; "
    "as many for all modules";

/* [forward, backward, input, weight]; a half that there is not takes no time. */
static sl_status read_times(const sli_cluster_reader *reader, const sli_cluster_object *object,
                            sli_json_value value, sl_module_profile *out)
{
    double times[TIMES];
    int count = 0;
    sli_json_walk walk;
    if (!sli_json_is(value, '['))
        return sli_cluster_refuse(reader, object, "seconds", value, expected_seconds);
    SL_TRY(sli_json_walk_begin(&reader->json, value, &walk));
    for (; sli_json_walk_next(&walk); count++)
        if (count == TIMES || !sli_cluster_parse_number(reader, walk.value, &times[count]) ||
            times[count] < 0 || times[count] > 1e6)
            return sli_cluster_refuse(reader, object, "seconds", walk.value, expected_seconds);
    SL_TRY(walk.status);
    if (count < TIMES || times[0] + times[1] <= 0)
        return sli_cluster_refuse(reader, object, "seconds", value, expected_seconds);
    *out = (sl_module_profile){times[0], times[1], times[2], times[3], 0};
    return SL_OK;
}

static sl_status add_rung(sli_kind_profile *profile)
{
    if (!profile->times)
        profile->times = calloc(MOST_RUNGS, sizeof *profile->times);
    if (profile->times)
        profile->times[profile->rungs] =
            calloc(MOST_MODULES, sizeof *profile->times[profile->rungs]);
    if (!profile->times || !profile->times[profile->rungs])
        return sli_no_memory(NULL, "a profile");
    profile->rungs++;
    return SL_OK;
}

/* The first modules say how many rungs there are. */
static sl_status read_seconds(const sli_cluster_reader *reader, const sli_cluster_object *object,
                              int count, sli_kind_profile *out)
{
    sli_json_value list = sli_cluster_member(object, "seconds");
    sli_json_walk walk;
    int rung = 0;
    SL_TRY(sli_cluster_walk_list(reader, object, "seconds", expected_seconds, &walk));
    for (; sli_json_walk_next(&walk); rung++) {
        if (rung == (out->modules > 0 ? out->rungs : MOST_RUNGS))
            return sli_cluster_refuse(reader, object, "seconds", list, expected_seconds);
        if (out->modules == 0)
            SL_TRY(add_rung(out));
        sl_module_profile *first = &out->times[rung][out->modules];
        SL_TRY(read_times(reader, object, walk.value, first));
        for (int i = 1; i < count; i++)
            first[i] = *first;
    }
    SL_TRY(walk.status);
    return rung > 0 && rung == out->rungs
               ? SL_OK
               : sli_cluster_refuse(reader, object, "seconds", list, expected_seconds);
}

/* `count` modules that are alike. */
typedef struct module_numbers {
    int count;
    double parameters, trained;
} module_numbers;

/* Its numbers are no inputs of their own: the profile is one. */
static sl_status read_modules(const sli_cluster_reader *reader, sli_json_value value, int index,
                              const char *path, sli_kind_profile *out)
{
    static const char *const names[] = {"count", "parameters", "trained", "seconds", NULL};
    static const sli_number_field fields[] = {
        {"count", offsetof(module_numbers, count), true, false, 1, MOST_MODULES, 1},
        {"parameters", offsetof(module_numbers, parameters), false, true, 0, 1e15, 0},
        {"trained", offsetof(module_numbers, trained), false, true, 0, 1e15, 0}};
    sli_cluster_object object = {.names = names};
    module_numbers numbers;
    size_t listed = reader->cluster->input_count;
    snprintf(object.path, sizeof object.path, "%.40s.modules[%d]", path, index);
    SL_TRY(sli_cluster_open_object(reader, value, &object));
    SL_TRY(sli_cluster_read_numbers(reader, &object, fields, 3, &numbers));
    reader->cluster->input_count = listed;
    if (out->modules + numbers.count > MOST_MODULES)
        return sli_cluster_refuse(reader, &object, "count", value,
                                  "of at most 4096 modules in all");
    SL_TRY(read_seconds(reader, &object, numbers.count, out));
    for (int end = out->modules + numbers.count; out->modules < end; out->modules++) {
        out->parameters[out->modules] = numbers.parameters;
        out->trained[out->modules] = numbers.trained;
    }
    return SL_OK;
}

static sl_status read_all_modules(const sli_cluster_reader *reader,
                                  const sli_cluster_object *object, sli_kind_profile *out)
{
    sli_json_value list = sli_cluster_member(object, "modules");
    sli_json_walk walk;
    SL_TRY(sli_cluster_walk_list(reader, object, "modules", "a list of modules", &walk));
    out->parameters = calloc(MOST_MODULES, sizeof *out->parameters);
    out->trained = calloc(MOST_MODULES, sizeof *out->trained);
    if (!out->parameters || !out->trained)
        return sli_no_memory(NULL, "a profile");
    for (int index = 0; sli_json_walk_next(&walk); index++)
        SL_TRY(read_modules(reader, walk.value, index, object->path, out));
    SL_TRY(walk.status);
    return out->modules > 0
               ? SL_OK
               : sli_cluster_refuse(reader, object, "modules", list, "a list of modules");
}

static sl_status read_precision(const sli_cluster_reader *reader, const sli_cluster_object *object,
                                sl_precision *out)
{
    sli_json_value value = sli_cluster_member(object, "precision");
    if (!value.begin)
        return sli_cluster_refuse_missing(reader, object, "precision");
    for (int i = 0; sl_precision_names[i]; i++)
        if (sli_json_equals(value, sl_precision_names[i])) {
            *out = (sl_precision)i;
            return SL_OK;
        }
    return sli_cluster_refuse(reader, object, "precision", value, "\"f32\", \"bf16\" or \"tf32\"");
}

static sl_status read_model(const sli_cluster_reader *reader, const sli_cluster_object *object,
                            char **out)
{
    sli_json_value value = sli_cluster_member(object, "model");
    if (!value.begin)
        return SL_OK;
    if (!sli_json_is(value, '{'))
        return sli_cluster_refuse(reader, object, "model", value,
                                  "an object, as a model's config.json is");
    *out = strndup(value.begin, (size_t)(value.end - value.begin));
    return *out ? SL_OK : sli_no_memory(NULL, "a profile");
}

sl_status sli_cluster_read_profile(const sli_cluster_reader *reader, const sli_cluster_object *node,
                                   sli_kind_profile *out)
{
    static const char *const names[] = {"precision", "row_tokens", "model", "modules", NULL};
    static const sli_number_field row = {
        "row_tokens", offsetof(sli_kind_profile, row_tokens), false, true, 1, 1e9, 0};
    sli_json_value value = sli_cluster_member(node, "profile");
    sli_cluster_object object = {.names = names};
    snprintf(object.path, sizeof object.path, "%.32s.profile", node->path);
    SL_TRY(sli_cluster_open_object(reader, value, &object));
    out->line = object.line;
    SL_TRY(read_precision(reader, &object, &out->precision));
    SL_TRY(sli_cluster_read_number(reader, &object, &row, out));
    SL_TRY(read_model(reader, &object, &out->model));
    SL_TRY(read_all_modules(reader, &object, out));
    return sli_cluster_list_input(reader, node, "profile", (double)out->modules, out->line);
}

/* ---- Whose it is ---------------------------------------------------------------------------- */

static double count_elements(const sl_module *module)
{
    return (double)(sli_module_elements(module, SL_PARAMETER_TRAINED) +
                    sli_module_elements(module, SL_PARAMETER_FROZEN));
}

static sl_status check_modules(const sli_kind_profile *profile, const char *place,
                               const sl_module *model)
{
    int modules = sl_module_child_count(model);
    if (profile->modules != modules)
        return sl_error(SL_ERR_INVALID,
                        "%s is of another model: it has %d modules, but the plan's has %d", place,
                        profile->modules, modules);
    for (int i = 0; i < modules; i++) {
        const sl_module *module = sl_module_child(model, i);
        double all = count_elements(module),
               trained = (double)sli_module_elements(module, SL_PARAMETER_TRAINED);
        if (profile->parameters[i] != all || profile->trained[i] != trained)
            return sl_error(SL_ERR_INVALID,
                            "%s is of another model: its module %d has %.0f parameters, of which "
                            "%.0f are trained, but the plan's has %.0f and %.0f",
                            place, i, profile->parameters[i], profile->trained[i], all, trained);
    }
    return SL_OK;
}

sl_status sli_cluster_check_profiles(const sli_cluster *cluster, const char *name,
                                     const sl_module *model, sl_precision precision,
                                     int64_t row_tokens)
{
    for (int i = 0; i < cluster->kind_count; i++) {
        const sli_kind_profile *profile = &cluster->kinds[i].profile;
        char place[512];
        if (profile->rungs == 0)
            continue;
        snprintf(place, sizeof place, "%.440s:%d: nodes[%d].profile", name, profile->line, i);
        if (profile->precision != precision)
            return sl_error(SL_ERR_INVALID, "%s is of precision %s, but the plan's is %s", place,
                            sl_precision_names[profile->precision], sl_precision_names[precision]);
        if (profile->row_tokens != (double)row_tokens)
            return sl_error(SL_ERR_INVALID,
                            "%s is of rows of %.0f tokens, but the plan's have %" PRId64, place,
                            profile->row_tokens, row_tokens);
        SL_TRY(check_modules(profile, place, model));
    }
    return SL_OK;
}
