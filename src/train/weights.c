/* A model's weights as a safetensors file: PyTorch's names and layouts, and in the metadata what is
 * needed to build the model again. */
#include "train/weights.h"

#include "sluice/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The tensors ------------------------------------------------------------------------ */

typedef struct item_list {
    sl_safetensors_item *items;
    size_t count;
} item_list;

static int parameter_count(const sl_pipe *pipe)
{
    int count = 0;
    for (int s = 0; s < sl_pipe_stages(pipe); s++)
        count += sl_parameter_set_count(sl_pipe_parameters(pipe, s));
    return count;
}

/* Every parameter and buffer of the model, in its order; but with `in_file` only those buffers that
 * the file has. Data are the tensors' own memory. */
static sl_status list_items(const sl_pipe *pipe, const sl_safetensors_reader *in_file,
                            item_list *out)
{
    *out = (item_list){calloc((size_t)parameter_count(pipe) + 1, sizeof *out->items), 0};
    if (!out->items)
        return sl_error(SL_ERR_MEMORY, "no memory for the list of weights");
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            const sl_parameter *parameter = sl_parameter_set_get(set, i);
            const char *name = sl_parameter_name(parameter);
            if (in_file && sl_parameter_get_kind(parameter) == SL_PARAMETER_BUFFER &&
                !sl_safetensors_find(in_file, name))
                continue;
            out->items[out->count++] =
                (sl_safetensors_item){name, SL_F32, *sl_parameter_shape(parameter),
                                      sl_tensor_data(sl_parameter_value(parameter))};
        }
    }
    return SL_OK;
}

/* ---- The model's options as metadata ---------------------------------------------------- */

enum { NOTES = 9, NOTE_BYTES = 32 };

static const char *const note_keys[NOTES] = {"sluice.ntokens",    "sluice.emsize",
                                             "sluice.nhid",       "sluice.nlayers",
                                             "sluice.nhead",      "sluice.mask",
                                             "sluice.activation", "sluice.pre_norm",
                                             "sluice.dropout"};

static void describe_model(const sl_model_options *model, char text[NOTES][NOTE_BYTES],
                           sl_safetensors_note notes[NOTES])
{
    const int64_t numbers[] = {model->ntokens, model->emsize, model->nhid, model->nlayers,
                               model->nhead};
    for (int i = 0; i < 5; i++)
        snprintf(text[i], NOTE_BYTES, "%" PRId64, numbers[i]);
    snprintf(text[5], NOTE_BYTES, "%s", model->mask == SL_MASK_CAUSAL ? "causal" : "none");
    snprintf(text[6], NOTE_BYTES, "%s", model->activation == SL_ACTIVATION_RELU ? "relu" : "gelu");
    snprintf(text[7], NOTE_BYTES, "%s", model->pre_norm ? "true" : "false");
    snprintf(text[8], NOTE_BYTES, "%.9g", model->dropout);
    for (int i = 0; i < NOTES; i++)
        notes[i] = (sl_safetensors_note){note_keys[i], text[i]};
}

static sl_status read_note(const sl_safetensors_reader *reader, const char *path, int index,
                           const char **value)
{
    *value = sl_safetensors_metadata(reader, note_keys[index]);
    if (!*value)
        return sl_error(SL_ERR_FORMAT,
                        "%s: its metadata do not say \"%s\": the file was not saved by sluice",
                        path, note_keys[index]);
    return SL_OK;
}

static sl_status read_number(const sl_safetensors_reader *reader, const char *path, int index,
                             int64_t *out)
{
    const char *value;
    char *end;
    SL_TRY(read_note(reader, path, index, &value));
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || number < 1)
        return sl_error(SL_ERR_FORMAT, "%s: \"%s\" must be a number from 1, got \"%s\"", path,
                        note_keys[index], value);
    *out = number;
    return SL_OK;
}

/* *first: the value is `yes`; anything but `yes` and `no` is an error. */
static sl_status read_choice(const sl_safetensors_reader *reader, const char *path, int index,
                             const char *yes, const char *no, bool *first)
{
    const char *value;
    SL_TRY(read_note(reader, path, index, &value));
    *first = strcmp(value, yes) == 0;
    if (!*first && strcmp(value, no) != 0)
        return sl_error(SL_ERR_FORMAT, "%s: \"%s\" must be %s or %s, got \"%s\"", path,
                        note_keys[index], yes, no, value);
    return SL_OK;
}

static sl_status read_model(const sl_safetensors_reader *reader, const char *path,
                            sl_model_options *out)
{
    bool causal, relu;
    int64_t *const numbers[] = {&out->ntokens, &out->emsize, &out->nhid, &out->nlayers,
                                &out->nhead};
    for (int i = 0; i < 5; i++)
        SL_TRY(read_number(reader, path, i, numbers[i]));
    SL_TRY(read_choice(reader, path, 5, "causal", "none", &causal));
    SL_TRY(read_choice(reader, path, 6, "relu", "gelu", &relu));
    SL_TRY(read_choice(reader, path, 7, "true", "false", &out->pre_norm));
    out->mask = causal ? SL_MASK_CAUSAL : SL_MASK_NONE;
    out->activation = relu ? SL_ACTIVATION_RELU : SL_ACTIVATION_GELU;
    return SL_OK;
}

sl_status sl_weights_model(const char *path, sl_model_options *out)
{
    sl_safetensors_reader *reader;
    SL_TRY(sl_safetensors_open(path, &reader));
    *out = (sl_model_options){0};
    sl_status status = read_model(reader, path, out);
    sl_safetensors_close(&reader);
    return status;
}

/* ---- Reading and writing ---------------------------------------------------------------- */

sl_status sl_weights_vocab_path(const char *path, char **out)
{
    static const char ending[] = ".safetensors", replacement[] = ".vocab.txt";
    size_t length = strlen(path), cut = sizeof ending - 1;
    if (length > cut && strcmp(path + length - cut, ending) == 0)
        length -= cut;
    *out = malloc(length + sizeof replacement);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for a path");
    memcpy(*out, path, length);
    memcpy(*out + length, replacement, sizeof replacement);
    return SL_OK;
}

static sl_status save_vocab(const sl_vocab *vocab, const char *path)
{
    char *vocab_path;
    SL_TRY(sl_weights_vocab_path(path, &vocab_path));
    sl_status status = sl_vocab_save(vocab, vocab_path);
    free(vocab_path);
    return status;
}

sl_status sl_weights_save(const sl_pipe *pipe, const sl_model_options *model, const sl_vocab *vocab,
                          const char *path)
{
    char text[NOTES][NOTE_BYTES];
    sl_safetensors_note notes[NOTES];
    item_list list;
    describe_model(model, text, notes);
    SL_TRY(list_items(pipe, NULL, &list));
    sl_status status = vocab ? save_vocab(vocab, path) : SL_OK;
    if (status == SL_OK)
        status = sl_safetensors_save(path, list.items, list.count, notes, NOTES);
    free(list.items);
    return status;
}

sl_status sli_weights_check_save(const sl_pipe *pipe, const char *path)
{
    item_list list;
    sl_safetensors_writer *writer = NULL;
    SL_TRY(list_items(pipe, NULL, &list));
    sl_status status = sl_safetensors_writer_create(path, list.items, list.count, NULL, 0, &writer);
    sl_safetensors_writer_destroy(&writer);
    free(list.items);
    return status;
}

sl_status sl_weights_load(sl_pipe *pipe, const char *path)
{
    sl_safetensors_reader *reader;
    item_list list;
    SL_TRY(sl_safetensors_open(path, &reader));
    sl_status status = list_items(pipe, reader, &list);
    sl_safetensors_close(&reader);
    if (status == SL_OK)
        status = sl_safetensors_load(path, list.items, list.count);
    free(list.items);
    return status;
}
