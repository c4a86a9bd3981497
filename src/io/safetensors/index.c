#include "io/safetensors/format.h"

#include "core/json.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

static const char *const map_key = "weight_map";

static int compare_entries(const void *a, const void *b)
{
    const sli_index_entry *left = a, *right = b;
    return strcmp(left->tensor, right->tensor);
}

static sl_status read_entries(const sli_json *json, sli_json_value map, sli_safetensors_index *out)
{
    char quoted[SLI_QUOTE_BYTES], *room = out->strings;
    size_t capacity = 0;
    sli_json_walk walk;
    bool found;
    SL_TRY(sli_json_walk_begin(json, map, &walk));
    for (;;) {
        SL_TRY(sli_json_walk_next(&walk, &found));
        if (!found)
            return SL_OK;
        SL_TRY(sli_array_reserve(&out->entries, &capacity, out->count + 1, sizeof *out->entries,
                                 SLI_SAFETENSORS_HEADER_LIMIT, "tensors of an index"));
        sli_index_entry *entry = &out->entries[out->count++];
        SL_TRY(sli_json_decode(json, walk.key, &room, &entry->tensor));
        if (!sli_json_is(walk.value, '"'))
            return sl_error(SL_ERR_FORMAT, "\"weight_map\" must give tensor %s the name of a file",
                            sli_safetensors_quote(entry->tensor, quoted));
        SL_TRY(sli_json_decode(json, walk.value, &room, &entry->file));
    }
}

static sl_status read_map(const sli_json *json, sli_json_value map, sli_safetensors_index *out)
{
    char quoted[SLI_QUOTE_BYTES];
    if (!sli_json_is(map, '{'))
        return sl_error(SL_ERR_FORMAT, "\"weight_map\" must be an object");
    out->strings = malloc(json->length);
    if (!out->strings)
        return sl_error(SL_ERR_MEMORY, "no memory for an index of %zu bytes", json->length);
    SL_TRY(read_entries(json, map, out));
    if (out->count > 0)
        qsort(out->entries, out->count, sizeof *out->entries, compare_entries);
    for (size_t i = 1; i < out->count; i++)
        if (compare_entries(&out->entries[i - 1], &out->entries[i]) == 0)
            return sl_error(SL_ERR_FORMAT, "tensor %s is listed twice",
                            sli_safetensors_quote(out->entries[i].tensor, quoted));
    return SL_OK;
}

static sl_status read_index(const sli_json *json, sli_safetensors_index *out)
{
    sli_json_value root, map = {NULL, NULL};
    sli_json_walk walk;
    bool found;
    SL_TRY(sli_json_root(json, &root));
    SL_TRY(sli_json_walk_begin(json, root, &walk));
    for (;;) {
        SL_TRY(sli_json_walk_next(&walk, &found));
        if (!found)
            return read_map(json, map, out);
        if (walk.is_object && sli_json_equals(walk.key, map_key))
            map = walk.value;
        else
            SL_TRY(sli_json_check(json, walk.value));
    }
}

sl_status sli_safetensors_index_parse(const char *text, size_t length, sli_safetensors_index *out)
{
    *out = (sli_safetensors_index){0};
    sl_status status = read_index(&(sli_json){"it", text, length}, out);
    if (status != SL_OK)
        sli_safetensors_index_clear(out);
    return status;
}

void sli_safetensors_index_clear(sli_safetensors_index *index)
{
    free(index->strings);
    free(index->entries);
    *index = (sli_safetensors_index){0};
}

const char *sli_safetensors_index_find(const sli_safetensors_index *index, const char *tensor)
{
    const sli_index_entry key = {tensor, NULL};
    const sli_index_entry *found = NULL;
    if (index->count > 0)
        found = bsearch(&key, index->entries, index->count, sizeof key, compare_entries);
    return found ? found->file : NULL;
}
