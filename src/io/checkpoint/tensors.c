/* The tensors of an open checkpoint. A file's tensor is a segment of a tensor of the checkpoint:
 * mostly all of it. Sorted by name and first element, a tensor's segments must follow one another
 * without gap or overlap, from its first element to its last, in whatever files they are. */
#include "io/checkpoint/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Files ------------------------------------------------------------------------------ */

static const char *name_of(const sli_segment *segment)
{
    return segment->cut ? segment->cut->name : segment->info->name;
}

/* Lists the file's segments at `to`. */
static sl_status list_file(sl_checkpoint_reader *reader, size_t index, sli_segment *to)
{
    sli_checkpoint_file *file = &reader->files[index];
    const char *shapes = sl_safetensors_metadata(file->reader, SLI_SEGMENTS_KEY);
    if (shapes && reader->state.id) /* a file that is read by itself has no segments */
        SL_TRY(sl_error_context(sli_cut_tensors_parse(shapes, &file->cut), "%s/%s: ", reader->path,
                                reader->state.files[index].name));
    file->segments = to;
    for (size_t i = 0; i < sl_safetensors_count(file->reader); i++) {
        to[i] = (sli_segment){.info = sl_safetensors_get(file->reader, i), .file = index};
        to[i].cut = sli_cut_tensors_find(&file->cut, to[i].info->name, &to[i].begin);
        if (!to[i].cut)
            to[i].begin = 0;
    }
    return SL_OK;
}

/* ---- Tensors ---------------------------------------------------------------------------- */

static int compare_segments(const void *a, const void *b)
{
    const sli_segment *left = *(sli_segment *const *)a, *right = *(sli_segment *const *)b;
    int order = strcmp(name_of(left), name_of(right));
    return order ? order : (left->begin > right->begin) - (left->begin < right->begin);
}

static sl_status check_segment(const sli_segment *first, const sli_segment *next, int64_t end)
{
    char quoted[SLI_QUOTE_BYTES];
    const sl_safetensors_info *info = next->info;
    if (!first->cut || !next->cut)
        return sl_error(SL_ERR_FORMAT, "tensor %s is there more than once",
                        sli_safetensors_quote(name_of(first), quoted));
    int64_t whole = sl_shape_count(&first->cut->shape);
    if (info->dims != 1 || strcmp(info->type_name, first->info->type_name) != 0 ||
        !sl_shape_equal(&first->cut->shape, &next->cut->shape))
        return sl_error(SL_ERR_FORMAT, "tensor %s is no segment of the same tensor as %s",
                        sli_safetensors_quote(info->name, quoted), first->info->name);
    if (next->begin != end || info->size[0] > whole - end)
        return sl_error(SL_ERR_FORMAT,
                        "segment %s has %" PRId64 " elements, but the segments before it end at "
                        "element %" PRId64 " of %" PRId64,
                        sli_safetensors_quote(info->name, quoted), info->size[0], end, whole);
    return SL_OK;
}

/* Makes a tensor of its segments. */
static sl_status join(sli_segment **segments, size_t count, sli_checkpoint_entry *out)
{
    char quoted[SLI_QUOTE_BYTES];
    const sli_cut_tensor *cut = segments[0]->cut;
    int64_t end = 0;
    *out = (sli_checkpoint_entry){*segments[0]->info, segments, count};
    if (!cut && count == 1)
        return SL_OK;
    out->info.bytes = 0;
    for (size_t i = 0; i < count; i++) {
        SL_TRY(check_segment(segments[0], segments[i], end));
        segments[i]->offset = out->info.bytes;
        out->info.bytes += segments[i]->info->bytes;
        end += segments[i]->info->size[0];
    }
    if (end != sl_shape_count(&cut->shape))
        return sl_error(SL_ERR_FORMAT,
                        "tensor %s has %" PRId64 " elements, but its segments have %" PRId64,
                        sli_safetensors_quote(cut->name, quoted), sl_shape_count(&cut->shape), end);
    out->info.name = cut->name;
    out->info.dims = cut->shape.dims;
    out->info.size = cut->shape.size;
    return SL_OK;
}

/* By first segments, which are elements of one array. */
static int compare_tensors(const void *a, const void *b)
{
    const sli_segment *left = *((const sli_checkpoint_entry *)a)->segments,
                      *right = *((const sli_checkpoint_entry *)b)->segments;
    return (left > right) - (left < right);
}

static sl_status join_all(sli_checkpoint_tensors *part)
{
    if (part->segment_count == 0)
        return SL_OK;
    for (size_t i = 0; i < part->segment_count; i++)
        part->by_name[i] = &part->segments[i];
    qsort(part->by_name, part->segment_count, sizeof(sli_segment *), compare_segments);
    for (size_t at = 0, end; at < part->segment_count; at = end) {
        for (end = at + 1; end < part->segment_count; end++)
            if (strcmp(name_of(part->by_name[at]), name_of(part->by_name[end])) != 0)
                break;
        SL_TRY(join(part->by_name + at, end - at, &part->tensors[part->count++]));
    }
    qsort(part->tensors, part->count, sizeof *part->tensors, compare_tensors);
    for (size_t t = 0; t < part->count; t++)
        for (size_t i = 0; i < part->tensors[t].count; i++)
            part->tensors[t].segments[i]->tensor = t;
    return SL_OK;
}

/* ---- Parts ------------------------------------------------------------------------------ */

bool sli_checkpoint_has_tensors(const sl_checkpoint_reader *reader, size_t index, const char *part)
{
    const sl_checkpoint_file_info *file = &reader->state.files[index];
    return reader->files[index].reader && strcmp(file->part, part) == 0;
}

sl_status sli_checkpoint_part_error(const sl_checkpoint_reader *reader, const char *part,
                                    sl_status status)
{
    return reader->state.id ? sl_error_context(status, "%s: part %s: ", reader->path, part)
                            : sl_error_context(status, "%s: ", reader->path);
}

sl_status sli_checkpoint_list_part(sl_checkpoint_reader *reader, const char *name)
{
    size_t files = 0, segments = 0;
    for (size_t f = 0; f < reader->state.count; f++)
        if (sli_checkpoint_has_tensors(reader, f, name)) {
            segments += sl_safetensors_count(reader->files[f].reader);
            files++;
        }
    if (files == 0)
        return sl_error(SL_ERR_FORMAT, "%s/state.json: part %s has no file of tensors",
                        reader->path, name);
    sli_checkpoint_tensors *part = &reader->parts[reader->part_count++];
    *part = (sli_checkpoint_tensors){.part = name,
                                     .tensors = calloc(segments + 1, sizeof *part->tensors),
                                     .segments = calloc(segments + 1, sizeof *part->segments),
                                     .by_name = calloc(segments + 1, sizeof(sli_segment *))};
    if (!part->tensors || !part->segments || !part->by_name)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for its %zu tensors", reader->path, segments);
    for (size_t f = 0; f < reader->state.count; f++)
        if (sli_checkpoint_has_tensors(reader, f, name)) {
            SL_TRY(list_file(reader, f, part->segments + part->segment_count));
            part->segment_count += sl_safetensors_count(reader->files[f].reader);
        }
    return sli_checkpoint_part_error(reader, name, join_all(part));
}

const sli_checkpoint_tensors *sli_checkpoint_find_part(const sl_checkpoint_reader *reader,
                                                       const char *part)
{
    for (size_t i = 0; i < reader->part_count; i++)
        if (strcmp(reader->parts[i].part, part) == 0)
            return &reader->parts[i];
    return NULL;
}

sl_status sli_checkpoint_need_part(const sl_checkpoint_reader *reader, const char *part,
                                   const sli_checkpoint_tensors **out)
{
    *out = sli_checkpoint_find_part(reader, part);
    return *out ? SL_OK
                : sl_error(SL_ERR_NOT_FOUND, "%s: the checkpoint has no part \"%s\"", reader->path,
                           part);
}

static int compare_with_segment(const void *name, const void *segment)
{
    return strcmp(name, name_of(*(sli_segment *const *)segment));
}

const sli_checkpoint_entry *sli_checkpoint_find_tensor(const sli_checkpoint_tensors *in,
                                                       const char *name)
{
    sli_segment **found = NULL;
    if (in->segment_count)
        found = bsearch(name, in->by_name, in->segment_count, sizeof(sli_segment *),
                        compare_with_segment);
    return found ? &in->tensors[(*found)->tensor] : NULL;
}

/* ---- What a caller wants against what there is ------------------------------------------ */

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

/* Both lists in the order of their names, side by side. */
static sl_status match_names(const sl_safetensors_item *const *wanted, size_t count,
                             const sli_checkpoint_tensors *in, const sl_safetensors_item **of)
{
    name_list missing = {0}, unexpected = {0};
    for (size_t w = 0, p = 0; w < count || p < in->segment_count;) {
        if (w > 0 && w < count && compare_items(&wanted[w - 1], &wanted[w]) == 0)
            return sl_error(SL_ERR_INVALID, "tensor \"%s\" is asked for twice", wanted[w]->name);
        size_t at = p < in->segment_count ? in->by_name[p]->tensor : 0;
        int order = w == count               ? 1
                    : p == in->segment_count ? -1
                                             : strcmp(wanted[w]->name, in->tensors[at].info.name);
        if (order < 0)
            name_list_add(&missing, wanted[w]->name);
        else if (order > 0)
            name_list_add(&unexpected, in->tensors[at].info.name);
        else
            of[at] = wanted[w];
        w += order <= 0;
        p += order >= 0 ? in->tensors[at].count : 0;
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

static bool fits(const sl_safetensors_info *info, const sl_safetensors_item *item)
{
    if (!info->readable || info->dtype != item->dtype || info->dims != item->shape.dims)
        return false;
    for (int i = 0; i < info->dims; i++)
        if (info->size[i] != item->shape.size[i])
            return false;
    return true;
}

/* Names the first tensor whose shape or data type is another, and counts the others. */
static sl_status check_shapes(const sli_checkpoint_tensors *in,
                              const sl_safetensors_item *const *of)
{
    char quoted[SLI_QUOTE_BYTES], wanted[SLI_SIZES_BYTES], is[SLI_SIZES_BYTES], more[64] = "";
    size_t first = in->count, misfits = 0;
    for (size_t i = in->count; i > 0; i--)
        if (!fits(&in->tensors[i - 1].info, of[i - 1])) {
            first = i - 1;
            misfits++;
        }
    if (misfits == 0)
        return SL_OK;
    if (misfits > 1)
        snprintf(more, sizeof more, "; %zu more of the tensors do not fit", misfits - 1);
    const sl_safetensors_info *info = &in->tensors[first].info;
    const sl_safetensors_item *item = of[first];
    return sl_error(SL_ERR_INVALID, "tensor %s should be %s %s, but is %s %s%s",
                    sli_safetensors_quote(item->name, quoted),
                    sli_safetensors_dtype_of(item->dtype)->name,
                    sli_safetensors_sizes(item->shape.dims, item->shape.size, wanted),
                    info->type_name, sli_safetensors_sizes(info->dims, info->size, is), more);
}

sl_status sli_checkpoint_match(const sli_checkpoint_tensors *in, const sl_safetensors_item *items,
                               size_t count, const sl_safetensors_item **of)
{
    const sl_safetensors_item **wanted = calloc(count + 1, sizeof(sl_safetensors_item *));
    if (!wanted)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        wanted[i] = &items[i];
    qsort(wanted, count, sizeof(sl_safetensors_item *), compare_items);
    sl_status status = match_names(wanted, count, in, of);
    if (status == SL_OK)
        status = check_shapes(in, of);
    free(wanted);
    return status;
}
