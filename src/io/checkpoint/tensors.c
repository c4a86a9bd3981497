/* The tensors of an open checkpoint. A file's tensor is a segment of a tensor of the checkpoint:
 * mostly all of it. Sorted by name and first element, a tensor's segments must follow one another
 * without gap or overlap, from its first element to its last, in whatever files they are. */
#include "io/checkpoint/reader.h"
#include "io/safetensors/format.h"

#include <inttypes.h>
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
    if (shapes)
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

/* All of a part's segments are listed in `by_name`. */
static sl_status join_all(sli_checkpoint_tensors *part)
{
    if (part->segment_count == 0)
        return SL_OK;
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

/* `first`: how many segments the parts before it have. */
static sl_status list_part(sl_checkpoint_reader *reader, const char *name, size_t first)
{
    size_t files = 0;
    sli_checkpoint_tensors *part = &reader->parts[reader->part_count++];
    *part = (sli_checkpoint_tensors){.part = name,
                                     .tensors = reader->tensors + first,
                                     .by_name = reader->by_name + first};
    for (size_t f = 0; f < reader->state.count; f++) {
        if (!sli_checkpoint_has_tensors(reader, f, name))
            continue;
        files++;
        SL_TRY(list_file(reader, f, reader->segments + first + part->segment_count));
        size_t count = sl_safetensors_count(reader->files[f].reader);
        for (size_t i = 0; i < count; i++)
            part->by_name[part->segment_count++] = &reader->files[f].segments[i];
    }
    if (files == 0)
        return sl_error(SL_ERR_FORMAT, "%s/state.json: part %s has no file of tensors",
                        reader->path, name);
    return sl_error_context(join_all(part), "%s: part %s: ", reader->path, name);
}

sl_status sli_checkpoint_list_tensors(sl_checkpoint_reader *reader)
{
    size_t segments = 0;
    for (size_t i = 0; i < reader->state.count; i++)
        if (reader->files[i].reader)
            segments += sl_safetensors_count(reader->files[i].reader);
    reader->segments = calloc(segments + 1, sizeof *reader->segments);
    reader->by_name = calloc(segments + 1, sizeof(sli_segment *));
    reader->tensors = calloc(segments + 1, sizeof *reader->tensors);
    if (!reader->segments || !reader->by_name || !reader->tensors)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for its %zu tensors", reader->path, segments);
    for (size_t i = 0, first = 0; i < reader->state.part_count; i++) {
        SL_TRY(list_part(reader, reader->state.parts[i], first));
        first += reader->parts[i].segment_count;
    }
    return SL_OK;
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
