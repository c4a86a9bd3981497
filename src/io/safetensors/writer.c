/* Writing a file: first everything gets its range in the file and the header is printed; then the
 * items are written, in any order, and the file takes its name. */
#include "io/safetensors/format.h"

#include "core/replace.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors files are little-endian, and tensors are written to them unchanged");

typedef struct item_range {
    const char *name;
    uint64_t begin; /* of its bytes in the file */
    uint64_t bytes;
    bool written;
} item_range;

struct sl_safetensors_writer {
    json_t *json;       /* the header; owns the names */
    char *head;         /* the file's first `head_bytes`: the header's length, and the header */
    item_range *ranges; /* [count], one for each item */
    size_t *order;      /* [count]: the items, as they lie in the file */
    size_t count, head_bytes;
    uint64_t file_bytes;
    sli_replace_file *file;
    sli_checksum *sum;
    uint64_t summed; /* bytes from the file's start that `sum` has */
};

/* ---- Laying the file out ---------------------------------------------------------------- */

/* The header's length before it, and what the header's own length is a multiple of: so the data
 * begins at a multiple of 8, the largest element. */
enum { ALIGNMENT = 8 };

static bool is_utf8(const char *text)
{
    return u8_check((const uint8_t *)text, strlen(text)) == NULL;
}

static sl_status no_memory(void)
{
    return sl_error(SL_ERR_MEMORY, "no memory for the header");
}

static sl_status add_metadata(json_t *json, const sl_metadata *metadata, size_t count)
{
    char quoted[SLI_QUOTE_BYTES];
    json_t *values = json_object();
    /* Like every function of jansson that takes a value, this one accepts a NULL as a failure. */
    if (json_object_set_new(json, SLI_SAFETENSORS_METADATA_KEY, values) != 0)
        return no_memory();
    for (size_t i = 0; i < count; i++) {
        if (!is_utf8(metadata[i].key) || !is_utf8(metadata[i].value))
            return sl_error(SL_ERR_INVALID, "the metadata of the key %s is not UTF-8",
                            sli_safetensors_quote(metadata[i].key, quoted));
        if (json_object_set_new(values, metadata[i].key, json_string(metadata[i].value)) != 0)
            return no_memory();
    }
    return SL_OK;
}

static sl_status check_name(const json_t *json, const char *name)
{
    if (!is_utf8(name))
        return sl_error(SL_ERR_INVALID, "its name is not UTF-8");
    if (strcmp(name, SLI_SAFETENSORS_METADATA_KEY) == 0)
        return sl_error(SL_ERR_INVALID, "the format keeps this name for itself");
    if (json_object_get(json, name))
        return sl_error(SL_ERR_INVALID, "the name is used twice");
    return SL_OK;
}

static sl_status count_bytes(const sl_safetensors_item *item, uint64_t *bytes)
{
    char shape[SLI_SIZES_BYTES];
    const sli_safetensors_dtype *dtype = sli_safetensors_dtype_of(item->dtype);
    if (!dtype)
        return sl_error(SL_ERR_INVALID, "%d is no data type", (int)item->dtype);
    if (item->shape.dims < 0 || item->shape.dims > SL_MAX_DIMS)
        return sl_error(SL_ERR_INVALID, "a shape has 0 to %d dimensions, got %d", SL_MAX_DIMS,
                        item->shape.dims);
    bool possible = true;
    for (int i = 0; i < item->shape.dims; i++)
        possible = possible && item->shape.size[i] >= 0;
    if (!possible ||
        !sli_safetensors_bytes(item->shape.dims, item->shape.size, dtype->bits, bytes) ||
        *bytes > INT64_MAX)
        return sl_error(SL_ERR_INVALID, "%s is no possible shape",
                        sli_safetensors_sizes(item->shape.dims, item->shape.size, shape));
    return SL_OK;
}

/* Describes the item in the header; its range is counted from the start of the data, until the
 * header's length is known. */
static sl_status add_item(sl_safetensors_writer *writer, const sl_safetensors_item *item,
                          uint64_t *end, item_range *range)
{
    SL_TRY(check_name(writer->json, item->name));
    SL_TRY(count_bytes(item, &range->bytes));
    range->begin = *end;
    if (__builtin_add_overflow(*end, range->bytes, end) || *end > INT64_MAX / 2)
        return sl_error(SL_ERR_INVALID, "with it the file would be larger than a file can be");
    json_t *shape = json_array();
    for (int i = 0; i < item->shape.dims; i++)
        json_array_append_new(shape, json_integer(item->shape.size[i]));
    bool complete = json_array_size(shape) == (size_t)item->shape.dims;
    json_t *value =
        json_pack("{s:s, s:o, s:[I,I]}", "dtype", sli_safetensors_dtype_of(item->dtype)->name,
                  "shape", shape, "data_offsets", (json_int_t)range->begin, (json_int_t)*end);
    if (json_object_set_new(writer->json, item->name, value) != 0 || !complete)
        return no_memory();
    range->name = json_object_iter_key(json_object_iter_at(writer->json, item->name));
    return SL_OK;
}

/* Items with larger elements come first, so each one begins at a multiple of its element. */
static sl_status add_items(sl_safetensors_writer *writer, const sl_safetensors_item *items,
                           uint64_t *end)
{
    static const unsigned widths[] = {64, 32, 16};
    char quoted[SLI_QUOTE_BYTES];
    size_t done = 0;
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; i < writer->count; i++) {
            const sli_safetensors_dtype *dtype = sli_safetensors_dtype_of(items[i].dtype);
            if (dtype && dtype->bits != widths[w])
                continue;
            SL_TRY(sl_error_context(add_item(writer, &items[i], end, &writer->ranges[i]),
                                    "tensor %s: ", sli_safetensors_quote(items[i].name, quoted)));
            writer->order[done++] = i;
        }
    return done == writer->count ? SL_OK
                                 : sl_error(SL_ERR_INTERNAL, "a data type of an unknown width");
}

/* Prints the header, padded with spaces, behind its length. */
static sl_status print_head(sl_safetensors_writer *writer)
{
    size_t length = json_dumpb(writer->json, NULL, 0, JSON_COMPACT);
    uint64_t padded = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (length == 0)
        return no_memory();
    if (padded > SLI_SAFETENSORS_HEADER_LIMIT)
        return sl_error(SL_ERR_INVALID,
                        "the header would have %" PRIu64 " bytes, more than the %" PRIu64
                        " allowed",
                        padded, SLI_SAFETENSORS_HEADER_LIMIT);
    writer->head_bytes = ALIGNMENT + padded;
    writer->head = malloc(writer->head_bytes);
    if (!writer->head)
        return no_memory();
    memcpy(writer->head, &padded, ALIGNMENT);
    memset(writer->head + ALIGNMENT, ' ', padded);
    json_dumpb(writer->json, writer->head + ALIGNMENT, length, JSON_COMPACT);
    return SL_OK;
}

static sl_status lay_out(sl_safetensors_writer *writer, const sl_safetensors_item *items,
                         size_t count, const sl_metadata *metadata, size_t metadata_count)
{
    uint64_t end = 0;
    writer->count = count;
    writer->json = json_object();
    writer->ranges = calloc(count + 1, sizeof *writer->ranges);
    writer->order = calloc(count + 1, sizeof *writer->order);
    if (!writer->json || !writer->ranges || !writer->order)
        return no_memory();
    if (metadata_count > 0)
        SL_TRY(add_metadata(writer->json, metadata, metadata_count));
    SL_TRY(add_items(writer, items, &end));
    SL_TRY(print_head(writer));
    for (size_t i = 0; i < count; i++)
        writer->ranges[i].begin += writer->head_bytes;
    writer->file_bytes = writer->head_bytes + end;
    return SL_OK;
}

/* ---- Writing ---------------------------------------------------------------------------- */

/* Writes and sums blocks that stay in a core's cache between the two. */
static sl_status write_summed(sl_safetensors_writer *writer, uint64_t offset, const char *data,
                              uint64_t bytes)
{
    enum { BLOCK_BYTES = 1 << 18 };
    for (uint64_t done = 0; done < bytes;) {
        uint64_t block = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
        if (writer->summed == offset + done) {
            sli_checksum_add(writer->sum, data + done, block);
            writer->summed += block;
        }
        SL_TRY(sli_replace_file_write(writer->file, offset + done, data + done, block));
        done += block;
    }
    return SL_OK;
}

static sl_status start_file(sl_safetensors_writer *writer, const char *path)
{
    SL_TRY(sli_checksum_create(&writer->sum));
    SL_TRY(sli_replace_file_create(path, &writer->file));
    SL_TRY(sli_replace_file_reserve(writer->file, writer->file_bytes));
    return write_summed(writer, 0, writer->head, writer->head_bytes);
}

sl_status sl_safetensors_writer_create(const char *path, const sl_safetensors_item *items,
                                       size_t count, const sl_metadata *metadata,
                                       size_t metadata_count, sl_safetensors_writer **out)
{
    sl_safetensors_writer *writer = *out = calloc(1, sizeof *writer);
    if (!writer)
        return sl_error(SL_ERR_MEMORY, "%s: no memory to write it", path);
    sl_status status =
        sl_error_context(lay_out(writer, items, count, metadata, metadata_count), "%s: ", path);
    if (status == SL_OK)
        status = start_file(writer, path);
    if (status != SL_OK)
        sl_safetensors_writer_destroy(out);
    return status;
}

sl_status sl_safetensors_writer_put(sl_safetensors_writer *writer, size_t index, const void *data)
{
    assert(index < writer->count);
    item_range *range = &writer->ranges[index];
    SL_TRY(write_summed(writer, range->begin, data, range->bytes));
    range->written = true;
    return SL_OK;
}

sl_status sl_safetensors_writer_commit(sl_safetensors_writer *writer)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < writer->count; i++)
        if (!writer->ranges[i].written)
            return sl_error(SL_ERR_INVALID,
                            "sl_safetensors_writer_commit: tensor %s was declared, not written",
                            sli_safetensors_quote(writer->ranges[i].name, quoted));
    return sli_replace_file_commit(writer->file);
}

void sl_safetensors_writer_destroy(sl_safetensors_writer **writer)
{
    if (!writer || !*writer)
        return;
    sli_replace_file_destroy(&(*writer)->file);
    sli_checksum_destroy(&(*writer)->sum);
    json_decref((*writer)->json);
    free((*writer)->ranges);
    free((*writer)->order);
    free((*writer)->head);
    free(*writer);
    *writer = NULL;
}

/* In the order in which the items lie in the file, so that the checksum has all of its bytes. */
sl_status sli_safetensors_write(const char *path, const sl_safetensors_item *items, size_t count,
                                const sl_metadata *metadata, size_t metadata_count,
                                const sli_item_source *source, sli_written_file *written)
{
    sl_safetensors_writer *writer;
    SL_TRY(sl_safetensors_writer_create(path, items, count, metadata, metadata_count, &writer));
    sl_status status = SL_OK;
    for (size_t k = 0; k < count && status == SL_OK; k++) {
        const sl_safetensors_item *item = &items[writer->order[k]];
        const void *data = item->data;
        if (source)
            status = source->read(source->context, item, &data);
        if (status == SL_OK)
            status = sl_safetensors_writer_put(writer, writer->order[k], data);
    }
    if (status == SL_OK)
        status = sl_safetensors_writer_commit(writer);
    written->bytes = writer->file_bytes;
    sli_checksum_text(writer->sum, written->checksum);
    sl_safetensors_writer_destroy(&writer);
    return status;
}

sl_status sl_safetensors_save(const char *path, const sl_safetensors_item *items, size_t count,
                              const sl_metadata *metadata, size_t metadata_count)
{
    sli_written_file written;
    return sli_safetensors_write(path, items, count, metadata, metadata_count, NULL, &written);
}
