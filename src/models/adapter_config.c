/* adapter_config.json, as PEFT writes it beside an adapter's tensors. */
#include "models/lora.h"

#include "core/error.h"
#include "models/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Printing --------------------------------------------------------------------------- */

/* The targets as PEFT lists them: all-linear by the layers' names. */
static sl_status list_targets(const sl_model_options *options, json_t **out)
{
    char names[SL_LORA_TARGETS_BYTES];
    sl_module *model;
    *out = NULL;
    SL_TRY(sl_transformer_lm_create(options, &model));
    sl_status status = sli_lora_names(options, model, names);
    sl_module_destroy(&model);
    SL_TRY(status);
    *out = json_array();
    for (const char *name = names; *name && *out;) {
        size_t length = strcspn(name, ",");
        if (json_array_append_new(*out, json_stringn(name, length)))
            return sli_no_memory(NULL, "an adapter's config");
        name += length + (name[length] == ',');
    }
    return SL_OK;
}

/* PEFT's default type for it is int. */
static json_t *print_alpha(float alpha)
{
    bool is_whole = alpha < 1e9f && alpha == floorf(alpha);
    return is_whole ? json_integer((json_int_t)alpha) : sli_config_float(alpha);
}

/* NULL where all have adapters. */
static json_t *list_layers(const sl_model_options *options)
{
    int64_t first, end;
    if (sli_lora_layers(options, &first, &end) != SL_OK || (first == 0 && end == options->nlayers))
        return json_null();
    json_t *layers = json_array();
    for (int64_t i = first; i < end && layers; i++)
        json_array_append_new(layers, json_integer(i));
    return layers;
}

sl_status sli_adapter_config_print(const sl_model_options *model, char **text)
{
    const sl_lora_options *lora = &model->lora;
    json_t *targets = NULL;
    *text = NULL;
    sl_status status = list_targets(model, &targets);
    json_t *json = json_pack("{s{} sn ss sn sb sb sb sn so so so sn ss sI s{} so sn ss sb sb}",
                             "alpha_pattern", "auto_mapping", "bias", "none", "exclude_modules",
                             "fan_in_fan_out", model->family == SL_FAMILY_GPT2, "inference_mode", 1,
                             "init_lora_weights", 1, "layers_pattern", "layers_to_transform",
                             list_layers(model), "lora_alpha", print_alpha(sli_lora_alpha(lora)),
                             "lora_dropout", sli_config_float(lora->dropout), "modules_to_save",
                             "peft_type", "LORA", "r", (json_int_t)sli_lora_rank(lora),
                             "rank_pattern", "target_modules", targets, "revision", "task_type",
                             "CAUSAL_LM", "use_dora", 0, "use_rslora", lora->rslora);
    if (json)
        json_object_set_new(json, "base_model_name_or_path",
                            lora->base ? sli_json_text(lora->base) : json_null());
    if (json && status == SL_OK)
        *text = json_dumps(json, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
    json_decref(json);
    return status == SL_OK && !*text ? sli_no_memory(NULL, "an adapter's config") : status;
}

/* ---- Reading ---------------------------------------------------------------------------- */

/* Members that are read, and those that change nothing in what an adapter computes. */
static const char *const known[] = {"peft_type",      "r",
                                    "lora_alpha",     "lora_dropout",
                                    "target_modules", "layers_to_transform",
                                    "bias",           "use_rslora",
                                    "fan_in_fan_out", "init_lora_weights",
                                    "auto_mapping",   "base_model_name_or_path",
                                    "inference_mode", "megatron_core",
                                    "peft_version",   "qalora_group_size",
                                    "revision",       "task_type"};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(key, known[i]) == 0)
            return true;
    return false;
}

/* null, false, "", {} and [] ask for nothing. */
static bool is_nothing(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && *json_string_value(value) == '\0') ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static sl_status refuse_member(const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        return sli_no_memory(NULL, "\"%s\"", key);
    sl_error(SL_ERR_UNSUPPORTED, "it has %s %.60s, which sluice does not serve", key, text);
    free(text);
    return SL_ERR_UNSUPPORTED;
}

static sl_status need_text(const json_t *json, const char *key, const char *wanted)
{
    const json_t *value = json_object_get(json, key);
    if (json_is_string(value) && strcmp(json_string_value(value), wanted) == 0)
        return SL_OK;
    return value ? refuse_member(key, value) : sl_error(SL_ERR_FORMAT, "it has no \"%s\"", key);
}

/* What else PEFT can do would change what is computed. */
static sl_status refuse_others(json_t *json)
{
    const char *key;
    json_t *value;
    json_object_foreach(json, key, value)
    {
        if (!is_known(key) && !is_nothing(value))
            return refuse_member(key, value);
    }
    value = json_object_get(json, "init_lora_weights"); /* others change the base's weights */
    if (json_is_string(value) && strcmp(json_string_value(value), "gaussian") != 0)
        return refuse_member("init_lora_weights", value);
    return need_text(json, "bias", "none");
}

/* A list of names, or "all-linear"; other texts are regular expressions. */
static sl_status read_targets(const json_t *json, sl_lora_options *out)
{
    const json_t *targets = json_object_get(json, "target_modules");
    size_t used = 0, count = json_array_size(targets);
    if (json_is_string(targets) && strcmp(json_string_value(targets), "all-linear") != 0)
        return refuse_member("target_modules", targets);
    if (json_is_string(targets))
        return sl_lora_targets_set(out, json_string_value(targets));
    char text[4 * SL_LORA_TARGETS_BYTES] = "";
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(targets, i));
        if (!name || !*name || strchr(name, ',') || used + strlen(name) + 2 > sizeof text)
            return refuse_member("target_modules", targets);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? "," : "", name);
    }
    if (count == 0)
        return sl_error(SL_ERR_FORMAT, "it has no \"target_modules\"");
    return sl_lora_targets_set(out, text);
}

/* One, or several that follow each other. */
static sl_status read_layers(const json_t *json, sl_lora_options *out)
{
    const json_t *layers = json_object_get(json, "layers_to_transform");
    size_t count = json_array_size(layers);
    if (!layers || is_nothing(layers))
        return SL_OK;
    const json_t *first = json_is_array(layers) ? json_array_get(layers, 0) : layers;
    for (size_t i = 0; i < count; i++) {
        const json_t *layer = json_array_get(layers, i);
        if (!json_is_integer(layer) ||
            json_integer_value(layer) != json_integer_value(first) + (json_int_t)i)
            return refuse_member("layers_to_transform", layers);
    }
    if (!json_is_integer(first) || json_integer_value(first) < 0 ||
        json_integer_value(first) > SL_MAX_LAYERS)
        return refuse_member("layers_to_transform", layers);
    out->first_layer = json_integer_value(first);
    out->layer_end = out->first_layer + (count > 0 ? (int64_t)count : 1);
    return SL_OK;
}

static sl_status read_members(json_t *json, sl_lora_options *out)
{
    double alpha = -1;
    SL_TRY(need_text(json, "peft_type", "LORA"));
    SL_TRY(refuse_others(json));
    SL_TRY(sli_config_integer(json, "r", SL_MAX_WIDTH, &out->rank));
    SL_TRY(sli_config_number(json, "lora_alpha", 0, &alpha));
    SL_TRY(sli_config_flag(json, "use_rslora", &out->rslora));
    SL_TRY(sli_config_dropout(json, (const char *const[]){"lora_dropout", NULL}, &out->dropout));
    out->alpha = (float)alpha;
    SL_TRY(read_layers(json, out));
    return read_targets(json, out);
}

sl_status sli_adapter_config_parse(const char *text, size_t bytes, sl_lora_options *out)
{
    enum { MOST_BYTES = 1 << 16 };
    const sli_json json = {"it", text, bytes};
    json_t *members;
    *out = (sl_lora_options){.adapts = true};
    SL_TRY(sli_json_parse(&json, (sli_json_value){text, text + bytes}, MOST_BYTES, &members));
    sl_status status = json_is_object(members) ? read_members(members, out)
                                               : sl_error(SL_ERR_FORMAT, "it must be an object");
    json_decref(members);
    return status;
}
