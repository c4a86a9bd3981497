/* Writing a file: first everything gets its range in the file and the header is printed; then the
 * items are written in their order in the file, and the file takes its name. */
#include "core/error.h"
#include "io/safetensors/format.h"

#include "core/replace.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors files are little-endian, and tensors are written to them unchanged");

typedef struct writer {
    json_t *json;  /* the header */
    char *head;    /* the file's first `head_bytes`: the header's length, and the header */
    size_t *order; /* [count]: the items, as they lie in the file */
    size_t count, head_bytes;
    uint64_t file_bytes;
    sli_replace_file *file;
    sli_checksum *sum;
    uint64_t written; /* bytes from the file's start, which are in `sum` */
} writer;

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
    return sli_no_memory(NULL, "the header");
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

/* Describes the item in the header; the data before it end at *end. */
static sl_status add_item(writer *output, const sl_safetensors_item *item, uint64_t *end)
{
    uint64_t bytes, begin = *end;
    SL_TRY(check_name(output->json, item->name));
    SL_TRY(count_bytes(item, &bytes));
    if (__builtin_add_overflow(begin, bytes, end) || *end > INT64_MAX / 2)
        return sl_error(SL_ERR_INVALID, "with it the file would be larger than a file can be");
    json_t *shape = json_array();
    for (int i = 0; i < item->shape.dims; i++)
        json_array_append_new(shape, json_integer(item->shape.size[i]));
    bool complete = json_array_size(shape) == (size_t)item->shape.dims;
    json_t *value =
        json_pack("{s:s, s:o, s:[I,I]}", "dtype", sli_safetensors_dtype_of(item->dtype)->name,
                  "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)*end);
    return json_object_set_new(output->json, item->name, value) == 0 && complete ? SL_OK
                                                                                 : no_memory();
}

/* Items with larger elements come first, so each one begins at a multiple of its element. */
static sl_status add_items(writer *output, const sl_safetensors_item *items, uint64_t *end)
{
    char quoted[SLI_QUOTE_BYTES];
    size_t done = 0;
    for (unsigned bits = 64; bits > 0; bits /= 2)
        for (size_t i = 0; i < output->count; i++) {
            const sli_safetensors_dtype *dtype = sli_safetensors_dtype_of(items[i].dtype);
            if (dtype && dtype->bits != bits)
                continue;
            SL_TRY(sl_error_context(add_item(output, &items[i], end),
                                    "tensor %s: ", sli_safetensors_quote(items[i].name, quoted)));
            output->order[done++] = i;
        }
    return SL_OK;
}

/* Prints the header, padded with spaces, behind its length. */
static sl_status print_head(writer *output)
{
    size_t length = json_dumpb(output->json, NULL, 0, JSON_COMPACT);
    uint64_t padded = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (length == 0)
        return no_memory();
    if (padded > SLI_SAFETENSORS_HEADER_LIMIT)
        return sl_error(SL_ERR_INVALID,
                        "the header would have %" PRIu64 " bytes, more than the %" PRIu64
                        " allowed",
                        padded, SLI_SAFETENSORS_HEADER_LIMIT);
    output->head_bytes = ALIGNMENT + padded;
    output->head = malloc(output->head_bytes);
    if (!output->head)
        return no_memory();
    memcpy(output->head, &padded, ALIGNMENT);
    memset(output->head + ALIGNMENT, ' ', padded);
    json_dumpb(output->json, output->head + ALIGNMENT, length, JSON_COMPACT);
    return SL_OK;
}

static sl_status lay_out(writer *output, const sl_safetensors_item *items,
                         const sl_metadata *metadata, size_t metadata_count)
{
    uint64_t data_bytes = 0;
    output->json = json_object();
    output->order = calloc(output->count + 1, sizeof *output->order);
    if (!output->json || !output->order)
        return no_memory();
    if (metadata_count > 0)
        SL_TRY(add_metadata(output->json, metadata, metadata_count));
    SL_TRY(add_items(output, items, &data_bytes));
    SL_TRY(print_head(output));
    output->file_bytes = output->head_bytes + data_bytes;
    return SL_OK;
}

/* ---- Writing ---------------------------------------------------------------------------- */

/* Takes the disk space for all of the file. */
static sl_status start_file(writer *output, const char *path, const sl_safetensors_item *items,
                            const sl_metadata *metadata, size_t metadata_count)
{
    SL_TRY(sl_error_context(lay_out(output, items, metadata, metadata_count), "%s: ", path));
    SL_TRY(sli_checksum_create(&output->sum));
    SL_TRY(sli_replace_file_create(path, &output->file));
    return sli_replace_file_reserve(output->file, output->file_bytes);
}

/* Sums and writes blocks that stay in a core's cache between the two. */
static sl_status append_bytes(writer *output, const char *data, uint64_t bytes)
{
    enum { BLOCK_BYTES = 1 << 18 };
    for (uint64_t done = 0, block; done < bytes; done += block) {
        block = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
        sli_checksum_add(output->sum, data + done, block);
        SL_TRY(sli_replace_file_write(output->file, output->written, data + done, block));
        output->written += block;
    }
    return SL_OK;
}

static sl_status write_file(writer *output, const sl_safetensors_item *items,
                            const sli_item_source *source)
{
    SL_TRY(append_bytes(output, output->head, output->head_bytes));
    for (size_t i = 0; i < output->count; i++) {
        const sl_safetensors_item *item = &items[output->order[i]];
        const void *data = item->data;
        if (source)
            SL_TRY(source->read(source->context, item, &data));
        SL_TRY(append_bytes(output, data, sli_safetensors_item_bytes(item)));
    }
    return sli_replace_file_commit(output->file);
}

/* Removes a file that was not committed. */
static void clear_writer(writer *output)
{
    sli_replace_file_destroy(&output->file);
    sli_checksum_destroy(&output->sum);
    json_decref(output->json);
    free(output->order);
    free(output->head);
}

sl_status sli_safetensors_write(const char *path, const sl_safetensors_item *items, size_t count,
                                const sl_metadata *metadata, size_t metadata_count,
                                const sli_item_source *source, sli_written_file *written)
{
    writer output = {.count = count};
    sl_status status;
    SL_TRY_OR_FAIL(start_file(&output, path, items, metadata, metadata_count));
    SL_TRY_OR_FAIL(write_file(&output, items, source));
    written->bytes = output.file_bytes;
    sli_checksum_text(output.sum, written->checksum);
fail:
    clear_writer(&output);
    return status;
}

sl_status sli_safetensors_try_write(const char *path, const sl_safetensors_item *items,
                                    size_t count)
{
    writer output = {.count = count};
    sl_status status = start_file(&output, path, items, NULL, 0);
    clear_writer(&output);
    return status;
}

sl_status sl_safetensors_save(const char *path, const sl_safetensors_item *items, size_t count,
                              const sl_metadata *metadata, size_t metadata_count)
{
    sli_written_file written;
    return sli_safetensors_write(path, items, count, metadata, metadata_count, NULL, &written);
}
