#include "train/checkpoint/model_notes.h"

#include "core/number.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NTOKENS, EMSIZE, NHID, NLAYERS, NHEAD, MASK, ACTIVATION, PRE_NORM, DROPOUT, VOCAB };

#define PREFIX "sluice."

static const char *const keys[SLI_MODEL_NOTES] = {
    [NTOKENS] = PREFIX "ntokens",
    [EMSIZE] = PREFIX "emsize",
    [NHID] = PREFIX "nhid",
    [NLAYERS] = PREFIX "nlayers",
    [NHEAD] = PREFIX "nhead",
    [MASK] = PREFIX "mask",
    [ACTIVATION] = PREFIX "activation",
    [PRE_NORM] = PREFIX "pre_norm",
    [DROPOUT] = PREFIX "dropout",
    [VOCAB] = PREFIX "vocab_xxh128",
};

void sli_model_notes_write(const sl_model_options *model, const char *vocab_checksum,
                           sli_model_notes *out)
{
    const int64_t numbers[] = {
        [NTOKENS] = model->ntokens, [EMSIZE] = model->emsize, [NHID] = model->nhid,
        [NLAYERS] = model->nlayers, [NHEAD] = model->nhead,
    };
    char(*text)[SLI_NOTE_BYTES] = out->text;
    for (int i = NTOKENS; i <= NHEAD; i++)
        snprintf(text[i], SLI_NOTE_BYTES, "%" PRId64, numbers[i]);
    snprintf(text[MASK], SLI_NOTE_BYTES, "%s", model->mask == SL_MASK_CAUSAL ? "causal" : "none");
    snprintf(text[ACTIVATION], SLI_NOTE_BYTES, "%s",
             model->activation == SL_ACTIVATION_RELU ? "relu" : "gelu");
    snprintf(text[PRE_NORM], SLI_NOTE_BYTES, "%s", model->pre_norm ? "true" : "false");
    sli_c_numbers scope = sli_c_numbers_begin();
    snprintf(text[DROPOUT], SLI_NOTE_BYTES, "%.9g", model->dropout);
    sli_c_numbers_end(scope);
    snprintf(text[VOCAB], SLI_NOTE_BYTES, "%s", vocab_checksum ? vocab_checksum : "");
    out->count = vocab_checksum ? SLI_MODEL_NOTES : VOCAB;
    for (int i = 0; i < SLI_MODEL_NOTES; i++)
        out->metadata[i] = (sl_metadata){keys[i], text[i]};
}

/* ---- Reading ---------------------------------------------------------------------------- */

static sl_status read_note(const sli_safetensors_set *from, const char *path, int index,
                           const char **value)
{
    *value = sli_safetensors_set_metadata(from, keys[index]);
    if (!*value)
        return sl_error(SL_ERR_FORMAT,
                        "%s: its metadata do not say \"%s\": the file was not saved by sluice",
                        path, keys[index]);
    return SL_OK;
}

static sl_status read_number(const sli_safetensors_set *from, const char *path, int index,
                             int64_t *out)
{
    const char *value;
    char *end;
    SL_TRY(read_note(from, path, index, &value));
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || number < 1)
        return sl_error(SL_ERR_FORMAT, "%s: \"%s\" must be a number from 1, got \"%s\"", path,
                        keys[index], value);
    *out = number;
    return SL_OK;
}

/* The elements of all tensors of the file. No tensor has as many as the file has bits, but tensors
 * without bytes have none. */
static uint64_t count_elements(const sli_safetensors_set *from)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < sli_safetensors_set_count(from); i++) {
        const sl_safetensors_info *info = sli_safetensors_set_get(from, i);
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

/* Whether the model is of the file's size, before one is made; tensors that are missing or too many
 * are named when they are read. All layers have as many elements. */
static sl_status check_elements(const sli_safetensors_set *from, const char *path,
                                const sl_model_options *model)
{
    int64_t one = 0, two = 0, others;
    uint64_t found = count_elements(from);
    SL_TRY(sl_error_context(model_elements(model, 1, &one), "%s: ", path));
    SL_TRY(model_elements(model, 2, &two));
    if (!__builtin_mul_overflow(model->nlayers - 1, two - one, &others) &&
        (uint64_t)one + (uint64_t)others <= 2 * found)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "%s: its tensors have %" PRIu64 " elements, far fewer than the model that its "
                    "metadata describe: %" PRId64 " layers, ntokens %" PRId64 ", emsize %" PRId64
                    ", nhid %" PRId64,
                    path, found, model->nlayers, model->ntokens, model->emsize, model->nhid);
}

/* *first: the value is `yes`; anything but `yes` and `no` is an error. */
static sl_status read_choice(const sli_safetensors_set *from, const char *path, int index,
                             const char *yes, const char *no, bool *first)
{
    const char *value;
    SL_TRY(read_note(from, path, index, &value));
    *first = strcmp(value, yes) == 0;
    if (!*first && strcmp(value, no) != 0)
        return sl_error(SL_ERR_FORMAT, "%s: \"%s\" must be %s or %s, got \"%s\"", path, keys[index],
                        yes, no, value);
    return SL_OK;
}

sl_status sli_model_notes_read(const sli_safetensors_set *from, const char *path,
                               sl_model_options *out)
{
    bool causal, relu;
    *out = (sl_model_options){0};
    int64_t *const numbers[] = {
        [NTOKENS] = &out->ntokens, [EMSIZE] = &out->emsize, [NHID] = &out->nhid,
        [NLAYERS] = &out->nlayers, [NHEAD] = &out->nhead,
    };
    for (int i = NTOKENS; i <= NHEAD; i++)
        SL_TRY(read_number(from, path, i, numbers[i]));
    SL_TRY(read_choice(from, path, MASK, "causal", "none", &causal));
    SL_TRY(read_choice(from, path, ACTIVATION, "relu", "gelu", &relu));
    SL_TRY(read_choice(from, path, PRE_NORM, "true", "false", &out->pre_norm));
    out->mask = causal ? SL_MASK_CAUSAL : SL_MASK_NONE;
    out->activation = relu ? SL_ACTIVATION_RELU : SL_ACTIVATION_GELU;
    return check_elements(from, path, out);
}

sl_status sli_model_notes_check(const sli_safetensors_set *from, const char *path,
                                const sl_model_options *model)
{
    sli_model_notes wanted = {0};
    sli_model_notes_write(model, NULL, &wanted);
    for (int i = NHEAD; i <= PRE_NORM; i++) {
        const char *name = keys[i] + strlen(PREFIX),
                   *has = sli_safetensors_set_metadata(from, keys[i]);
        if (has && strcmp(has, wanted.text[i]) != 0)
            return sl_error(SL_ERR_INVALID, "%s: its model has %s %s, expected %s %s", path, name,
                            has, name, wanted.text[i]);
    }
    return SL_OK;
}

const char *sli_model_notes_vocab(const sli_safetensors_set *from)
{
    return sli_safetensors_set_metadata(from, keys[VOCAB]);
}
