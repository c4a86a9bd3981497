/* A model's weights as a safetensors file: PyTorch's names and layouts, and in the metadata what is
 * needed to build the model again. */
#include "train/checkpoint/weights.h"

#include "core/error.h"
#include "core/replace.h"
#include "text/vocab.h"
#include "train/checkpoint/model_notes.h"
#include "train/checkpoint/weights_vocab.h"

#include <stdlib.h>

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
static sl_status list_items(const sl_pipe *pipe, const sli_safetensors_set *in_file, item_list *out)
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
                !sli_safetensors_set_find(in_file, name))
                continue;
            out->items[out->count++] =
                (sl_safetensors_item){name, SL_F32, *sl_parameter_shape(parameter),
                                      sl_tensor_data(sl_parameter_value(parameter))};
        }
    }
    return SL_OK;
}

/* ---- Writing ---------------------------------------------------------------------------- */

sl_status sl_weights_save(const sl_pipe *pipe, const sl_model_options *model, const sl_vocab *vocab,
                          const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(path);
    sli_model_notes described;
    item_list list;
    char checksum[SLI_CHECKSUM_BYTES];
    if (vocab)
        SL_TRY(sli_vocab_checksum(vocab, checksum));
    sli_model_notes_write(model, vocab ? checksum : NULL, &described);
    SL_TRY(list_items(pipe, NULL, &list));
    sl_status status = vocab ? sli_weights_vocab_begin(path, vocab) : SL_OK;
    if (status == SL_OK)
        status =
            sl_safetensors_save(path, list.items, list.count, described.metadata, described.count);
    if (status == SL_OK && vocab)
        status = sli_weights_vocab_end(path);
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
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    sli_safetensors_set *from;
    *out = (sl_model_options){0};
    SL_TRY(sli_safetensors_set_open(path, &from));
    sl_status status = sli_model_notes_read(from, path, out);
    sli_safetensors_set_close(&from);
    return status;
}

sl_status sli_weights_check_model(const char *path, const sl_model_options *model)
{
    sli_safetensors_set *from;
    SL_TRY(sli_safetensors_set_open(path, &from));
    sl_status status = sli_model_notes_check(from, path, model);
    sli_safetensors_set_close(&from);
    return status;
}

sl_status sl_weights_load(sl_pipe *pipe, const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(path);
    sli_safetensors_set *from;
    item_list list;
    SL_TRY(sli_safetensors_set_open(path, &from));
    sl_status status = list_items(pipe, from, &list);
    sli_safetensors_set_close(&from);
    if (status == SL_OK)
        status = sl_safetensors_load(path, list.items, list.count);
    free(list.items);
    return status;
}
