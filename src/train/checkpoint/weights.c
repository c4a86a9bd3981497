/* A model's weights as a safetensors file: PyTorch's names and layouts, and in the metadata what is
 * needed to build the model again. */
#include "train/checkpoint/weights.h"

#include "core/error.h"
#include "core/number.h"
#include "core/replace.h"
#include "text/vocab.h"
#include "train/checkpoint/checkpoints.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The model's options as metadata ------------------------------------------------------- */

enum { NTOKENS, EMSIZE, NHID, NLAYERS, NHEAD, MASK, ACTIVATION, PRE_NORM, DROPOUT, VOCAB };

#define PREFIX "sluice."

static const char *const flag_names[] = {"false", "true", NULL};

/* What the files call each of them, and the names of the values of those that have names. */
static const struct {
    const char *key;
    const char *const *names;
} rows[SLI_MODEL_METADATA] = {
    [NTOKENS] = {.key = PREFIX "ntokens"},
    [EMSIZE] = {.key = PREFIX "emsize"},
    [NHID] = {.key = PREFIX "nhid"},
    [NLAYERS] = {.key = PREFIX "nlayers"},
    [NHEAD] = {.key = PREFIX "nhead"},
    [MASK] = {PREFIX "mask", sli_mask_names},
    [ACTIVATION] = {PREFIX "activation", sli_activation_names},
    [PRE_NORM] = {PREFIX "pre_norm", flag_names},
    [DROPOUT] = {.key = PREFIX "dropout"},
    [VOCAB] = {.key = PREFIX "vocab_xxh128"},
};

void sli_model_metadata_write(const sl_model_options *model, const char *vocab_checksum,
                              sli_model_metadata *out)
{
    enum { BYTES = SLI_MODEL_METADATA_BYTES };
    const int64_t values[] = {
        [NTOKENS] = model->ntokens,       [EMSIZE] = model->emsize,     [NHID] = model->nhid,
        [NLAYERS] = model->nlayers,       [NHEAD] = model->nhead,       [MASK] = model->mask,
        [ACTIVATION] = model->activation, [PRE_NORM] = model->pre_norm,
    };
    for (int i = NTOKENS; i <= NHEAD; i++)
        snprintf(out->text[i], BYTES, "%" PRId64, values[i]);
    for (int i = MASK; i <= PRE_NORM; i++)
        snprintf(out->text[i], BYTES, "%s", rows[i].names[values[i]]);
    sli_c_numbers scope = sli_c_numbers_begin();
    snprintf(out->text[DROPOUT], BYTES, "%.9g", model->dropout);
    sli_c_numbers_end(scope);
    snprintf(out->text[VOCAB], BYTES, "%s", vocab_checksum ? vocab_checksum : "");
    out->count = vocab_checksum ? SLI_MODEL_METADATA : VOCAB;
    for (int i = 0; i < SLI_MODEL_METADATA; i++)
        out->rows[i] = (sl_metadata){rows[i].key, out->text[i]};
}

/* ---- Reading ---------------------------------------------------------------------------- */

/* A number from 1, or which of its two values the row has. */
static sl_status read_row(const sl_checkpoint_reader *from, const char *path, int row, int64_t *out)
{
    const char *key = rows[row].key, *value = sl_checkpoint_metadata(from, SLI_MODEL_PART, key);
    char *end;
    if (!value)
        return sl_error(SL_ERR_FORMAT,
                        "%s: its metadata do not say \"%s\": the file was not saved by sluice",
                        path, key);
    const char *const *names = rows[row].names;
    if (names) {
        *out = strcmp(value, names[0]) != 0;
        if (*out && strcmp(value, names[1]) != 0)
            return sl_error(SL_ERR_FORMAT, "%s: \"%s\" must be %s or %s, got \"%s\"", path, key,
                            names[0], names[1], value);
        return SL_OK;
    }
    errno = 0;
    *out = strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || *out < 1)
        return sl_error(SL_ERR_FORMAT, "%s: \"%s\" must be a number from 1, got \"%s\"", path, key,
                        value);
    return SL_OK;
}

/* The elements of all tensors of the file. No tensor has as many as the file has bits, but tensors
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

/* Whether the model is of the file's size, before one is made; tensors that are missing or too many
 * are named when they are read. All layers have as many elements. */
static sl_status check_elements(const sl_checkpoint_reader *from, const char *path,
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

static sl_status read_metadata(const sl_checkpoint_reader *from, const char *path,
                               sl_model_options *out)
{
    int64_t values[DROPOUT];
    for (int i = 0; i < DROPOUT; i++)
        SL_TRY(read_row(from, path, i, &values[i]));
    *out = (sl_model_options){
        .ntokens = values[NTOKENS],
        .emsize = values[EMSIZE],
        .nhid = values[NHID],
        .nlayers = values[NLAYERS],
        .nhead = values[NHEAD],
        .mask = (sl_mask)values[MASK],
        .activation = (sl_activation)values[ACTIVATION],
        .pre_norm = values[PRE_NORM] != 0,
    };
    return check_elements(from, path, out);
}

static sl_status check_metadata(const sl_checkpoint_reader *from, const char *path,
                                const sl_model_options *model)
{
    sli_model_metadata wanted;
    sli_model_metadata_write(model, NULL, &wanted);
    for (int i = NHEAD; i <= PRE_NORM; i++) {
        const char *name = rows[i].key + strlen(PREFIX),
                   *has = sl_checkpoint_metadata(from, SLI_MODEL_PART, rows[i].key);
        if (has && strcmp(has, wanted.text[i]) != 0)
            return sl_error(SL_ERR_INVALID, "%s: its model has %s %s, expected %s %s", path, name,
                            has, name, wanted.text[i]);
    }
    return SL_OK;
}

const char *sli_model_metadata_vocab(const sl_checkpoint_reader *from)
{
    return sl_checkpoint_metadata(from, SLI_MODEL_PART, rows[VOCAB].key);
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* Every parameter and buffer of the model; with `in_file`, of the buffers only those that the file
 * has. Data are the tensors' own memory, names live as long as *tensors. */
static sl_status list_items(const sl_pipe *pipe, const sl_checkpoint_reader *in_file,
                            sli_tensors *tensors, sl_safetensors_item **items, size_t *count)
{
    const sli_checkpoint_tensors *has =
        in_file ? sli_checkpoint_find_part(in_file, SLI_MODEL_PART) : NULL;
    *items = NULL;
    *count = 0;
    SL_TRY(sli_tensors_of_model(pipe, tensors));
    SL_TRY(sli_tensors_items(tensors, items));
    for (size_t i = 0; i < tensors->count; i++)
        if (!has || !tensors->entries[i].is_buffer ||
            sli_checkpoint_find_tensor(has, (*items)[i].name))
            (*items)[(*count)++] = (*items)[i];
    return SL_OK;
}

sl_status sl_weights_save(const sl_pipe *pipe, const sl_model_options *model, const sl_vocab *vocab,
                          const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(path);
    sli_model_metadata metadata;
    sli_tensors tensors;
    sl_safetensors_item *items;
    size_t count;
    char checksum[SLI_CHECKSUM_BYTES];
    if (vocab)
        SL_TRY(sli_vocab_checksum(vocab, checksum));
    sli_model_metadata_write(model, vocab ? checksum : NULL, &metadata);
    sl_status status = list_items(pipe, NULL, &tensors, &items, &count);
    if (status == SL_OK && vocab)
        status = sli_weights_vocab_begin(path, vocab);
    if (status == SL_OK)
        status = sl_safetensors_save(path, items, count, metadata.rows, metadata.count);
    if (status == SL_OK && vocab)
        status = sli_weights_vocab_end(path);
    free(items);
    sli_tensors_clear(&tensors);
    return status;
}

static sl_status check_save_vocab(const char *path)
{
    char *vocab_path;
    sli_replace_file *file;
    SL_TRY(sl_weights_vocab_path(path, &vocab_path));
    sl_status status = sli_replace_file_create(vocab_path, &file);
    sli_replace_file_destroy(&file);
    free(vocab_path);
    return status;
}

sl_status sli_weights_check_save(const sl_pipe *pipe, const char *path)
{
    sli_tensors tensors;
    sl_safetensors_item *items;
    size_t count;
    sl_safetensors_writer *writer = NULL;
    sl_status status = list_items(pipe, NULL, &tensors, &items, &count);
    if (status == SL_OK)
        status = sl_safetensors_writer_create(path, items, count, NULL, 0, &writer);
    sl_safetensors_writer_destroy(&writer);
    free(items);
    sli_tensors_clear(&tensors);
    return status == SL_OK ? check_save_vocab(path) : status;
}

sl_status sl_weights_model(const char *path, sl_model_options *out)
{
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    sl_checkpoint_reader *from;
    *out = (sl_model_options){0};
    SL_TRY(sli_checkpoint_open_model(path, &from));
    sl_status status = read_metadata(from, path, out);
    sl_checkpoint_close(&from);
    return status;
}

sl_status sli_weights_check_model(const char *path, const sl_model_options *model)
{
    sl_checkpoint_reader *from;
    SL_TRY(sli_checkpoint_open_model(path, &from));
    sl_status status = check_metadata(from, path, model);
    sl_checkpoint_close(&from);
    return status;
}

sl_status sl_weights_load(sl_pipe *pipe, const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(path);
    sl_checkpoint_reader *from;
    sli_tensors tensors;
    sl_safetensors_item *items;
    size_t count;
    SL_TRY(sli_checkpoint_open_model(path, &from));
    sl_status status = list_items(pipe, from, &tensors, &items, &count);
    sl_checkpoint_close(&from);
    if (status == SL_OK)
        status = sl_safetensors_load(path, items, count);
    free(items);
    sli_tensors_clear(&tensors);
    return status;
}
