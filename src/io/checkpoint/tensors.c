/* The tensors of an open checkpoint, those that were cut joined again.
 *
 * What is in one piece is listed as the files have it. Slices are sorted by tensor and offset; each
 * tensor's must then follow one another without gap or overlap, from its first element to its
 * last, in whatever files they are. */
#include "io/checkpoint/reader.h"
#include "io/checkpoint/slices.h"
#include "io/safetensors/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct slice {
    const char *name; /* the tensor's, and all that a slice's name has after it */
    size_t length;    /* of the tensor's name in it */
    int64_t offset;
    sl_shape shape; /* the tensor's */
    const sl_safetensors_info *info;
    sli_checkpoint_place *place;
} slice;

/* The slices of a part. */
typedef struct slice_list {
    slice *slices;
    size_t count, room;
} slice_list;

static sl_status no_memory(void)
{
    return sl_error(SL_ERR_MEMORY, "no memory for a checkpoint's list of tensors");
}

/* ---- Listing ---------------------------------------------------------------------------- */

static sl_status add_slice(slice_list *to, const slice *found)
{
    if (to->count == to->room) {
        size_t room = 2 * to->room + 64;
        slice *more = realloc(to->slices, room * sizeof *more);
        if (!more)
            return no_memory();
        to->slices = more;
        to->room = room;
    }
    to->slices[to->count++] = *found;
    return SL_OK;
}

static sl_status list_shard(sl_checkpoint_reader *reader, size_t file, const sli_slices *cut,
                            slice_list *slices)
{
    const sl_safetensors_reader *shard = reader->shards[file];
    size_t count = sl_safetensors_count(shard);
    reader->places[file] = calloc(count + 1, sizeof *reader->places[file]);
    if (!reader->places[file])
        return no_memory();
    for (size_t i = 0; i < count; i++) {
        slice found = {.info = sl_safetensors_get(shard, i), .place = &reader->places[file][i]};
        const sli_sliced_tensor *of = sli_slices_find(cut, found.info->name, &found.offset);
        if (!of) {
            *found.place = (sli_checkpoint_place){reader->tensor_count, 0};
            reader->tensors[reader->tensor_count++].info = *found.info;
            continue;
        }
        found.name = found.info->name;
        found.length = strlen(of->name);
        found.shape = of->shape;
        SL_TRY(add_slice(slices, &found));
    }
    return SL_OK;
}

static sl_status list_file(sl_checkpoint_reader *reader, size_t file, slice_list *slices)
{
    sli_slices cut = {0};
    const char *note = sl_safetensors_metadata(reader->shards[file], SLI_SLICES_KEY);
    sl_status status = note ? sli_slices_parse(note, &cut) : SL_OK;
    if (status == SL_OK)
        status = list_shard(reader, file, &cut, slices);
    sli_slices_clear(&cut);
    return sl_error_context(status, "%s/%s: ", reader->path, reader->state.files[file].name);
}

/* ---- Joining ---------------------------------------------------------------------------- */

static int compare_names(const slice *a, const slice *b)
{
    size_t length = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->name, b->name, length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

static int compare_slices(const void *a, const void *b)
{
    const slice *left = a, *right = b;
    int order = compare_names(left, right);
    return order ? order : (left->offset > right->offset) - (left->offset < right->offset);
}

static sl_status describe_joined(const slice *first, sli_checkpoint_entry *out)
{
    out->joined_name = strndup(first->name, first->length);
    if (!out->joined_name)
        return no_memory();
    out->info = *first->info;
    out->info.name = out->joined_name;
    out->info.dims = first->shape.dims;
    out->info.size = out->joined_size;
    for (int d = 0; d < first->shape.dims; d++)
        out->joined_size[d] = first->shape.size[d];
    return SL_OK;
}

static sl_status check_slice(const slice *first, const slice *next, int64_t begin, int64_t whole)
{
    char quoted[SLI_QUOTE_BYTES];
    const sl_safetensors_info *info = next->info;
    if (info->dims != 1 || strcmp(info->type_name, first->info->type_name) != 0 ||
        !sl_shape_equal(&first->shape, &next->shape))
        return sl_error(SL_ERR_FORMAT, "tensor %s is no slice of the same tensor as %s",
                        sli_safetensors_quote(info->name, quoted), first->info->name);
    if (next->offset != begin || info->size[0] > whole - begin)
        return sl_error(SL_ERR_FORMAT,
                        "slice %s has %" PRId64 " elements, but the slices before it end at "
                        "element %" PRId64 " of %" PRId64,
                        sli_safetensors_quote(info->name, quoted), info->size[0], begin, whole);
    return SL_OK;
}

/* Joins slices[0 … ] of one tensor, *used of them, to the checkpoint's next tensor. */
static sl_status join_one(sl_checkpoint_reader *reader, const slice *slices, size_t count,
                          size_t *used)
{
    char quoted[SLI_QUOTE_BYTES];
    int64_t begin = 0, whole = sl_shape_count(&slices->shape);
    sli_checkpoint_entry *joined = &reader->tensors[reader->tensor_count];
    uint64_t bytes = 0;
    SL_TRY(describe_joined(slices, joined));
    size_t tensor = reader->tensor_count++;
    for (*used = 0; *used < count && compare_names(slices, &slices[*used]) == 0; ++*used) {
        const slice *next = &slices[*used];
        SL_TRY(check_slice(slices, next, begin, whole));
        *next->place = (sli_checkpoint_place){tensor, bytes};
        begin += next->info->size[0];
        bytes += next->info->bytes;
    }
    joined->info.bytes = bytes;
    if (begin != whole)
        return sl_error(SL_ERR_FORMAT,
                        "tensor %s has %" PRId64 " elements, but its slices have %" PRId64,
                        sli_safetensors_quote(joined->joined_name, quoted), whole, begin);
    return SL_OK;
}

static sl_status check_not_whole(const sl_checkpoint_reader *reader, const char *part,
                                 const char *name)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < reader->state.count; i++)
        if (sli_checkpoint_is_shard(reader, i, part) &&
            sl_safetensors_find(reader->shards[i], name))
            return sl_error(SL_ERR_FORMAT, "tensor %s is there whole and in slices",
                            sli_safetensors_quote(name, quoted));
    return SL_OK;
}

static sl_status join_slices(sl_checkpoint_reader *reader, const char *part, slice_list *list)
{
    if (list->count)
        qsort(list->slices, list->count, sizeof *list->slices, compare_slices);
    for (size_t at = 0, used; at < list->count; at += used) {
        SL_TRY(join_one(reader, list->slices + at, list->count - at, &used));
        SL_TRY(check_not_whole(reader, part, reader->tensors[reader->tensor_count - 1].info.name));
    }
    return SL_OK;
}

/* ---- All parts -------------------------------------------------------------------------- */

static sl_status list_part(sl_checkpoint_reader *reader, const char *part)
{
    slice_list slices = {0};
    sl_status status = SL_OK;
    size_t first = reader->tensor_count;
    for (size_t i = 0; i < reader->state.count && status == SL_OK; i++)
        if (sli_checkpoint_is_shard(reader, i, part))
            status = list_file(reader, i, &slices);
    if (status == SL_OK)
        status = sl_error_context(join_slices(reader, part, &slices), "%s: part %s: ", reader->path,
                                  part);
    free(slices.slices);
    reader->parts[reader->part_count++] =
        (sli_checkpoint_range){part, first, reader->tensor_count - first};
    return status;
}

sl_status sli_checkpoint_list_tensors(sl_checkpoint_reader *reader)
{
    size_t files = reader->state.count, most = 0;
    reader->tensor_count = reader->part_count = 0;
    for (size_t i = 0; i < files; i++)
        most += reader->shards[i] ? sl_safetensors_count(reader->shards[i]) : 0;
    reader->tensors = calloc(most + 1, sizeof *reader->tensors);
    reader->places = calloc(files + 1, sizeof *reader->places);
    reader->parts = calloc(reader->state.part_count + 1, sizeof *reader->parts);
    if (!reader->tensors || !reader->places || !reader->parts)
        return no_memory();
    for (size_t i = 0; i < reader->state.part_count; i++)
        SL_TRY(list_part(reader, reader->state.parts[i]));
    return SL_OK;
}

void sli_checkpoint_free_tensors(sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < reader->tensor_count; i++)
        free(reader->tensors[i].joined_name);
    for (size_t i = 0; reader->places && i < reader->state.count; i++)
        free(reader->places[i]);
    free(reader->tensors);
    free(reader->places);
    free(reader->parts);
}
