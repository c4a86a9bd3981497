#include "io/safetensors/layout.h"

#include "io/safetensors/dtype.h"
#include "io/safetensors/header.h"
#include "io/safetensors/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

/* The header's length before it, and what the header's own length is a multiple of: so the data
 * begins at a multiple of 8, the largest element. */
enum { ALIGNMENT = 8 };

static const char *const metadata_key = "__metadata__";

static bool is_utf8(const char *text)
{
    return u8_check((const uint8_t *)text, strlen(text)) == NULL;
}

static sl_status no_memory(void)
{
    return sl_error(SL_ERR_MEMORY, "no memory for the header");
}

static json_t *metadata_values(const sl_metadata *metadata, size_t count)
{
    json_t *values = json_object();
    for (size_t i = 0; values && i < count; i++)
        if (json_object_set_new(values, metadata[i].key, json_string(metadata[i].value)) != 0) {
            json_decref(values);
            return NULL;
        }
    return values;
}

static sl_status add_metadata(json_t *json, const sl_metadata *metadata, size_t count)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < count; i++)
        if (!is_utf8(metadata[i].key) || !is_utf8(metadata[i].value))
            return sl_error(SL_ERR_INVALID, "the metadata of the key %s is not UTF-8",
                            sli_safetensors_quote(metadata[i].key, quoted));
    if (count == 0)
        return SL_OK;
    json_t *values = metadata_values(metadata, count);
    return json_object_set_new(json, metadata_key, values) == 0 ? SL_OK : no_memory();
}

static sl_status check_name(const json_t *json, const char *name)
{
    if (!is_utf8(name))
        return sl_error(SL_ERR_INVALID, "its name is not UTF-8");
    if (strcmp(name, metadata_key) == 0)
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

/* Counted from the start of the data, until the header's length is known. */
static sl_status place_item(const sl_safetensors_item *item, uint64_t *end,
                            sli_safetensors_place *place)
{
    SL_TRY(count_bytes(item, &place->bytes));
    place->begin = *end;
    if (__builtin_add_overflow(*end, place->bytes, end) || *end > INT64_MAX / 2)
        return sl_error(SL_ERR_INVALID, "with it the file would pass any possible size");
    return SL_OK;
}

static sl_status describe_item(json_t *json, const sl_safetensors_item *item,
                               sli_safetensors_place *place)
{
    json_t *shape = json_array();
    for (int i = 0; i < item->shape.dims; i++)
        json_array_append_new(shape, json_integer(item->shape.size[i]));
    bool complete = json_array_size(shape) == (size_t)item->shape.dims;
    json_int_t begin = (json_int_t)place->begin, bytes = (json_int_t)place->bytes;
    json_t *value =
        json_pack("{s:s, s:o, s:[I,I]}", "dtype", sli_safetensors_dtype_of(item->dtype)->name,
                  "shape", shape, "data_offsets", begin, begin + bytes);
    /* Like every function of jansson that takes a value, this one accepts a NULL as a failure. */
    if (json_object_set_new(json, item->name, value) != 0 || !complete)
        return no_memory();
    place->name = json_object_iter_key(json_object_iter_at(json, item->name));
    return SL_OK;
}

static sl_status add_item(sli_safetensors_layout *layout, const sl_safetensors_item *item,
                          uint64_t *end, sli_safetensors_place *place)
{
    char quoted[SLI_QUOTE_BYTES];
    sl_status status = check_name(layout->json, item->name);
    if (status == SL_OK)
        status = place_item(item, end, place);
    if (status == SL_OK)
        status = describe_item(layout->json, item, place);
    return sl_error_context(status, "tensor %s: ", sli_safetensors_quote(item->name, quoted));
}

/* Items with larger elements come first, so each one begins at a multiple of its element. */
static sl_status add_items(sli_safetensors_layout *layout, const sl_safetensors_item *items,
                           uint64_t *end)
{
    static const unsigned widths[] = {64, 32, 16};
    size_t placed = 0;
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; i < layout->count; i++) {
            const sli_safetensors_dtype *dtype = sli_safetensors_dtype_of(items[i].dtype);
            if (dtype && dtype->bits != widths[w])
                continue;
            SL_TRY(add_item(layout, &items[i], end, &layout->places[i]));
            placed++;
        }
    return placed == layout->count ? SL_OK : sl_error(SL_ERR_INTERNAL, "a data type has no place");
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

static sl_status lay_out(sli_safetensors_layout *layout, const sl_safetensors_item *items,
                         const sl_metadata *metadata, size_t metadata_count)
{
    uint64_t end = 0;
    layout->json = json_object();
    layout->places = calloc(layout->count + 1, sizeof *layout->places);
    if (!layout->json || !layout->places)
        return no_memory();
    SL_TRY(add_metadata(layout->json, metadata, metadata_count));
    SL_TRY(add_items(layout, items, &end));
    SL_TRY(print_head(layout));
    for (size_t i = 0; i < layout->count; i++)
        layout->places[i].begin += layout->head_bytes;
    layout->file_bytes = layout->head_bytes + end;
    return SL_OK;
}

sl_status sli_safetensors_layout_create(const sl_safetensors_item *items, size_t count,
                                        const sl_metadata *metadata, size_t metadata_count,
                                        sli_safetensors_layout **out)
{
    *out = NULL;
    sli_safetensors_layout *layout = calloc(1, sizeof *layout);
    if (!layout)
        return no_memory();
    layout->count = count;
    sl_status status = lay_out(layout, items, metadata, metadata_count);
    if (status != SL_OK)
        sli_safetensors_layout_destroy(&layout);
    *out = layout;
    return status;
}

void sli_safetensors_layout_destroy(sli_safetensors_layout **layout)
{
    if (!layout || !*layout)
        return;
    json_decref((*layout)->json);
    free((*layout)->places);
    free((*layout)->head);
    free(*layout);
    *layout = NULL;
}
