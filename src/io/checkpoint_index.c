#include "io/checkpoint_index.h"

#include "io/safetensors_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const map_key = "weight_map";

sl_status sli_checkpoint_index_print(const sl_safetensors_item *items, size_t count,
                                     const size_t *shard_of, char *const *shard_names,
                                     uint64_t total_bytes, char **text)
{
    *text = NULL;
    json_t *map = json_object();
    for (size_t i = 0; i < count; i++)
        json_object_set_new(map, items[i].name, json_string(shard_names[shard_of[i]]));
    bool complete = json_object_size(map) == count;
    json_t *json =
        json_pack("{s:{sI} so}", "metadata", "total_size", (json_int_t)total_bytes, map_key, map);
    if (json && complete)
        *text = json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    return *text ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for an index of %zu tensors", count);
}

static sl_status check_map(json_t *map)
{
    char quoted[SLI_QUOTE_BYTES];
    const char *name;
    json_t *value;
    if (!json_is_object(map))
        return sl_error(SL_ERR_FORMAT, "\"weight_map\" must be an object");
    json_object_foreach(map, name, value)
    {
        if (!json_is_string(value))
            return sl_error(SL_ERR_FORMAT, "\"weight_map\" must give tensor %s the name of a file",
                            sli_safetensors_quote(name, quoted));
    }
    return SL_OK;
}

sl_status sli_checkpoint_index_parse(const char *text, size_t length, sli_checkpoint_index *out)
{
    json_error_t error;
    *out = (sli_checkpoint_index){json_loadb(text, length, JSON_REJECT_DUPLICATES, &error), 0};
    if (!out->json && json_error_code(&error) == json_error_out_of_memory)
        return sl_error(SL_ERR_MEMORY, "no memory for its content");
    if (!out->json)
        return sl_error(SL_ERR_FORMAT, "it is not valid JSON at its byte %d: %s", error.position,
                        error.text);
    json_t *map = json_object_get(out->json, map_key);
    sl_status status = check_map(map);
    if (status == SL_OK)
        out->count = json_object_size(map);
    else
        sli_checkpoint_index_clear(out);
    return status;
}

void sli_checkpoint_index_clear(sli_checkpoint_index *index)
{
    json_decref(index->json);
    *index = (sli_checkpoint_index){0};
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

sl_status sli_checkpoint_index_files(const sli_checkpoint_index *index, const char ***files,
                                     size_t *count)
{
    const char *tensor;
    json_t *value;
    size_t listed = 0;
    *count = 0;
    *files = calloc(index->count + 1, sizeof(char *));
    if (!*files)
        return sl_error(SL_ERR_MEMORY, "no memory for an index of %zu tensors", index->count);
    json_object_foreach(json_object_get(index->json, map_key), tensor, value)
    {
        (*files)[listed++] = json_string_value(value);
    }
    qsort(*files, listed, sizeof(char *), compare_texts);
    for (size_t i = 0; i < listed; i++)
        if (i == 0 || strcmp((*files)[i], (*files)[*count - 1]) != 0)
            (*files)[(*count)++] = (*files)[i];
    return SL_OK;
}

const char *sli_checkpoint_index_file(const sli_checkpoint_index *index, const char *tensor)
{
    return json_string_value(json_object_get(json_object_get(index->json, map_key), tensor));
}

sl_status sli_checkpoint_index_compare(const sli_checkpoint_index *index, const char *file,
                                       const sl_safetensors_reader *reader)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < sl_safetensors_count(reader); i++) {
        const char *tensor = sl_safetensors_get(reader, i)->name;
        const char *told = sli_checkpoint_index_file(index, tensor);
        if (!told || strcmp(told, file) != 0)
            return sl_error(SL_ERR_FORMAT, "tensor %s is in %s, where it does not look for it",
                            sli_safetensors_quote(tensor, quoted), file);
    }
    return SL_OK;
}
