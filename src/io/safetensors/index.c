#include "io/safetensors/index.h"

#include "core/json.h"
#include "io/safetensors/text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const map_key = "weight_map";

/* ---- Reading ------------------------------------------------------------------------------ */

static int compare_entries(const void *a, const void *b)
{
    const sli_index_entry *left = a, *right = b;
    return strcmp(left->tensor, right->tensor);
}

static sl_status count_entries(const sli_json *json, sli_json_value map, size_t *count)
{
    sli_json_walk walk;
    bool found = true;
    SL_TRY(sli_json_walk_begin(json, map, &walk));
    for (*count = 0;; ++*count) {
        SL_TRY(sli_json_walk_next(&walk, &found));
        if (!found)
            return SL_OK;
    }
}

/* `out` has room for the map's entries. */
static sl_status read_entries(const sli_json *json, sli_json_value map, sli_checkpoint_index *out)
{
    char quoted[SLI_QUOTE_BYTES], *room = out->strings;
    sli_json_walk walk;
    bool found;
    SL_TRY(sli_json_walk_begin(json, map, &walk));
    for (out->count = 0;; out->count++) {
        sli_index_entry *entry = &out->entries[out->count];
        SL_TRY(sli_json_walk_next(&walk, &found));
        if (!found)
            return SL_OK;
        SL_TRY(sli_json_decode(json, walk.key, &room, &entry->tensor));
        if (!sli_json_is(walk.value, '"'))
            return sl_error(SL_ERR_FORMAT, "\"weight_map\" must give tensor %s the name of a file",
                            sli_safetensors_quote(entry->tensor, quoted));
        SL_TRY(sli_json_decode(json, walk.value, &room, &entry->file));
    }
}

static sl_status read_map(const sli_json *json, sli_json_value map, sli_checkpoint_index *out)
{
    char quoted[SLI_QUOTE_BYTES];
    size_t count;
    if (!sli_json_is(map, '{'))
        return sl_error(SL_ERR_FORMAT, "\"weight_map\" must be an object");
    SL_TRY(count_entries(json, map, &count));
    out->strings = malloc(json->length);
    out->entries = calloc(count + 1, sizeof *out->entries);
    if (!out->strings || !out->entries)
        return sl_error(SL_ERR_MEMORY, "no memory for an index of %zu tensors", count);
    SL_TRY(read_entries(json, map, out));
    qsort(out->entries, out->count, sizeof *out->entries, compare_entries);
    for (size_t i = 1; i < out->count; i++)
        if (compare_entries(&out->entries[i - 1], &out->entries[i]) == 0)
            return sl_error(SL_ERR_FORMAT, "tensor %s is listed twice",
                            sli_safetensors_quote(out->entries[i].tensor, quoted));
    return SL_OK;
}

static sl_status read_index(const sli_json *json, sli_checkpoint_index *out)
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

sl_status sli_checkpoint_index_parse(const char *text, size_t length, sli_checkpoint_index *out)
{
    *out = (sli_checkpoint_index){0};
    sl_status status = read_index(&(sli_json){"it", text, length}, out);
    if (status != SL_OK)
        sli_checkpoint_index_clear(out);
    return status;
}

void sli_checkpoint_index_clear(sli_checkpoint_index *index)
{
    free(index->strings);
    free(index->entries);
    *index = (sli_checkpoint_index){0};
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

sl_status sli_checkpoint_index_files(const sli_checkpoint_index *index, const char ***files,
                                     size_t *count)
{
    *count = 0;
    *files = calloc(index->count + 1, sizeof(char *));
    if (!*files)
        return sl_error(SL_ERR_MEMORY, "no memory for an index of %zu tensors", index->count);
    for (size_t i = 0; i < index->count; i++)
        (*files)[i] = index->entries[i].file;
    qsort(*files, index->count, sizeof(char *), compare_texts);
    for (size_t i = 0; i < index->count; i++)
        if (i == 0 || strcmp((*files)[i], (*files)[*count - 1]) != 0)
            (*files)[(*count)++] = (*files)[i];
    return SL_OK;
}

const char *sli_checkpoint_index_file(const sli_checkpoint_index *index, const char *tensor)
{
    const sli_index_entry key = {tensor, NULL};
    const sli_index_entry *found =
        bsearch(&key, index->entries, index->count, sizeof key, compare_entries);
    return found ? found->file : NULL;
}

sl_status sli_checkpoint_index_compare(const sli_checkpoint_index *index, const char *file,
                                       const sl_safetensors_reader *reader)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < sl_safetensors_count(reader); i++) {
        const char *tensor = sl_safetensors_get(reader, i)->name;
        const char *told = sli_checkpoint_index_file(index, tensor);
        if (!told || strcmp(told, file) != 0)
            return sl_error(SL_ERR_FORMAT,
                            "tensor %s is in %s, but the index does not list it there",
                            sli_safetensors_quote(tensor, quoted), file);
    }
    return SL_OK;
}
