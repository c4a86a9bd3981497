/* Lists of tensors: what a caller wants against what there is. */
#include "io/safetensors/format.h"

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

typedef struct named {
    const char *name;
    size_t index;
} named;

static int compare_named(const void *a, const void *b)
{
    const named *left = a, *right = b;
    return strcmp(left->name, right->name);
}

/* Both lists in the order of their names, side by side. */
static sl_status match_names(const named *wanted, size_t wanted_count, const named *present,
                             size_t present_count, size_t *found)
{
    name_list missing = {0}, unexpected = {0};
    for (size_t w = 0, p = 0; w < wanted_count || p < present_count;) {
        if (w > 0 && w < wanted_count && compare_named(&wanted[w - 1], &wanted[w]) == 0)
            return sl_error(SL_ERR_INVALID, "tensor \"%s\" is asked for twice", wanted[w].name);
        int order = w == wanted_count    ? 1
                    : p == present_count ? -1
                                         : compare_named(&wanted[w], &present[p]);
        if (order < 0)
            name_list_add(&missing, wanted[w].name);
        else if (order > 0)
            name_list_add(&unexpected, present[p].name);
        else
            found[wanted[w].index] = present[p].index;
        w += order <= 0;
        p += order >= 0;
    }
    if (missing.count && unexpected.count)
        return sl_error(SL_ERR_INVALID,
                        "it lacks %zu of the %zu tensors expected (%s), and has "
                        "%zu unexpected ones (%s)",
                        missing.count, wanted_count, missing.text, unexpected.count,
                        unexpected.text);
    if (missing.count)
        return sl_error(SL_ERR_INVALID, "it lacks %zu of the %zu tensors expected (%s)",
                        missing.count, wanted_count, missing.text);
    if (unexpected.count)
        return sl_error(SL_ERR_INVALID, "it has %zu unexpected tensors (%s)", unexpected.count,
                        unexpected.text);
    return SL_OK;
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

/* Names the first item whose shape or data type is another, and counts the others. */
static sl_status check_shapes(const sl_safetensors_info *(*get)(const void *in, size_t index),
                              const void *in, const sl_safetensors_item *items, size_t count,
                              const size_t *found)
{
    char quoted[SLI_QUOTE_BYTES], wanted[SLI_SIZES_BYTES], is[SLI_SIZES_BYTES], more[64] = "";
    size_t first = count, misfits = 0;
    for (size_t i = count; i > 0; i--)
        if (!fits(get(in, found[i - 1]), &items[i - 1])) {
            first = i - 1;
            misfits++;
        }
    if (misfits == 0)
        return SL_OK;
    if (misfits > 1)
        snprintf(more, sizeof more, "; %zu more of the tensors do not fit", misfits - 1);
    const sl_safetensors_info *info = get(in, found[first]);
    const sl_safetensors_item *item = &items[first];
    return sl_error(SL_ERR_INVALID, "tensor %s should be %s %s, but is %s %s%s",
                    sli_safetensors_quote(item->name, quoted),
                    sli_safetensors_dtype_of(item->dtype)->name,
                    sli_safetensors_sizes(item->shape.dims, item->shape.size, wanted),
                    info->type_name, sli_safetensors_sizes(info->dims, info->size, is), more);
}

sl_status sli_safetensors_match(const sl_safetensors_info *(*get)(const void *in, size_t index),
                                const void *in, size_t present_count,
                                const sl_safetensors_item *items, size_t count, size_t *found)
{
    named *wanted = calloc(count + 1, sizeof *wanted);
    named *present = calloc(present_count + 1, sizeof *present);
    sl_status status = SL_OK;
    if (!wanted || !present) {
        status = sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", count);
        goto done;
    }
    for (size_t i = 0; i < count; i++)
        wanted[i] = (named){items[i].name, i};
    for (size_t i = 0; i < present_count; i++)
        present[i] = (named){get(in, i)->name, i};
    qsort(wanted, count, sizeof *wanted, compare_named);
    qsort(present, present_count, sizeof *present, compare_named);
    status = match_names(wanted, count, present, present_count, found);
    if (status == SL_OK)
        status = check_shapes(get, in, items, count, found);
done:
    free(wanted);
    free(present);
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
