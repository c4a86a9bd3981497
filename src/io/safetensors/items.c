/* Whole models from and to a list of tensors. */
#include "io/safetensors/dtype.h"
#include "io/safetensors/set.h"
#include "io/safetensors/text.h"
#include "sluice/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sentence names the first few tensors of a kind and counts them all. */
enum { NAMES_SHOWN = 3, NAMES_BYTES = NAMES_SHOWN * (SLI_QUOTE_BYTES + 2) + 8 };

typedef struct name_list {
    size_t count;
    char text[NAMES_BYTES]; /* `"a", "b", "c", ...` */
} name_list;

static void name_list_add(name_list *list, const char *name)
{
    char quoted[SLI_QUOTE_BYTES];
    size_t used = strlen(list->text);
    if (list->count < NAMES_SHOWN)
        snprintf(list->text + used, sizeof list->text - used, "%s%s", list->count ? ", " : "",
                 sli_safetensors_quote(name, quoted));
    else if (list->count == NAMES_SHOWN)
        snprintf(list->text + used, sizeof list->text - used, ", ...");
    list->count++;
}

static int compare_items(const void *a, const void *b)
{
    const sl_safetensors_item *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static int compare_with_name(const void *name, const void *item)
{
    return strcmp(name, (*(const sl_safetensors_item *const *)item)->name);
}

/* `sorted` [count] are the items in the order of their names. */
static sl_status check_names(const sli_safetensors_set *set, const sl_safetensors_item **sorted,
                             size_t count)
{
    name_list missing = {0}, unexpected = {0};
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return sl_error(SL_ERR_INVALID, "tensor \"%s\" is asked for twice", sorted[i]->name);
        if (!sli_safetensors_set_find(set, sorted[i]->name))
            name_list_add(&missing, sorted[i]->name);
    }
    for (size_t i = 0; i < sli_safetensors_set_count(set); i++) {
        const char *name = sli_safetensors_set_get(set, i)->name;
        if (!bsearch(name, sorted, count, sizeof(sl_safetensors_item *), compare_with_name))
            name_list_add(&unexpected, name);
    }
    if (missing.count && unexpected.count)
        return sl_error(SL_ERR_INVALID,
                        "it lacks %zu of the %zu tensors expected (%s), and has "
                        "%zu unexpected ones (%s)",
                        missing.count, count, missing.text, unexpected.count, unexpected.text);
    if (missing.count)
        return sl_error(SL_ERR_INVALID, "it lacks %zu of the %zu tensors expected (%s)",
                        missing.count, count, missing.text);
    if (unexpected.count)
        return sl_error(SL_ERR_INVALID, "it has %zu unexpected tensors (%s)", unexpected.count,
                        unexpected.text);
    return SL_OK;
}

static sl_status check_all_names(const sli_safetensors_set *set, const sl_safetensors_item *items,
                                 size_t count)
{
    const sl_safetensors_item **sorted = calloc(count + 1, sizeof(sl_safetensors_item *));
    if (!sorted)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        sorted[i] = &items[i];
    qsort(sorted, count, sizeof(sl_safetensors_item *), compare_items);
    sl_status status = check_names(set, sorted, count);
    free(sorted);
    return status;
}

static bool fits(const sl_safetensors_info *info, const sl_safetensors_item *item)
{
    if (!info->readable || info->dtype != item->dtype || info->dims != item->shape.dims)
        return false;
    for (int i = 0; i < info->dims; i++)
        if (info->size[i] != item->shape.size[i])
            return false;
    return true;
}

/* Names the first item whose shape or data type is not the file's, and counts the others. */
static sl_status check_shapes(const sli_safetensors_set *set, const sl_safetensors_item *items,
                              size_t count)
{
    char quoted[SLI_QUOTE_BYTES], wanted[SLI_SIZES_BYTES], found[SLI_SIZES_BYTES], more[64] = "";
    const sl_safetensors_item *first = NULL;
    size_t misfits = 0;
    for (size_t i = 0; i < count; i++)
        if (!fits(sli_safetensors_set_find(set, items[i].name), &items[i])) {
            first = first ? first : &items[i];
            misfits++;
        }
    if (!first)
        return SL_OK;
    if (misfits > 1)
        snprintf(more, sizeof more, "; %zu more of the tensors do not fit", misfits - 1);
    const sl_safetensors_info *info = sli_safetensors_set_find(set, first->name);
    return sl_error(SL_ERR_INVALID, "tensor %s should be %s %s, but is %s %s%s",
                    sli_safetensors_quote(first->name, quoted),
                    sli_safetensors_dtype_of(first->dtype)->name,
                    sli_safetensors_sizes(first->shape.dims, first->shape.size, wanted),
                    info->type_name, sli_safetensors_sizes(info->dims, info->size, found), more);
}

sl_status sl_safetensors_load(const char *path, const sl_safetensors_item *items, size_t count)
{
    sli_safetensors_set *set;
    SL_TRY(sli_safetensors_set_open(path, &set));
    sl_status status = check_all_names(set, items, count);
    if (status == SL_OK)
        status = check_shapes(set, items, count);
    status = sl_error_context(status, "%s: ", path);
    if (status == SL_OK)
        status = sli_safetensors_set_read(set, items, count);
    sli_safetensors_set_close(&set);
    return status;
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
