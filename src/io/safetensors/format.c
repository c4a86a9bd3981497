/* What reading and writing have in common: data types, names, and how errors show them. */
#include "io/safetensors/format.h"
#include "core/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Those of the reference implementation 0.8; F8_E4M3 and the like are names only. */
static const sli_safetensors_dtype dtypes[] = {
    {"F32", 32, true, SL_F32},          {"F64", 64, true, SL_F64},
    {"I32", 32, true, SL_I32},          {"I64", 64, true, SL_I64},
    {"BF16", 16, true, SL_BF16},        {"F16", 16, true, SL_F16},
    {.name = "BOOL", .bits = 8},        {.name = "U8", .bits = 8},
    {.name = "I8", .bits = 8},          {.name = "U16", .bits = 16},
    {.name = "I16", .bits = 16},        {.name = "U32", .bits = 32},
    {.name = "U64", .bits = 64},        {.name = "C64", .bits = 64},
    {.name = "F8_E5M2", .bits = 8},     {.name = "F8_E4M3", .bits = 8},
    {.name = "F8_E8M0", .bits = 8},     {.name = "F8_E4M3FNUZ", .bits = 8},
    {.name = "F8_E5M2FNUZ", .bits = 8}, {.name = "F6_E2M3", .bits = 6},
    {.name = "F6_E3M2", .bits = 6},     {.name = "F4", .bits = 4},
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof dtypes[0] };

const sli_safetensors_dtype *sli_safetensors_dtype_find(const char *name)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

const sli_safetensors_dtype *sli_safetensors_dtype_of(sl_dtype dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].readable && dtypes[i].dtype == dtype)
            return &dtypes[i];
    return NULL;
}

/* In the order and the type of the format's reference, so that it accepts the same shapes: a size
 * of 0 makes up for large ones behind it. */
bool sli_safetensors_bytes(int dims, const int64_t *size, unsigned bits, uint64_t *bytes)
{
    uint64_t count = 1;
    for (int i = 0; i < dims; i++)
        if (__builtin_mul_overflow(count, (uint64_t)size[i], &count))
            return false;
    if (__builtin_mul_overflow(count, (uint64_t)bits, bytes) || *bytes % 8 != 0)
        return false;
    *bytes /= 8;
    return true;
}

uint64_t sli_safetensors_item_bytes(const sl_safetensors_item *item)
{
    return (uint64_t)sl_shape_count(&item->shape) * sl_dtype_bytes(item->dtype);
}

/* ---- Error sentences -------------------------------------------------------------------- */

const char *sli_safetensors_quote(const char *name, char *text)
{
    enum { ROOM = SLI_QUOTE_BYTES - 6 }; /* beside quotes, "..." and the 0 */
    size_t length = strlen(name), shown = length <= ROOM ? length : ROOM;
    while (shown < length && shown > 0 && ((unsigned char)name[shown] & 0xC0) == 0x80)
        shown--; /* not inside a character of several bytes */
    snprintf(text, SLI_QUOTE_BYTES, "\"%.*s%s\"", (int)shown, name, shown < length ? "..." : "");
    return text;
}

const char *sli_safetensors_sizes(int dims, const int64_t *size, char *text)
{
    enum { SHOWN = 6 }; /* six sizes of 19 digits fit */
    size_t used = (size_t)snprintf(text, SLI_SIZES_BYTES, "[");
    for (int i = 0; i < dims && i < SHOWN; i++)
        used += (size_t)snprintf(text + used, SLI_SIZES_BYTES - used, "%s%" PRId64, i ? ", " : "",
                                 size[i]);
    snprintf(text + used, SLI_SIZES_BYTES - used, "%s]", dims > SHOWN ? ", ..." : "");
    return text;
}

/* ---- Names ------------------------------------------------------------------------------ */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

sl_status sli_names_sort(void *array, size_t count, size_t element_bytes, const char *what)
{
    char quoted[SLI_QUOTE_BYTES];
    if (count > 0)
        qsort(array, count, element_bytes, compare_names);
    for (size_t i = 1; i < count; i++) {
        const char *at = (const char *)array + i * element_bytes;
        if (compare_names(at - element_bytes, at) == 0)
            return sl_error(SL_ERR_FORMAT, "%s %s is listed twice", what,
                            sli_safetensors_quote(*(const char *const *)at, quoted));
    }
    return SL_OK;
}

sl_status sli_names_check(const void *array, size_t count, size_t element_bytes, const char *what)
{
    if (count == 0)
        return SL_OK;
    void *copy = malloc(count * element_bytes);
    if (!copy)
        return sli_no_memory(NULL, "%zu names", count);
    memcpy(copy, array, count * element_bytes);
    sl_status status = sli_names_sort(copy, count, element_bytes, what);
    free(copy);
    return status;
}

const void *sli_names_find(const void *array, size_t count, size_t element_bytes, const char *name)
{
    return count > 0 ? bsearch(&name, array, count, element_bytes, compare_names) : NULL;
}
