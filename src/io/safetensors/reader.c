/* Reading a file: its header is checked when it is opened, its tensors are read when asked for.
 *
 * The checks of a header come in three rounds, each on what the one before has proven: the text is
 * JSON, member by member (core/json.h); each tensor by itself says a known data type, a shape and a
 * byte range that fit each other (parse_entry); the ranges together cover the data exactly
 * (check_cover). */
#include "io/safetensors/format.h"

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors files are little-endian, and tensors are read from them unchanged");

enum { LENGTH_BYTES = 8 }; /* of the number before the header */

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

static sl_status parse_members(parsing *run)
{
    sli_json_value root;
    sli_json_walk walk;
    size_t sizes = 1; /* at most: the numbers of a shape have commas between them */
    SL_TRY(sli_json_root(&run->json, &root));
    for (size_t i = 0; i < run->json.length; i++)
        sizes += run->json.text[i] == ',';
    run->sizes = run->header->sizes = calloc(sizes, sizeof *run->sizes);
    run->strings = run->header->strings = malloc(run->json.length);
    if (!run->sizes || !run->strings)
        return sli_no_memory(NULL, "a header of %zu bytes", run->json.length);
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

sl_status sli_safetensors_sort_names(sli_safetensors_header *header)
{
    header->by_name = calloc(header->count + 1, sizeof *header->by_name);
    if (!header->by_name)
        return sli_no_memory(NULL, "the table of %zu tensors", header->count);
    for (size_t i = 0; i < header->count; i++)
        header->by_name[i] =
            (sli_safetensors_name){header->entries[i].info.name, &header->entries[i]};
    return sli_names_sort(header->by_name, header->count, sizeof *header->by_name, "tensor");
}

sl_status sli_safetensors_header_parse(const char *text, size_t length, uint64_t data_bytes,
                                       sli_safetensors_header *out)
{
    parsing run = {.json = {"the header", text, length}, .header = out};
    *out = (sli_safetensors_header){0};
    if (length == 0 || text[0] != '{')
        return sl_error(SL_ERR_FORMAT, "the header must be a JSON object that begins with \"{\"");
    SL_TRY(parse_members(&run));
    if (out->count > 0)
        qsort(out->entries, out->count, sizeof *out->entries, compare_begins);
    SL_TRY(sli_safetensors_sort_names(out));
    return check_cover(out, data_bytes);
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

/* ---- Descriptors ------------------------------------------------------------------------ */

void sli_safetensors_close_descriptor(sli_safetensors_reader *reader)
{
    close(reader->descriptor);
    reader->descriptor = -1;
}

sl_status sli_safetensors_borrow_descriptor(const sli_safetensors_reader *reader, int *descriptor)
{
    struct stat found;
    uint64_t bytes;
    *descriptor = reader->descriptor;
    if (*descriptor >= 0)
        return SL_OK;
    SL_TRY(sli_file_open(reader->path, descriptor, &bytes));
    if (fstat(*descriptor, &found) == 0 && found.st_dev == reader->device &&
        found.st_ino == reader->inode && bytes == reader->file_bytes)
        return SL_OK;
    close(*descriptor);
    return sl_error(SL_ERR_IO, "%s: the file was replaced by another while it was read",
                    reader->path);
}

void sli_safetensors_return_descriptor(const sli_safetensors_reader *reader, int descriptor)
{
    if (descriptor != reader->descriptor)
        close(descriptor);
}

/* ---- Opening ---------------------------------------------------------------------------- */

static sl_status check_length(uint64_t length, uint64_t file_bytes)
{
    if (length > SLI_SAFETENSORS_HEADER_LIMIT)
        return sl_error(SL_ERR_FORMAT,
                        "its header would have %" PRIu64 " bytes, more than the %" PRIu64
                        " allowed: this is no safetensors file",
                        length, SLI_SAFETENSORS_HEADER_LIMIT);
    if (length > file_bytes - LENGTH_BYTES)
        return sl_error(SL_ERR_FORMAT,
                        "its header should have %" PRIu64 " bytes, but only %" PRIu64
                        " follow: it was cut short, or is no safetensors file",
                        length, file_bytes - LENGTH_BYTES);
    return SL_OK;
}

static sl_status read_header(sli_safetensors_reader *reader)
{
    uint64_t length = 0, file_bytes = reader->file_bytes;
    const char *path = reader->path;
    if (file_bytes < LENGTH_BYTES)
        return sl_error(SL_ERR_FORMAT,
                        "%s: a safetensors file begins with a number of 8 bytes, but the file has "
                        "%" PRIu64,
                        path, file_bytes);
    SL_TRY(sli_file_read_at(path, reader->descriptor, 0, &length, LENGTH_BYTES));
    SL_TRY(sl_error_context(check_length(length, file_bytes), "%s: ", path));
    reader->data_begin = LENGTH_BYTES + length;
    char *text = malloc(length + 1);
    if (!text)
        return sli_no_memory(path, "its header of %" PRIu64 " bytes", length);
    sl_status status;
    SL_TRY_OR_FAIL(sli_file_read_at(path, reader->descriptor, LENGTH_BYTES, text, length));
    status =
        sl_error_context(sli_safetensors_header_parse(text, length, file_bytes - reader->data_begin,
                                                      &reader->header),
                         "%s: ", path);
fail:
    free(text);
    return status;
}

static sl_status open_file(sli_safetensors_reader *reader)
{
    struct stat found;
    SL_TRY(sli_file_open(reader->path, &reader->descriptor, &reader->file_bytes));
    if (fstat(reader->descriptor, &found) != 0)
        return sli_io_error(reader->path, "cannot be examined");
    reader->device = found.st_dev;
    reader->inode = found.st_ino;
    return SL_OK;
}

sl_status sli_safetensors_open_file(const char *path, sli_safetensors_reader **out)
{
    sli_safetensors_reader *reader = *out = calloc(1, sizeof *reader);
    if (!reader || !(reader->path = strdup(path))) {
        free(reader);
        *out = NULL;
        return sli_no_memory(path, "opening it");
    }
    reader->descriptor = -1;
    sl_status status = open_file(reader);
    if (status != SL_OK)
        sli_safetensors_close(out);
    return status;
}

sl_status sli_safetensors_open(const char *path, sli_safetensors_reader **out)
{
    SL_TRY(sli_safetensors_open_file(path, out));
    sl_status status = read_header(*out);
    if (status != SL_OK)
        sli_safetensors_close(out);
    return status;
}

void sli_safetensors_close(sli_safetensors_reader **reader)
{
    if (!reader || !*reader)
        return;
    sli_file_map *map = atomic_load(&(*reader)->map);
    sli_file_map_release(&map);
    sli_safetensors_header_clear(&(*reader)->header);
    if ((*reader)->descriptor >= 0)
        close((*reader)->descriptor);
    free((*reader)->path);
    free(*reader);
    *reader = NULL;
}

size_t sli_safetensors_count(const sli_safetensors_reader *reader)
{
    return reader->header.count;
}

const sl_safetensors_info *sli_safetensors_get(const sli_safetensors_reader *reader, size_t index)
{
    return &reader->header.entries[index].info;
}

const sl_safetensors_info *sli_safetensors_find(const sli_safetensors_reader *reader,
                                                const char *name)
{
    const sli_safetensors_header *header = &reader->header;
    const sli_safetensors_name *found =
        sli_names_find(header->by_name, header->count, sizeof *found, name);
    return found ? &found->entry->info : NULL;
}

const char *sli_safetensors_metadata(const sli_safetensors_reader *reader, const char *key)
{
    for (size_t i = 0; i < reader->header.metadata_count; i++)
        if (strcmp(reader->header.metadata[i].key, key) == 0)
            return reader->header.metadata[i].value;
    return NULL;
}

sl_status sli_safetensors_read_bytes(const sli_safetensors_reader *reader,
                                     const sl_safetensors_info *info, uint64_t offset,
                                     uint64_t bytes, void *to)
{
    const sli_safetensors_entry *entry = (const sli_safetensors_entry *)info; /* its first field */
    char quoted[SLI_QUOTE_BYTES];
    int descriptor;
    if (!info->readable)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%s: tensor %s: its data type is %s, where F32, F64, I32, I64 and BF16 can "
                        "be read",
                        reader->path, sli_safetensors_quote(info->name, quoted), info->type_name);
    SL_TRY(sli_safetensors_borrow_descriptor(reader, &descriptor));
    sl_status status = sli_file_read_at(reader->path, descriptor,
                                        reader->data_begin + entry->begin + offset, to, bytes);
    sli_safetensors_return_descriptor(reader, descriptor);
    return status;
}

sl_status sli_safetensors_read(const sli_safetensors_reader *reader,
                               const sl_safetensors_info *info, void *to)
{
    return sli_safetensors_read_bytes(reader, info, 0, info->bytes, to);
}

/* ---- Mapping ---------------------------------------------------------------------------- */

/* The file's map, which its reader holds; made by the first call. NULL: it cannot be mapped. */
static sl_status need_map(sli_safetensors_reader *reader, sli_file_map **out)
{
    int descriptor;
    *out = atomic_load(&reader->map);
    if (*out)
        return SL_OK;
    SL_TRY(sli_safetensors_borrow_descriptor(reader, &descriptor));
    *out = sli_file_map_create(descriptor, reader->file_bytes);
    sli_safetensors_return_descriptor(reader, descriptor);
    atomic_store(&reader->map, *out);
    return SL_OK;
}

sl_status sli_safetensors_map(sli_safetensors_reader *reader, const sl_safetensors_info *info,
                              sli_file_map **map, void **data)
{
    const sli_safetensors_entry *entry = (const sli_safetensors_entry *)info; /* its first field */
    SL_TRY(need_map(reader, map));
    *data = *map ? sli_file_map_bytes(*map) + reader->data_begin + entry->begin : NULL;
    return SL_OK;
}

void sli_safetensors_end_map(sli_safetensors_reader *reader)
{
    atomic_store(&reader->map_ended, true);
}

sl_status sli_safetensors_read_at(const sli_safetensors_reader *reader, int descriptor,
                                  uint64_t begin, void *to, uint64_t bytes)
{
    const sli_file_map *map = atomic_load(&reader->map);
    bool in_place = map && !atomic_load(&reader->map_ended);
    return in_place && sli_file_map_bytes(map) + begin == to
               ? sli_file_map_load(map, reader->path, begin, bytes)
               : sli_file_read_at(reader->path, descriptor, begin, to, bytes);
}
