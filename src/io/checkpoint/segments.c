#define _GNU_SOURCE /* asprintf */

#include "io/checkpoint/format.h"

#include "core/json.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char what[] = "\"" SLI_SEGMENTS_KEY "\" of its metadata";

/* ---- Writing ---------------------------------------------------------------------------- */

sl_status sli_segment_name(const char *tensor, int64_t begin, char **out)
{
    if (asprintf(out, "%s@%" PRId64, tensor, begin) >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "no memory for a tensor's name");
}

sl_status sli_cut_tensors_print(const sli_cut_tensor *tensors, size_t count, char **text)
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
    return *text ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for the shapes of tensors");
}

/* ---- Reading ---------------------------------------------------------------------------- */

/* A shape of at least one element and fewer than 2^63. */
static bool parse_shape(const json_t *sizes, sl_shape *out)
{
    int64_t product = 1;
    if (!json_is_array(sizes) || json_array_size(sizes) > SL_MAX_DIMS)
        return false;
    *out = (sl_shape){.dims = (int)json_array_size(sizes)};
    for (int d = 0; d < out->dims; d++) {
        const json_t *size = json_array_get(sizes, (size_t)d);
        out->size[d] = json_integer_value(size);
        if (!json_is_integer(size) || out->size[d] < 1 ||
            __builtin_mul_overflow(product, out->size[d], &product))
            return false;
    }
    return true;
}

static sl_status parse_tensor(const sli_json_walk *member, char **room, sli_cut_tensor *out)
{
    enum { MOST_BYTES = 4096 };
    char quoted[SLI_QUOTE_BYTES];
    json_t *sizes;
    SL_TRY(sli_json_decode(member->json, member->key, room, &out->name));
    SL_TRY(sli_json_parse(member->json, member->value, MOST_BYTES, &sizes));
    bool valid = parse_shape(sizes, &out->shape);
    json_decref(sizes);
    return valid ? SL_OK
                 : sl_error(SL_ERR_FORMAT, "%s must give tensor %s a shape", what,
                            sli_safetensors_quote(out->name, quoted));
}

static sl_status parse_tensors(const sli_json *json, sli_cut_tensors *out)
{
    enum { LEAST_BYTES = 6 }; /* of a member, as "":[], */
    sli_json_value root;
    sli_json_walk walk;
    SL_TRY(sli_json_root(json, &root));
    if (!sli_json_is(root, '{'))
        return sl_error(SL_ERR_FORMAT, "%s must be a JSON object", what);
    char *room = out->names = malloc(json->length);
    out->tensors = calloc(json->length / LEAST_BYTES + 1, sizeof *out->tensors);
    if (!out->names || !out->tensors)
        return sl_error(SL_ERR_MEMORY, "no memory for the shapes of tensors");
    SL_TRY(sli_json_walk_begin(json, root, &walk));
    while (sli_json_walk_next(&walk))
        SL_TRY(parse_tensor(&walk, &room, &out->tensors[out->count++]));
    SL_TRY(walk.status);
    return sl_error_context(sli_names_sort(out->tensors, out->count, sizeof *out->tensors,
                                           "tensor"),
                            "%s: ", what);
}

sl_status sli_cut_tensors_parse(const char *text, sli_cut_tensors *out)
{
    *out = (sli_cut_tensors){0};
    return parse_tensors(&(sli_json){what, text, strlen(text)}, out);
}

void sli_cut_tensors_clear(sli_cut_tensors *cut)
{
    free(cut->tensors);
    free(cut->names);
    *cut = (sli_cut_tensors){0};
}

/* A segment's name: the first `length` bytes are the tensor's. */
typedef struct segment_name {
    const char *text;
    size_t length;
} segment_name;

static int compare_with_tensor(const void *key, const void *element)
{
    const segment_name *name = key;
    const sli_cut_tensor *tensor = element;
    int order = strncmp(name->text, tensor->name, name->length);
    return order ? order : -(tensor->name[name->length] != '\0');
}

const sli_cut_tensor *sli_cut_tensors_find(const sli_cut_tensors *cut, const char *name,
                                           int64_t *begin)
{
    const char *at = strrchr(name, '@');
    size_t digits = at ? strspn(at + 1, "0123456789") : 0;
    if (digits == 0 || at[1 + digits] != '\0' || (at[1] == '0' && digits > 1))
        return NULL;
    errno = 0;
    *begin = strtoll(at + 1, NULL, 10);
    if (errno != 0 || cut->count == 0)
        return NULL;
    const segment_name key = {name, (size_t)(at - name)};
    return bsearch(&key, cut->tensors, cut->count, sizeof *cut->tensors, compare_with_tensor);
}
