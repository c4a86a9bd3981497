/* Checks come in three rounds, each on what the one before has proven: the text is JSON with no
 * name twice (jansson); each tensor by itself says a known data type, a shape and a byte range
 * that fit each other (parse_entry); the ranges together cover the data exactly (check_cover). */
#include "io/safetensors_header.h"

#include "io/safetensors_dtype.h"
#include "io/safetensors_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char *const metadata_key = "__metadata__";

static sl_status parse_json(const char *text, size_t length, json_t **out)
{
    json_error_t error;
    if (length == 0 || text[0] != '{')
        return sl_error(SL_ERR_FORMAT, "the header must be a JSON object that begins with \"{\"");
    *out = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!*out && json_error_code(&error) == json_error_out_of_memory)
        return sl_error(SL_ERR_MEMORY, "no memory for a header of %zu bytes", length);
    if (!*out) {
        return sl_error(SL_ERR_FORMAT, "the header is not valid JSON at its byte %d: %s",
                        error.position, error.text);
    }
    return SL_OK;
}

static sl_status check_metadata(json_t *metadata)
{
    char quoted[SLI_QUOTE_BYTES];
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return sl_error(SL_ERR_FORMAT, "__metadata__ must be an object of strings");
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return sl_error(SL_ERR_FORMAT, "__metadata__ must hold strings only, but %s is none",
                            sli_safetensors_quote(key, quoted));
    }
    return SL_OK;
}

/* How many sizes all shapes have together, and how many tensors there are. */
static void count_parts(json_t *json, size_t *tensors, size_t *sizes)
{
    const char *name;
    json_t *value;
    *tensors = *sizes = 0;
    json_object_foreach(json, name, value)
    {
        if (strcmp(name, metadata_key) == 0)
            continue;
        (*tensors)++;
        *sizes += json_array_size(json_object_get(value, "shape")); /* 0 where it is no array */
    }
}

static bool is_natural(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static sl_status parse_shape(const json_t *shape, int64_t *sizes, sl_safetensors_info *info)
{
    size_t dims = json_array_size(shape);
    if (!json_is_array(shape) || dims > INT_MAX)
        return sl_error(SL_ERR_FORMAT, "\"shape\" must be an array");
    for (size_t i = 0; i < dims; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!is_natural(size))
            return sl_error(SL_ERR_FORMAT, "\"shape\" must hold whole numbers from 0 up");
        sizes[i] = json_integer_value(size);
    }
    info->dims = (int)dims;
    info->size = sizes;
    return SL_OK;
}

static sl_status parse_offsets(const json_t *offsets, uint64_t *begin, uint64_t *end)
{
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !is_natural(first) || !is_natural(last))
        return sl_error(SL_ERR_FORMAT, "\"data_offsets\" must be two whole numbers from 0 up");
    *begin = (uint64_t)json_integer_value(first);
    *end = (uint64_t)json_integer_value(last);
    if (*begin > *end)
        return sl_error(SL_ERR_FORMAT,
                        "\"data_offsets\" must not run backwards, got [%" PRIu64 ", %" PRIu64 "]",
                        *begin, *end);
    return SL_OK;
}

static sl_status parse_type(const json_t *value, unsigned *bits, sl_safetensors_info *info)
{
    char quoted[SLI_QUOTE_BYTES];
    if (!json_is_string(value))
        return sl_error(SL_ERR_FORMAT, "\"dtype\" must be a string");
    const sli_safetensors_dtype *found = sli_safetensors_dtype_find(json_string_value(value));
    if (!found)
        return sl_error(SL_ERR_FORMAT, "data type %s is unknown",
                        sli_safetensors_quote(json_string_value(value), quoted));
    *bits = found->bits;
    info->type_name = found->name;
    info->readable = found->readable;
    info->dtype = found->dtype;
    return SL_OK;
}

/* Fills `entry` from one value of the header; its sizes go to `sizes`. */
static sl_status parse_entry(const json_t *value, int64_t *sizes, sli_safetensors_entry *entry)
{
    sl_safetensors_info *info = &entry->info;
    char shape[SLI_SIZES_BYTES];
    unsigned bits = 0;
    uint64_t end = 0;
    if (!json_is_object(value))
        return sl_error(SL_ERR_FORMAT, "its description must be an object");
    SL_TRY(parse_type(json_object_get(value, "dtype"), &bits, info));
    SL_TRY(parse_shape(json_object_get(value, "shape"), sizes, info));
    SL_TRY(parse_offsets(json_object_get(value, "data_offsets"), &entry->begin, &end));
    if (!sli_safetensors_bytes(info->dims, info->size, bits, &info->bytes))
        return sl_error(SL_ERR_FORMAT, "%s of %s is no possible number of bytes",
                        sli_safetensors_sizes(info->dims, info->size, shape), info->type_name);
    if (info->bytes != end - entry->begin)
        return sl_error(SL_ERR_FORMAT,
                        "%s of %s takes %" PRIu64 " bytes, but \"data_offsets\" gives it %" PRIu64,
                        sli_safetensors_sizes(info->dims, info->size, shape), info->type_name,
                        info->bytes, end - entry->begin);
    return SL_OK;
}

static sl_status parse_entries(sli_safetensors_header *header)
{
    char quoted[SLI_QUOTE_BYTES];
    sli_safetensors_entry *entry = header->entries;
    int64_t *sizes = header->sizes;
    const char *name;
    json_t *value;
    json_object_foreach(header->json, name, value)
    {
        if (strcmp(name, metadata_key) == 0) {
            SL_TRY(check_metadata(value));
            continue;
        }
        entry->info.name = name;
        sl_status status = parse_entry(value, sizes, entry);
        if (status != SL_OK)
            return sl_error_context(status, "tensor %s: ", sli_safetensors_quote(name, quoted));
        sizes += entry->info.dims;
        entry++;
    }
    return SL_OK;
}

/* By place; tensors without bytes come before the one that begins there, in order of names. */
static int compare_places(const void *a, const void *b)
{
    const sli_safetensors_entry *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    if (left->info.bytes != right->info.bytes)
        return left->info.bytes < right->info.bytes ? -1 : 1;
    return strcmp(left->info.name, right->info.name);
}

static int compare_names(const void *a, const void *b)
{
    const sli_safetensors_entry *const *left = a, *const *right = b;
    return strcmp((*left)->info.name, (*right)->info.name);
}

static sl_status check_gap(const sli_safetensors_header *header, size_t index, uint64_t end)
{
    char quoted[SLI_QUOTE_BYTES], before[SLI_QUOTE_BYTES];
    const sli_safetensors_entry *entry = &header->entries[index];
    sli_safetensors_quote(entry->info.name, quoted);
    if (entry->begin > end)
        return sl_error(SL_ERR_FORMAT,
                        "bytes %" PRIu64 " to %" PRIu64 " of the data, before tensor %s, "
                        "belong to no tensor",
                        end, entry->begin - 1, quoted);
    if (entry->begin < end) /* so index > 0 */
        return sl_error(SL_ERR_FORMAT, "tensors %s and %s overlap",
                        sli_safetensors_quote(header->entries[index - 1].info.name, before),
                        quoted);
    return SL_OK;
}

static uint64_t end_of(const sli_safetensors_entry *entry)
{
    return entry->begin + entry->info.bytes; /* both at most INT64_MAX */
}

static sl_status check_range(const sli_safetensors_header *header, uint64_t data_bytes)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < header->count; i++) {
        const sli_safetensors_entry *entry = &header->entries[i];
        if (end_of(entry) > data_bytes)
            return sl_error(SL_ERR_FORMAT,
                            "tensor %s ends at byte %" PRIu64 " of the data, but the file has only "
                            "%" PRIu64 " of them: it was cut short, or its header is wrong",
                            sli_safetensors_quote(entry->info.name, quoted), end_of(entry),
                            data_bytes);
    }
    return SL_OK;
}

/* The tensors must lie one after the other, from the data's first byte to its last. */
static sl_status check_cover(const sli_safetensors_header *header, uint64_t data_bytes)
{
    uint64_t end = 0;
    SL_TRY(check_range(header, data_bytes));
    for (size_t i = 0; i < header->count; i++) {
        SL_TRY(check_gap(header, i, end));
        end = end_of(&header->entries[i]);
    }
    if (end < data_bytes)
        return sl_error(SL_ERR_FORMAT,
                        "the tensors end at byte %" PRIu64 " of the data, but the file has %" PRIu64
                        " of them",
                        end, data_bytes);
    return SL_OK;
}

static sl_status allocate(sli_safetensors_header *header)
{
    size_t sizes;
    count_parts(header->json, &header->count, &sizes);
    header->entries = calloc(header->count + 1, sizeof *header->entries);
    header->by_name = calloc(header->count + 1, sizeof(sli_safetensors_entry *));
    header->sizes = calloc(sizes + 1, sizeof *header->sizes);
    if (!header->entries || !header->by_name || !header->sizes)
        return sl_error(SL_ERR_MEMORY, "no memory for the table of %zu tensors", header->count);
    return SL_OK;
}

static sl_status fill(sli_safetensors_header *header, const char *text, size_t length,
                      uint64_t data_bytes)
{
    SL_TRY(parse_json(text, length, &header->json));
    SL_TRY(allocate(header));
    SL_TRY(parse_entries(header));
    qsort(header->entries, header->count, sizeof *header->entries, compare_places);
    for (size_t i = 0; i < header->count; i++)
        header->by_name[i] = &header->entries[i];
    qsort(header->by_name, header->count, sizeof(sli_safetensors_entry *), compare_names);
    return check_cover(header, data_bytes);
}

sl_status sli_safetensors_header_parse(const char *text, size_t length, uint64_t data_bytes,
                                       sli_safetensors_header **out)
{
    *out = NULL;
    sli_safetensors_header *header = calloc(1, sizeof *header);
    if (!header)
        return sl_error(SL_ERR_MEMORY, "no memory for a header's record");
    sl_status status = fill(header, text, length, data_bytes);
    if (status != SL_OK)
        sli_safetensors_header_destroy(&header);
    *out = header;
    return status;
}

void sli_safetensors_header_destroy(sli_safetensors_header **header)
{
    if (!header || !*header)
        return;
    free((*header)->sizes);
    free((*header)->by_name);
    free((*header)->entries);
    json_decref((*header)->json);
    free(*header);
    *header = NULL;
}

static int compare_with_name(const void *name, const void *entry)
{
    return strcmp(name, (*(sli_safetensors_entry *const *)entry)->info.name);
}

const sli_safetensors_entry *sli_safetensors_header_find(const sli_safetensors_header *header,
                                                         const char *name)
{
    sli_safetensors_entry **found = bsearch(name, header->by_name, header->count,
                                            sizeof(sli_safetensors_entry *), compare_with_name);
    return found ? *found : NULL;
}

const char *sli_safetensors_header_note(const sli_safetensors_header *header, const char *key)
{
    return json_string_value(json_object_get(json_object_get(header->json, metadata_key), key));
}

sl_status sli_safetensors_header_notes(const sli_safetensors_header *header,
                                       sl_safetensors_note **notes, size_t *count)
{
    json_t *metadata = json_object_get(header->json, metadata_key), *value;
    const char *key;
    *count = 0;
    *notes = calloc(json_object_size(metadata) + 1, sizeof **notes);
    if (!*notes)
        return sl_error(SL_ERR_MEMORY, "no memory for a file's metadata");
    json_object_foreach(metadata, key, value)
    {
        (*notes)[(*count)++] = (sl_safetensors_note){key, json_string_value(value)};
    }
    return SL_OK;
}
