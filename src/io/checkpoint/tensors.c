/* The tensors of an open checkpoint. A file's tensor is a segment of a tensor of the checkpoint:
 * mostly all of it. Sorted by name and first element, a tensor's segments must follow one another
 * without gap or overlap, from its first element to its last, in whatever files they are. */
#include "core/error.h"
#include "io/checkpoint/format.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The shapes of tensors with segments ------------------------------------------------ */

static const char what[] = "\"" SLI_SEGMENTS_KEY "\" of its metadata";

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

static sl_status parse_cut_tensor(const sli_json_walk *member, char **room, sli_cut_tensor *out)
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

sl_status sli_cut_tensors_parse(const char *text, sli_cut_tensors *out)
{
    enum { LEAST_BYTES = 6 }; /* of a member, as "":[], */
    const sli_json json = {what, text, strlen(text)};
    sli_json_value root;
    sli_json_walk walk;
    *out = (sli_cut_tensors){0};
    SL_TRY(sli_json_root(&json, &root));
    if (!sli_json_is(root, '{'))
        return sl_error(SL_ERR_FORMAT, "%s must be a JSON object", what);
    char *room = out->names = malloc(json.length);
    out->tensors = calloc(json.length / LEAST_BYTES + 1, sizeof *out->tensors);
    if (!out->names || !out->tensors)
        return sli_no_memory(NULL, "the shapes of tensors");
    SL_TRY(sli_json_walk_begin(&json, root, &walk));
    while (sli_json_walk_next(&walk))
        SL_TRY(parse_cut_tensor(&walk, &room, &out->tensors[out->count++]));
    SL_TRY(walk.status);
    return sl_error_context(sli_names_sort(out->tensors, out->count, sizeof *out->tensors,
                                           "tensor"),
                            "%s: ", what);
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

/* ---- Joining ---------------------------------------------------------------------------- */

static const char *name_of(const sli_segment *segment)
{
    return segment->cut ? segment->cut->name : segment->info->name;
}

/* Lists the file's segments at `to`. */
static sl_status list_file(sl_checkpoint_reader *reader, size_t index, sli_segment *to)
{
    sli_checkpoint_file *file = &reader->files[index];
    const char *shapes = sli_safetensors_metadata(file->reader, SLI_SEGMENTS_KEY);
    if (shapes && reader->state.id) /* a file that is read by itself has no segments */
        SL_TRY(sl_error_context(sli_cut_tensors_parse(shapes, &file->cut), "%s/%s: ", reader->path,
                                reader->state.files[index].name));
    file->segments = to;
    for (size_t i = 0; i < sli_safetensors_count(file->reader); i++) {
        to[i] = (sli_segment){.info = sli_safetensors_get(file->reader, i), .file = index};
        to[i].cut = sli_cut_tensors_find(&file->cut, to[i].info->name, &to[i].begin);
        if (!to[i].cut)
            to[i].begin = 0;
    }
    return SL_OK;
}

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
static sl_status join_segments(sli_segment **segments, size_t count, sli_checkpoint_entry *out)
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

static sl_status join_tensors(sli_checkpoint_tensors *part)
{
    for (size_t i = 0; i < part->segment_count; i++)
        part->by_name[i] = &part->segments[i];
    if (part->segment_count > 0)
        qsort(part->by_name, part->segment_count, sizeof(sli_segment *), compare_segments);
    for (size_t at = 0, end; at < part->segment_count; at = end, part->count++) {
        for (end = at; end < part->segment_count; end++) {
            if (strcmp(name_of(part->by_name[at]), name_of(part->by_name[end])) != 0)
                break;
            part->by_name[end]->tensor = part->count;
        }
        SL_TRY(join_segments(part->by_name + at, end - at, &part->tensors[part->count]));
    }
    size_t listed = 0;
    for (size_t i = 0; i < part->segment_count; i++)
        if (part->tensors[part->segments[i].tensor].segments[0] == &part->segments[i])
            part->order[listed++] = part->segments[i].tensor;
    return SL_OK;
}

bool sli_checkpoint_has_tensors(const sl_checkpoint_reader *reader, size_t index, const char *part)
{
    return reader->files[index].reader && strcmp(reader->state.files[index].part, part) == 0;
}

sl_status sli_checkpoint_join_part(sl_checkpoint_reader *reader, const char *name)
{
    size_t most = 1;
    for (size_t f = 0; f < reader->state.count; f++)
        if (sli_checkpoint_has_tensors(reader, f, name))
            most += sli_safetensors_count(reader->files[f].reader);
    sli_checkpoint_tensors *part = &reader->parts[reader->part_count++];
    *part = (sli_checkpoint_tensors){.part = name,
                                     .tensors = calloc(most, sizeof *part->tensors),
                                     .order = calloc(most, sizeof *part->order),
                                     .segments = calloc(most, sizeof *part->segments),
                                     .by_name = calloc(most, sizeof(sli_segment *))};
    if (!part->tensors || !part->order || !part->segments || !part->by_name)
        return sli_no_memory(reader->path, "its %zu tensors", most - 1);
    for (size_t f = 0; f < reader->state.count; f++)
        if (sli_checkpoint_has_tensors(reader, f, name)) {
            SL_TRY(list_file(reader, f, part->segments + part->segment_count));
            part->segment_count += sli_safetensors_count(reader->files[f].reader);
        }
    return sli_checkpoint_part_error(reader, name, join_tensors(part));
}

/* ---- Finding ---------------------------------------------------------------------------- */

sl_status sli_checkpoint_part_error(const sl_checkpoint_reader *reader, const char *part,
                                    sl_status status)
{
    return reader->state.id ? sl_error_context(status, "%s: part %s: ", reader->path, part)
                            : sl_error_context(status, "%s: ", reader->path);
}

static const sli_checkpoint_tensors *find_part(const sl_checkpoint_reader *reader, const char *part)
{
    for (size_t i = 0; i < reader->part_count; i++)
        if (strcmp(reader->parts[i].part, part) == 0)
            return &reader->parts[i];
    return NULL;
}

sl_status sli_checkpoint_need_part(const sl_checkpoint_reader *reader, const char *part,
                                   const sli_checkpoint_tensors **out)
{
    *out = find_part(reader, part);
    return *out ? SL_OK
                : sl_error(SL_ERR_NOT_FOUND, "%s: the checkpoint has no part \"%s\"", reader->path,
                           part);
}

const sli_checkpoint_entry *sli_checkpoint_find_tensor(const sl_checkpoint_reader *reader,
                                                       const char *part, const char *name)
{
    const sli_checkpoint_tensors *listed = find_part(reader, part);
    return listed ? sli_names_find(listed->tensors, listed->count, sizeof *listed->tensors, name)
                  : NULL;
}

size_t sl_checkpoint_tensor_count(const sl_checkpoint_reader *reader, const char *part)
{
    const sli_checkpoint_tensors *listed = find_part(reader, part);
    return listed ? listed->count : 0;
}

const sl_safetensors_info *sl_checkpoint_tensor_get(const sl_checkpoint_reader *reader,
                                                    const char *part, size_t index)
{
    const sli_checkpoint_tensors *listed = find_part(reader, part);
    return listed && index < listed->count ? &listed->tensors[listed->order[index]].info : NULL;
}
