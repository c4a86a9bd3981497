/* Checks come in three rounds, each on what the one before has proven: the text is JSON, member by
 * member (core/json.h); each tensor by itself says a known data type, a shape and a byte range that
 * fit each other (parse_entry); the ranges together cover the data exactly (check_cover). */
#include "io/safetensors/format.h"

#include "core/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DESCRIPTION = 4096 }; /* bytes of a tensor's: some hundreds of dimensions */

/* What is read, and how much of the header's memory is used so far. */
typedef struct parsing {
    sli_json json;
    char *strings;
    int64_t *sizes;
    size_t entry_room;
    bool has_metadata;
    sli_safetensors_header *header;
} parsing;

/* ---- Metadata ----------------------------------------------------------------------------- */

sl_status sli_safetensors_read_strings(const sli_json *json, sli_json_value object,
                                       const char *what, char **room, sl_metadata **out,
                                       size_t *count)
{
    char quoted[SLI_QUOTE_BYTES];
    size_t capacity = 0;
    sli_json_walk walk;
    if (!sli_json_is(object, '{'))
        return sl_error(SL_ERR_FORMAT, "%s must be an object of strings", what);
    SL_TRY(sli_json_walk_begin(json, object, &walk));
    while (sli_json_walk_next(&walk)) {
        SL_TRY(sli_array_reserve(out, &capacity, *count + 1, sizeof **out,
                                 SLI_SAFETENSORS_HEADER_LIMIT, "strings"));
        sl_metadata *entry = &(*out)[(*count)++];
        SL_TRY(sli_json_decode(json, walk.key, room, &entry->key));
        if (!sli_json_is(walk.value, '"'))
            return sl_error(SL_ERR_FORMAT, "%s must hold strings only, but %s is none", what,
                            sli_safetensors_quote(entry->key, quoted));
        SL_TRY(sli_json_decode(json, walk.value, room, &entry->value));
    }
    return walk.status;
}

static sl_status parse_metadata(parsing *run, sli_json_value object)
{
    sli_safetensors_header *header = run->header;
    if (run->has_metadata)
        return sl_error(SL_ERR_FORMAT, "the key \"%s\" is listed twice",
                        SLI_SAFETENSORS_METADATA_KEY);
    run->has_metadata = true;
    SL_TRY(sli_safetensors_read_strings(&run->json, object, SLI_SAFETENSORS_METADATA_KEY,
                                        &run->strings, &header->metadata, &header->metadata_count));
    return sli_names_check(header->metadata, header->metadata_count, sizeof *header->metadata,
                           "the key");
}

/* ---- One tensor --------------------------------------------------------------------------- */

static sl_status parse_shape(const json_t *shape, int64_t *sizes, sl_safetensors_info *info)
{
    size_t dims = json_array_size(shape);
    if (!json_is_array(shape))
        return sl_error(SL_ERR_FORMAT, "\"shape\" must be an array");
    for (size_t i = 0; i < dims; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return sl_error(SL_ERR_FORMAT, "\"shape\" must hold whole numbers from 0 up");
        sizes[i] = json_integer_value(size);
    }
    info->dims = (int)dims;
    info->size = sizes;
    return SL_OK;
}

static sl_status parse_offsets(json_t *offsets, uint64_t *begin, uint64_t *end)
{
    json_int_t first, last;
    if (json_unpack(offsets, "[I,I!]", &first, &last) != 0 || first < 0 || last < 0)
        return sl_error(SL_ERR_FORMAT, "\"data_offsets\" must be two whole numbers from 0 up");
    *begin = (uint64_t)first;
    *end = (uint64_t)last;
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

static sl_status parse_tensor(parsing *run, const sli_json_walk *member)
{
    char quoted[SLI_QUOTE_BYTES];
    json_t *value;
    sli_safetensors_header *header = run->header;
    SL_TRY(sli_array_reserve(&header->entries, &run->entry_room, header->count + 1,
                             sizeof *header->entries, SLI_SAFETENSORS_HEADER_LIMIT, "tensors"));
    sli_safetensors_entry *entry = &header->entries[header->count++];
    *entry = (sli_safetensors_entry){0};
    SL_TRY(sli_json_decode(&run->json, member->key, &run->strings, &entry->info.name));
    sl_status status = sli_json_parse(&run->json, member->value, MOST_DESCRIPTION, &value);
    if (status == SL_OK) {
        status = parse_entry(value, run->sizes, entry);
        run->sizes += entry->info.dims;
        json_decref(value);
    }
    return sl_error_context(status, "tensor %s: ", sli_safetensors_quote(entry->info.name, quoted));
}

/* ---- All of it ---------------------------------------------------------------------------- */

/* Room for all strings and sizes: the numbers of a shape have commas between them. */
static sl_status allocate(parsing *run)
{
    sli_safetensors_header *header = run->header;
    size_t sizes = 1;
    for (size_t i = 0; i < run->json.length; i++)
        sizes += run->json.text[i] == ',';
    header->sizes = run->sizes = calloc(sizes, sizeof *header->sizes);
    header->strings = run->strings = malloc(run->json.length);
    return header->sizes && header->strings
               ? SL_OK
               : sl_error(SL_ERR_MEMORY, "no memory for a header of %zu bytes", run->json.length);
}

static sl_status parse_members(parsing *run)
{
    sli_json_value root;
    sli_json_walk walk;
    SL_TRY(sli_json_root(&run->json, &root));
    SL_TRY(allocate(run));
    SL_TRY(sli_json_walk_begin(&run->json, root, &walk));
    while (sli_json_walk_next(&walk))
        if (sli_json_equals(walk.key, SLI_SAFETENSORS_METADATA_KEY))
            SL_TRY(parse_metadata(run, walk.value));
        else
            SL_TRY(parse_tensor(run, &walk));
    return walk.status;
}

/* Tensors without bytes come before the one that begins at the same byte, in order of names. */
static int compare_begins(const void *a, const void *b)
{
    const sli_safetensors_entry *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    if (left->info.bytes != right->info.bytes)
        return left->info.bytes < right->info.bytes ? -1 : 1;
    return strcmp(left->info.name, right->info.name);
}

static uint64_t end_of(const sli_safetensors_entry *entry)
{
    return entry->begin + entry->info.bytes; /* both at most INT64_MAX */
}

/* The tensors must lie one after the other, from the data's first byte to its last. */
static sl_status check_cover(const sli_safetensors_header *header, uint64_t data_bytes)
{
    char quoted[SLI_QUOTE_BYTES], before[SLI_QUOTE_BYTES];
    uint64_t end = 0;
    for (size_t i = 0; i < header->count; end = end_of(&header->entries[i++])) {
        const sli_safetensors_entry *entry = &header->entries[i];
        sli_safetensors_quote(entry->info.name, quoted);
        if (end_of(entry) > data_bytes)
            return sl_error(SL_ERR_FORMAT,
                            "tensor %s ends at byte %" PRIu64 " of the data, but the file has only "
                            "%" PRIu64 " of them: it was cut short, or its header is wrong",
                            quoted, end_of(entry), data_bytes);
        if (entry->begin > end)
            return sl_error(SL_ERR_FORMAT,
                            "bytes %" PRIu64 " to %" PRIu64 " of the data, before tensor %s, "
                            "belong to no tensor",
                            end, entry->begin - 1, quoted);
        if (entry->begin < end) /* so i > 0 */
            return sl_error(SL_ERR_FORMAT, "tensors %s and %s overlap",
                            sli_safetensors_quote(entry[-1].info.name, before), quoted);
    }
    if (end < data_bytes)
        return sl_error(SL_ERR_FORMAT,
                        "the tensors end at byte %" PRIu64 " of the data, but the file has %" PRIu64
                        " of them",
                        end, data_bytes);
    return SL_OK;
}

static sl_status sort_names(sli_safetensors_header *header)
{
    header->by_name = calloc(header->count + 1, sizeof *header->by_name);
    if (!header->by_name)
        return sl_error(SL_ERR_MEMORY, "no memory for the table of %zu tensors", header->count);
    for (size_t i = 0; i < header->count; i++) {
        const sli_safetensors_entry *entry = &header->entries[i];
        header->by_name[i] = (sli_safetensors_name){entry->info.name, entry};
    }
    return sli_names_sort(header->by_name, header->count, sizeof *header->by_name, "tensor");
}

static sl_status read_header(const char *text, size_t length, uint64_t data_bytes,
                             sli_safetensors_header *header)
{
    parsing run = {.json = {"the header", text, length}, .header = header};
    if (length == 0 || text[0] != '{')
        return sl_error(SL_ERR_FORMAT, "the header must be a JSON object that begins with \"{\"");
    SL_TRY(parse_members(&run));
    if (header->count > 0)
        qsort(header->entries, header->count, sizeof *header->entries, compare_begins);
    SL_TRY(sort_names(header));
    return check_cover(header, data_bytes);
}

sl_status sli_safetensors_header_parse(const char *text, size_t length, uint64_t data_bytes,
                                       sli_safetensors_header *out)
{
    *out = (sli_safetensors_header){0};
    sl_status status = read_header(text, length, data_bytes, out);
    if (status != SL_OK)
        sli_safetensors_header_clear(out);
    return status;
}

void sli_safetensors_header_clear(sli_safetensors_header *header)
{
    free(header->sizes);
    free(header->by_name);
    free(header->entries);
    free(header->metadata);
    free(header->strings);
    *header = (sli_safetensors_header){0};
}

const sli_safetensors_entry *sli_safetensors_header_find(const sli_safetensors_header *header,
                                                         const char *name)
{
    const sli_safetensors_name *found =
        sli_names_find(header->by_name, header->count, sizeof *found, name);
    return found ? found->entry : NULL;
}
