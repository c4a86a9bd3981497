#include "models/config.h"

#include "core/error.h"
#include "models/family.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const sl_family_names[] = {
    "sluice_transformer", "gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", NULL};

static const sli_family *const families[] = {
    [SL_FAMILY_TUTORIALS] = &sli_family_tutorials, [SL_FAMILY_GPT2] = &sli_family_gpt2,
    [SL_FAMILY_LLAMA] = &sli_family_llama,         [SL_FAMILY_MISTRAL] = &sli_family_llama,
    [SL_FAMILY_QWEN2] = &sli_family_llama,         [SL_FAMILY_QWEN3] = &sli_family_llama,
    [SL_FAMILY_SMOLLM3] = &sli_family_llama};

/* ---- Ids of special tokens -------------------------------------------------------------- */

/* sluice does not look at them; other programs end a text by them. */
static const char *const id_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

static bool is_id(const json_t *value)
{
    return json_is_integer(value) || json_is_null(value);
}

/* A token, several, or null. */
static sl_status check_ids(const char *key, const json_t *value)
{
    size_t index;
    json_t *one;
    bool are_ids = is_id(value) || json_is_array(value);
    json_array_foreach(value, index, one) are_ids = are_ids && is_id(one);
    return are_ids ? SL_OK
                   : sl_error(SL_ERR_FORMAT,
                              "its %s must be the number of a token, a list of them, or null", key);
}

static sl_status read_token_ids(const json_t *json, sl_decoder_options *out)
{
    json_t *found = json_object();
    int failed = !found;
    sl_status status;
    size_t length = 0;
    for (size_t i = 0; i < sizeof id_keys / sizeof *id_keys; i++) {
        json_t *value = json_object_get(json, id_keys[i]);
        SL_TRY_OR_FAIL(value ? check_ids(id_keys[i], value) : SL_OK);
        failed |= value && json_object_set(found, id_keys[i], value) != 0;
    }
    if (failed)
        SL_TRY_OR_FAIL(sli_no_memory(NULL, "the ids of special tokens"));
    length = json_dumpb(found, out->token_ids, sizeof out->token_ids, JSON_COMPACT);
    if (length >= sizeof out->token_ids)
        status = sl_error(SL_ERR_UNSUPPORTED, "its lists of special tokens are too long");
fail:
    out->token_ids[status == SL_OK && json_object_size(found) > 0 ? length : 0] = '\0';
    json_decref(found);
    return status;
}

void sli_config_drop_unknown_token_ids(sl_model_options *model,
                                       bool (*knows)(const void *vocab, int64_t id),
                                       const void *vocab)
{
    json_t *ids = json_loads(model->decoder.token_ids, 0, NULL), *value, *one;
    const char *key;
    size_t index;
    json_object_foreach(ids, key, value)
    {
        bool is_known = !json_is_integer(value) || knows(vocab, json_integer_value(value));
        json_array_foreach(value, index, one)
        {
            is_known = is_known && (!json_is_integer(one) || knows(vocab, json_integer_value(one)));
        }
        if (!is_known)
            model->decoder.token_ids[0] = '\0';
    }
    json_decref(ids);
}

/* ---- Text ------------------------------------------------------------------------------- */

static int add_token_ids(json_t *json, const sl_decoder_options *decoder)
{
    if (!decoder->token_ids[0])
        return 0;
    json_t *ids = json_loads(decoder->token_ids, 0, NULL);
    int failed = json_object_update(json, ids);
    json_decref(ids);
    return failed;
}

/* transformers reads a model in the type of its label. */
static int add_label(json_t *json, const sl_model_options *model, sl_dtype dtype)
{
    const char *label = dtype == SL_BF16 ? "bfloat16" : "float32";
    return model->family == SL_FAMILY_TUTORIALS
               ? 0
               : json_object_set_new(json, "torch_dtype", json_string(label));
}

sl_status sli_config_print(const sl_model_options *model, sl_dtype dtype, char **text)
{
    json_t *json = json_pack("{ss}", "model_type", sl_family_names[model->family]);
    json_t *members = families[model->family]->print(model);
    int failed = !json || !members || json_object_update(json, members) ||
                 add_label(json, model, dtype) || add_token_ids(json, &model->decoder);
    json_decref(members);
    *text = failed ? NULL : json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(json);
    return *text ? SL_OK : sli_no_memory(NULL, "a model's config");
}

static sl_status read_family(const json_t *json, sl_model_options *out)
{
    char known[128] = "";
    const json_t *type = json_object_get(json, "model_type");
    if (!json_is_string(type))
        return sl_error(SL_ERR_FORMAT, "it has no \"model_type\", as a model's config.json has");
    for (int i = 0; sl_family_names[i]; i++) {
        size_t used = strlen(known);
        out->family = (sl_family)i;
        if (strcmp(json_string_value(type), sl_family_names[i]) == 0)
            return SL_OK;
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", sl_family_names[i]);
    }
    return sl_error(SL_ERR_UNSUPPORTED, "its model_type is \"%.40s\", and sluice has %s",
                    json_string_value(type), known);
}

int64_t sli_decoder_context(const sl_model_options *model)
{
    enum { MOST = 1024 };
    return model->decoder.positions < MOST ? model->decoder.positions : MOST;
}

/* Newer versions of transformers call it "dtype". */
static bool has_bf16_label(const json_t *json)
{
    const json_t *old = json_object_get(json, "torch_dtype");
    const char *label =
        json_string_value(json_is_string(old) ? old : json_object_get(json, "dtype"));
    return label && strcmp(label, "bfloat16") == 0;
}

static sl_status read_members(const json_t *json, sl_model_options *out)
{
    SL_TRY(read_family(json, out));
    if (out->family == SL_FAMILY_TUTORIALS)
        return sli_family_tutorials.parse(json, out);
    out->pre_norm = true;
    SL_TRY(families[out->family]->parse(json, out));
    out->context = sli_decoder_context(out);
    out->base_is_bf16 = has_bf16_label(json);
    return read_token_ids(json, &out->decoder);
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

static char *print_member(const json_t *value)
{
    return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
}

/* Members of the config of `model` that are printed otherwise in that of `wanted`: the first is
 * named. */
static sl_status compare_members(json_t *model, json_t *wanted)
{
    const char *key;
    json_t *value;
    json_object_foreach(model, key, value)
    {
        char *is = print_member(value), *should = print_member(json_object_get(wanted, key));
        sl_status status = !is || !should ? sli_no_memory(NULL, "a model's config")
                           : strcmp(is, should) == 0
                               ? SL_OK
                               : sl_error(SL_ERR_INVALID, "its model has %s %s, expected %s %s",
                                          key, is, key, should);
        free(is);
        free(should);
        SL_TRY(status);
    }
    return SL_OK;
}

static sl_status compare_decoders(const sl_model_options *model, const sl_model_options *wanted)
{
    sl_model_options other = *wanted;
    other.dropout = model->dropout;
    json_t *is = families[model->family]->print(model);
    json_t *should = families[model->family]->print(&other);
    sl_status status =
        is && should ? compare_members(is, should) : sli_no_memory(NULL, "a model's config");
    json_decref(is);
    json_decref(should);
    return status;
}

sl_status sli_config_compare(const sl_model_options *model, const sl_model_options *wanted)
{
    if (model->family != wanted->family)
        return sl_error(SL_ERR_INVALID, "its model is a %s, expected a %s",
                        sl_family_names[model->family], sl_family_names[wanted->family]);
    return model->family == SL_FAMILY_TUTORIALS ? sli_tutorials_compare(model, wanted)
                                                : compare_decoders(model, wanted);
}
