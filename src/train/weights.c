/* A model's weights as a safetensors file: PyTorch's names and layouts, and in the metadata what is
 * needed to build the model again. */
#include "train/weights.h"

#include "core/replace_file.h"
#include "train/model_notes.h"

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

/* ---- The vocabulary beside them ---------------------------------------------------------- */

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

sl_status sli_weights_vocab(const char *path, sl_vocab **out)
{
    char *vocab_path;
    *out = NULL;
    SL_TRY(sl_weights_vocab_path(path, &vocab_path));
    sl_status status = sl_vocab_load(vocab_path, out);
    free(vocab_path);
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

/* ---- Writing ---------------------------------------------------------------------------- */

sl_status sl_weights_save(const sl_pipe *pipe, const sl_model_options *model, const sl_vocab *vocab,
                          const char *path)
{
    sli_model_notes described;
    item_list list;
    sli_model_notes_write(model, &described);
    SL_TRY(list_items(pipe, NULL, &list));
    sl_status status = vocab ? save_vocab(vocab, path) : SL_OK;
    if (status == SL_OK)
        status =
            sl_safetensors_save(path, list.items, list.count, described.notes, SLI_MODEL_NOTES);
    free(list.items);
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
    item_list list;
    sl_safetensors_writer *writer;
    SL_TRY(list_items(pipe, NULL, &list));
    sl_status status = sl_safetensors_writer_create(path, list.items, list.count, NULL, 0, &writer);
    sl_safetensors_writer_destroy(&writer);
    free(list.items);
    return status == SL_OK ? check_save_vocab(path) : status;
}

/* ---- Reading ---------------------------------------------------------------------------- */

sl_status sl_weights_model(const char *path, sl_model_options *out)
{
    sl_safetensors_reader *reader;
    *out = (sl_model_options){0};
    SL_TRY(sl_safetensors_open(path, &reader));
    sl_status status = sli_model_notes_read(reader, path, out);
    sl_safetensors_close(&reader);
    return status;
}

sl_status sli_weights_check_model(const char *path, const sl_model_options *model)
{
    sl_safetensors_reader *reader;
    SL_TRY(sl_safetensors_open(path, &reader));
    sl_status status = sli_model_notes_check(reader, path, model);
    sl_safetensors_close(&reader);
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
