/* A model's weights as a safetensors file: PyTorch's names and layouts, and in the metadata what is
 * needed to build the model again. */
#include "train/checkpoint/weights.h"

#include "core/error.h"
#include "core/replace.h"
#include "text/vocab.h"
#include "train/checkpoint/checkpoints.h"

#include <stdlib.h>

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
    sl_status status = sli_model_metadata_read(from, path, out);
    sl_checkpoint_close(&from);
    return status;
}

sl_status sli_weights_check_model(const char *path, const sl_model_options *model)
{
    sl_checkpoint_reader *from;
    SL_TRY(sli_checkpoint_open_model(path, &from));
    sl_status status = sli_model_metadata_check(from, path, model);
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
