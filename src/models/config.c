#include "models/config.h"

#include "core/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model_type[] = "sluice_transformer";

#define FIELD(field) #field, .offset = offsetof(sl_model_options, field)
#define SIZE         .type = SL_OPTION_INT64, .lowest = 1

/* What shapes do not show of a model begins with SHOWN and ends before CONTEXT. Members from TIE on
 * may be missing. */
enum { SHOWN = 4, TIE = 8, CONTEXT };

static const sl_option rows[] = {
    {.name = FIELD(ntokens), SIZE},
    {.name = FIELD(emsize), SIZE},
    {.name = FIELD(nhid), SIZE},
    {.name = FIELD(nlayers), SIZE},
    {.name = FIELD(nhead), SIZE},
    {.name = FIELD(mask), .type = SL_OPTION_CHOICE, .choices = sl_mask_names},
    {.name = FIELD(activation), .type = SL_OPTION_CHOICE, .choices = sl_activation_names},
    {.name = FIELD(pre_norm), .type = SL_OPTION_FLAG},
    {.name = FIELD(tie), .type = SL_OPTION_FLAG},
    {.name = FIELD(context), SIZE},
    {.name = FIELD(dropout), .type = SL_OPTION_FLOAT, .less_than = 1},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- Text ------------------------------------------------------------------------------- */

sl_status sli_config_print(const sl_model_options *model, char **text)
{
    json_t *json = json_pack("{ss}", "model_type", model_type);
    int failed = !json;
    for (int i = 0; i < ROWS && !failed; i++)
        if (i != CONTEXT || model->context > 0)
            failed =
                json_object_set_new(json, rows[i].name, sli_json_option(&rows[i], model, false));
    *text = failed ? NULL : json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(json);
    return *text ? SL_OK : sli_no_memory(NULL, "a model's config");
}

static sl_status read_member(const sl_option *row, const json_t *value, sl_model_options *out)
{
    char *text = json_is_string(value) ? strdup(json_string_value(value))
                                       : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        return sli_no_memory(NULL, "\"%s\"", row->name);
    sl_status status = sl_option_set(row, out, text);
    free(text);
    return status == SL_ERR_INVALID ? sl_error_context(SL_ERR_FORMAT, "its ") : status;
}

static sl_status read_members(const json_t *json, sl_model_options *out)
{
    const json_t *type = json_object_get(json, "model_type");
    if (!json_is_string(type))
        return sl_error(SL_ERR_FORMAT, "it has no \"model_type\", as a model's config.json has");
    if (strcmp(json_string_value(type), model_type) != 0)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "its model_type is \"%.40s\", and sluice has \"%s\" alone",
                        json_string_value(type), model_type);
    for (int i = 0; i < ROWS; i++) {
        const json_t *value = json_object_get(json, rows[i].name);
        if (value)
            SL_TRY(read_member(&rows[i], value, out));
        else if (i < TIE)
            return sl_error(SL_ERR_FORMAT, "it has no \"%s\", as that of a %s has", rows[i].name,
                            model_type);
    }
    return SL_OK;
}

sl_status sli_config_parse(const char *text, size_t bytes, sl_model_options *out)
{
    enum { MOST_BYTES = 1 << 16 };
    const sli_json json = {"it", text, bytes};
    json_t *members;
    *out = (sl_model_options){0};
    SL_TRY(sli_json_parse(&json, (sli_json_value){text, text + bytes}, MOST_BYTES, &members));
    sl_status status = read_members(members, out);
    json_decref(members);
    return status;
}

/* ---- The model -------------------------------------------------------------------------- */

/* The elements of all tensors of the model. No tensor has as many as its file has bits, but tensors
 * without bytes have none. */
static uint64_t count_elements(const sl_checkpoint_reader *from)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < sl_checkpoint_tensor_count(from, SLI_MODEL_PART); i++) {
        const sl_safetensors_info *info = sl_checkpoint_tensor_get(from, SLI_MODEL_PART, i);
        uint64_t product = info->bytes > 0;
        for (int d = 0; d < info->dims && product; d++)
            product *= (uint64_t)info->size[d];
        elements += product;
    }
    return elements;
}

/* Of a model with so many layers, which is made without memory. */
static sl_status model_elements(const sl_model_options *model, int64_t layers, int64_t *out)
{
    sl_module *module;
    sl_model_options small = *model;
    small.nlayers = layers;
    SL_TRY(sl_transformer_lm_create(&small, &module));
    *out = sl_module_parameter_elements(module);
    sl_module_destroy(&module);
    return SL_OK;
}

/* All layers have as many elements. */
sl_status sli_config_check_size(const sl_model_options *model, const sl_checkpoint_reader *reader)
{
    int64_t one = 0, two = 0, others;
    uint64_t found = count_elements(reader);
    SL_TRY(model_elements(model, 1, &one));
    SL_TRY(model_elements(model, 2, &two));
    if (!__builtin_mul_overflow(model->nlayers - 1, two - one, &others) &&
        (uint64_t)one + (uint64_t)others <= 2 * found)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "its tensors have %" PRIu64 " elements, far fewer than the model that its "
                    "config.json describes: %" PRId64 " layers, ntokens %" PRId64
                    ", emsize %" PRId64 ", nhid %" PRId64,
                    found, model->nlayers, model->ntokens, model->emsize, model->nhid);
}

sl_status sli_config_compare(const sl_model_options *model, const sl_model_options *wanted)
{
    sl_status status = SL_OK;
    for (int i = SHOWN; i < CONTEXT && status == SL_OK; i++) {
        char *is = NULL, *should = NULL;
        status = sl_option_text(&rows[i], model, &is);
        if (status == SL_OK)
            status = sl_option_text(&rows[i], wanted, &should);
        if (status == SL_OK && strcmp(is, should) != 0)
            status = sl_error(SL_ERR_INVALID, "its model has %s %s, expected %s %s", rows[i].name,
                              is, rows[i].name, should);
        free(is);
        free(should);
    }
    return status;
}
