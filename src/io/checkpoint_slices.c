#define _GNU_SOURCE /* asprintf */

#include "io/checkpoint_slices.h"

#include "io/safetensors_text.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing ---------------------------------------------------------------------------- */

sl_status sli_slice_name(const char *tensor, int64_t offset, char **out)
{
    if (asprintf(out, "%s@%" PRId64, tensor, offset) >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "no memory for a tensor's name");
}

sl_status sli_slices_print(const sli_sliced_tensor *tensors, size_t count, char **text)
{
    json_t *json = json_object();
    for (size_t i = 0; i < count; i++) {
        json_t *sizes = json_array();
        for (int d = 0; d < tensors[i].shape.dims; d++)
            json_array_append_new(sizes, json_integer(tensors[i].shape.size[d]));
        json_object_set_new(json, tensors[i].name, sizes);
    }
    *text = json_object_size(json) == count ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return *text ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for the shapes of cut tensors");
}

/* ---- Reading ---------------------------------------------------------------------------- */

static sl_status bad_shape(const char *name)
{
    char quoted[SLI_QUOTE_BYTES];
    return sl_error(SL_ERR_FORMAT,
                    "\"" SLI_SLICES_NOTE "\" of its metadata must give tensor %s a shape",
                    sli_safetensors_quote(name, quoted));
}

/* The elements of a shape are fewer than 2^63. */
static sl_status parse_shape(const char *name, const json_t *sizes, sl_shape *out)
{
    int64_t product = 1;
    if (!json_is_array(sizes) || json_array_size(sizes) > SL_MAX_DIMS)
        return bad_shape(name);
    *out = (sl_shape){.dims = (int)json_array_size(sizes)};
    for (int d = 0; d < out->dims; d++) {
        const json_t *size = json_array_get(sizes, (size_t)d);
        out->size[d] = json_integer_value(size);
        if (!json_is_integer(size) || out->size[d] < 1 ||
            __builtin_mul_overflow(product, out->size[d], &product))
            return bad_shape(name);
    }
    return SL_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    const sli_sliced_tensor *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static sl_status parse_tensors(sli_slices *out)
{
    const char *name;
    json_t *sizes;
    out->tensors = calloc(json_object_size(out->json) + 1, sizeof *out->tensors);
    if (!out->tensors)
        return sl_error(SL_ERR_MEMORY, "no memory for its cut tensors");
    json_object_foreach(out->json, name, sizes)
    {
        sli_sliced_tensor *tensor = &out->tensors[out->count++];
        tensor->name = name;
        SL_TRY(parse_shape(name, sizes, &tensor->shape));
    }
    qsort(out->tensors, out->count, sizeof *out->tensors, compare_tensors);
    return SL_OK;
}

sl_status sli_slices_parse(const char *text, sli_slices *out)
{
    json_error_t error;
    *out = (sli_slices){json_loads(text, JSON_REJECT_DUPLICATES, &error), NULL, 0};
    if (!out->json && json_error_code(&error) == json_error_out_of_memory)
        return sl_error(SL_ERR_MEMORY, "no memory for its cut tensors");
    if (!json_is_object(out->json))
        return sl_error(SL_ERR_FORMAT,
                        "\"" SLI_SLICES_NOTE "\" of its metadata must be a JSON object");
    return parse_tensors(out);
}

void sli_slices_clear(sli_slices *slices)
{
    free(slices->tensors);
    json_decref(slices->json);
    *slices = (sli_slices){0};
}

/* The tensor whose name is the first `length` bytes of `name`. */
static const sli_sliced_tensor *find_tensor(const sli_slices *slices, const char *name,
                                            size_t length)
{
    size_t low = 0, high = slices->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const sli_sliced_tensor *tensor = &slices->tensors[middle];
        int order = strncmp(name, tensor->name, length);
        if (order == 0 && tensor->name[length] == '\0')
            return tensor;
        if (order > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const sli_sliced_tensor *sli_slices_find(const sli_slices *slices, const char *name,
                                         int64_t *offset)
{
    const char *at = strrchr(name, '@');
    size_t digits = at ? strspn(at + 1, "0123456789") : 0;
    if (digits == 0 || at[1 + digits] != '\0' || (at[1] == '0' && digits > 1))
        return NULL;
    errno = 0;
    long long value = strtoll(at + 1, NULL, 10);
    if (errno != 0)
        return NULL;
    *offset = value;
    return find_tensor(slices, name, (size_t)(at - name));
}
