/* First everything gets its range in the file and the header is printed (the layout); then the
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

/* ---- The layout ------------------------------------------------------------------------- */

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
static sl_status add_item(json_t *json, const sl_safetensors_item *item, uint64_t *end,
                          sli_safetensors_range *range)
{
    SL_TRY(check_name(json, item->name));
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
    if (json_object_set_new(json, item->name, value) != 0 || !complete)
        return no_memory();
    range->name = json_object_iter_key(json_object_iter_at(json, item->name));
    return SL_OK;
}

/* Items with larger elements come first, so each one begins at a multiple of its element. */
static sl_status add_items(sli_safetensors_layout *layout, const sl_safetensors_item *items,
                           uint64_t *end)
{
    static const unsigned widths[] = {64, 32, 16};
    char quoted[SLI_QUOTE_BYTES];
    size_t done = 0;
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; i < layout->count; i++) {
            const sli_safetensors_dtype *dtype = sli_safetensors_dtype_of(items[i].dtype);
            if (dtype && dtype->bits != widths[w])
                continue;
            SL_TRY(sl_error_context(add_item(layout->json, &items[i], end, &layout->ranges[i]),
                                    "tensor %s: ", sli_safetensors_quote(items[i].name, quoted)));
            done++;
        }
    return done == layout->count ? SL_OK
                                 : sl_error(SL_ERR_INTERNAL, "a data type of an unknown width");
}

/* Prints the header, padded with spaces, behind its length. */
static sl_status print_head(sli_safetensors_layout *layout)
{
    size_t length = json_dumpb(layout->json, NULL, 0, JSON_COMPACT);
    uint64_t padded = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (length == 0)
        return no_memory();
    if (padded > SLI_SAFETENSORS_HEADER_LIMIT)
        return sl_error(SL_ERR_INVALID,
                        "the header would have %" PRIu64 " bytes, more than the %" PRIu64
                        " allowed",
                        padded, SLI_SAFETENSORS_HEADER_LIMIT);
    layout->head_bytes = ALIGNMENT + padded;
    layout->head = malloc(layout->head_bytes);
    if (!layout->head)
        return no_memory();
    memcpy(layout->head, &padded, ALIGNMENT);
    memset(layout->head + ALIGNMENT, ' ', padded);
    json_dumpb(layout->json, layout->head + ALIGNMENT, length, JSON_COMPACT);
    return SL_OK;
}

sl_status sli_safetensors_layout_init(const sl_safetensors_item *items, size_t count,
                                      const sl_metadata *metadata, size_t metadata_count,
                                      sli_safetensors_layout *out)
{
    uint64_t end = 0;
    *out = (sli_safetensors_layout){.count = count, .json = json_object()};
    out->ranges = calloc(count + 1, sizeof *out->ranges);
    if (!out->json || !out->ranges)
        return no_memory();
    if (metadata_count > 0)
        SL_TRY(add_metadata(out->json, metadata, metadata_count));
    SL_TRY(add_items(out, items, &end));
    SL_TRY(print_head(out));
    for (size_t i = 0; i < count; i++)
        out->ranges[i].begin += out->head_bytes;
    out->file_bytes = out->head_bytes + end;
    return SL_OK;
}

void sli_safetensors_layout_clear(sli_safetensors_layout *layout)
{
    json_decref(layout->json);
    free(layout->ranges);
    free(layout->head);
    *layout = (sli_safetensors_layout){0};
}

/* ---- The writer ------------------------------------------------------------------------- */

struct sl_safetensors_writer {
    sli_replace_file *file;
    sli_safetensors_layout layout;
    sli_checksum *sum;
    uint64_t summed; /* bytes from the file's start that `sum` has */
};

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
    const sli_safetensors_layout *layout = &writer->layout;
    SL_TRY(sli_checksum_create(&writer->sum));
    SL_TRY(sli_replace_file_create(path, &writer->file));
    SL_TRY(sli_replace_file_reserve(writer->file, layout->file_bytes));
    return write_summed(writer, 0, layout->head, layout->head_bytes);
}

sl_status sl_safetensors_writer_create(const char *path, const sl_safetensors_item *items,
                                       size_t count, const sl_metadata *metadata,
                                       size_t metadata_count, sl_safetensors_writer **out)
{
    *out = NULL;
    sl_safetensors_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a writer", path);
    sl_status status =
        sli_safetensors_layout_init(items, count, metadata, metadata_count, &writer->layout);
    status = sl_error_context(status, "%s: ", path);
    if (status == SL_OK)
        status = start_file(writer, path);
    if (status != SL_OK)
        sl_safetensors_writer_destroy(&writer);
    *out = writer;
    return status;
}

sl_status sl_safetensors_writer_put(sl_safetensors_writer *writer, size_t index, const void *data)
{
    assert(index < writer->layout.count);
    sli_safetensors_range *range = &writer->layout.ranges[index];
    SL_TRY(write_summed(writer, range->begin, data, range->bytes));
    range->written = true;
    return SL_OK;
}

sl_status sl_safetensors_writer_commit(sl_safetensors_writer *writer)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < writer->layout.count; i++)
        if (!writer->layout.ranges[i].written)
            return sl_error(SL_ERR_INVALID,
                            "sl_safetensors_writer_commit: tensor %s was declared, not written",
                            sli_safetensors_quote(writer->layout.ranges[i].name, quoted));
    return sli_replace_file_commit(writer->file);
}

void sl_safetensors_writer_destroy(sl_safetensors_writer **writer)
{
    if (!writer || !*writer)
        return;
    sli_replace_file_destroy(&(*writer)->file);
    sli_safetensors_layout_clear(&(*writer)->layout);
    sli_checksum_destroy(&(*writer)->sum);
    free(*writer);
    *writer = NULL;
}

sl_status sl_safetensors_save(const char *path, const sl_safetensors_item *items, size_t count,
                              const sl_metadata *metadata, size_t metadata_count)
{
    sl_safetensors_writer *writer;
    SL_TRY(sl_safetensors_writer_create(path, items, count, metadata, metadata_count, &writer));
    sl_status status = SL_OK;
    for (size_t i = 0; i < count && status == SL_OK; i++)
        status = sl_safetensors_writer_put(writer, i, items[i].data);
    if (status == SL_OK)
        status = sl_safetensors_writer_commit(writer);
    sl_safetensors_writer_destroy(&writer);
    return status;
}

sl_status sli_safetensors_writer_checksum(const sl_safetensors_writer *writer, uint64_t *bytes,
                                          char *text)
{
    *bytes = writer->layout.file_bytes;
    if (writer->summed != *bytes)
        return sl_error(SL_ERR_INTERNAL,
                        "the tensors of a file with a checksum must be put in their order");
    sli_checksum_text(writer->sum, text);
    return SL_OK;
}
