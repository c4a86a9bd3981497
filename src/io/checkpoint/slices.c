#define _GNU_SOURCE /* asprintf */

#include "io/checkpoint/slices.h"

#include "core/json.h"
#include "io/safetensors/text.h"

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
                    "\"" SLI_SLICES_KEY "\" of its metadata must give tensor %s a shape",
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

static sl_status parse_tensor(const sli_json *json, const sli_json_walk *member, char **room,
                              sli_sliced_tensor *out)
{
    enum { MOST_BYTES = 4096 };
    json_t *sizes;
    SL_TRY(sli_json_decode(json, member->key, room, &out->name));
    SL_TRY(sli_json_parse(json, member->value, MOST_BYTES, &sizes));
    sl_status status = parse_shape(out->name, sizes, &out->shape);
    json_decref(sizes);
    return status;
}

/* Counts first, `out->tensors` being NULL. */
static sl_status walk_tensors(const sli_json *json, sli_json_value root, sli_slices *out)
{
    char *room = out->names;
    sli_json_walk walk;
    bool found;
    SL_TRY(sli_json_walk_begin(json, root, &walk));
    for (out->count = 0;; out->count++) {
        SL_TRY(sli_json_walk_next(&walk, &found));
        if (!found)
            return SL_OK;
        if (out->tensors)
            SL_TRY(parse_tensor(json, &walk, &room, &out->tensors[out->count]));
    }
}

static sl_status parse_tensors(const sli_json *json, sli_slices *out)
{
    char quoted[SLI_QUOTE_BYTES];
    sli_json_value root;
    SL_TRY(sli_json_root(json, &root));
    if (!sli_json_is(root, '{'))
        return sl_error(SL_ERR_FORMAT, "%s must be a JSON object", json->what);
    SL_TRY(walk_tensors(json, root, out));
    out->names = malloc(json->length);
    out->tensors = calloc(out->count + 1, sizeof *out->tensors);
    if (!out->names || !out->tensors)
        return sl_error(SL_ERR_MEMORY, "no memory for its cut tensors");
    SL_TRY(walk_tensors(json, root, out));
    qsort(out->tensors, out->count, sizeof *out->tensors, compare_tensors);
    for (size_t i = 1; i < out->count; i++)
        if (compare_tensors(&out->tensors[i - 1], &out->tensors[i]) == 0)
            return sl_error(SL_ERR_FORMAT, "%s has tensor %s twice", json->what,
                            sli_safetensors_quote(out->tensors[i].name, quoted));
    return SL_OK;
}

sl_status sli_slices_parse(const char *text, sli_slices *out)
{
    *out = (sli_slices){0};
    return parse_tensors(&(sli_json){"\"" SLI_SLICES_KEY "\" of its metadata", text, strlen(text)},
                         out);
}

void sli_slices_clear(sli_slices *slices)
{
    free(slices->tensors);
    free(slices->names);
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
