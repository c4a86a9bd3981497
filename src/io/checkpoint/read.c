/* Reading tensors: each file once, from its first byte to its last, its checksum taken on the way.
 */
#include "io/checkpoint/reader.h"
#include "io/safetensors/dtype.h"
#include "io/safetensors/reader.h"
#include "io/safetensors/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- One file --------------------------------------------------------------------------- */

enum { PIECE_BYTES = 1 << 18 }; /* stays in a core's cache between reading and summing */

typedef struct stream {
    const sl_safetensors_reader *file;
    int descriptor;
    sli_checksum *sum;
    char *piece; /* [PIECE_BYTES] for bytes that nobody wants */
} stream;

/* Bytes `begin` to `end` of the file; `to` may be NULL. */
static sl_status stream_range(const stream *from, uint64_t begin, uint64_t end, char *to)
{
    while (begin < end) {
        uint64_t bytes = end - begin < PIECE_BYTES ? end - begin : PIECE_BYTES;
        char *at = to ? to : from->piece;
        SL_TRY(sli_safetensors_read_raw(from->descriptor, begin, at, bytes));
        sli_checksum_add(from->sum, at, bytes);
        to = to ? to + bytes : NULL;
        begin += bytes;
    }
    return SL_OK;
}

/* A file's tensor, which is the tensor's bytes offset … offset + bytes - 1. */
static sl_status stream_tensor(const stream *from, uint64_t at, uint64_t offset, uint64_t bytes,
                               const sli_checkpoint_target *target)
{
    uint64_t low = target->begin > offset ? target->begin - offset : 0;
    uint64_t high = target->end > offset ? target->end - offset : 0;
    if (high > bytes)
        high = bytes;
    if (!target->memory || low >= high)
        return stream_range(from, at, at + bytes, NULL);
    SL_TRY(stream_range(from, at, at + low, NULL));
    SL_TRY(
        stream_range(from, at + low, at + high, target->memory + (offset + low - target->begin)));
    return stream_range(from, at + high, at + bytes, NULL);
}

static sl_status stream_open_file(const stream *from, const sli_checkpoint_place *places,
                                  sli_checkpoint_find find, void *context)
{
    uint64_t at = sli_safetensors_head_bytes(from->file);
    SL_TRY(stream_range(from, 0, at, NULL));
    for (size_t i = 0; i < sl_safetensors_count(from->file); i++) {
        uint64_t bytes = sl_safetensors_get(from->file, i)->bytes;
        sli_checkpoint_target target = {NULL, 0, 0};
        if (find)
            target = find(context, places[i].tensor);
        SL_TRY(stream_tensor(from, at, places[i].offset, bytes, &target));
        at += bytes;
    }
    return SL_OK;
}

static sl_status stream_tensors(stream *from, const sli_checkpoint_place *places,
                                sli_checkpoint_find find, void *context)
{
    SL_TRY(sli_safetensors_acquire(from->file, &from->descriptor));
    sl_status status = stream_open_file(from, places, find, context);
    sli_safetensors_give_back(from->file, from->descriptor);
    return status;
}

static sl_status compare(const sl_checkpoint_reader *reader, size_t index, const sli_checksum *sum)
{
    char found[SLI_CHECKSUM_BYTES];
    const sl_checkpoint_file_info *file = &reader->state.files[index];
    if (strcmp(sli_checksum_text(sum, found), file->checksum) == 0)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT, "%s/%s: it is damaged: its checksum is %s, and %s in state.json",
                    reader->path, file->name, found, file->checksum);
}

sl_status sli_checkpoint_stream(const sl_checkpoint_reader *reader, size_t index,
                                sli_checkpoint_find find, void *context)
{
    stream from = {.file = reader->shards[index], .piece = malloc(PIECE_BYTES)};
    sl_status status = sli_checksum_create(&from.sum);
    if (status == SL_OK && !from.piece)
        status = sl_error(SL_ERR_MEMORY, "%s: no memory for reading it", reader->path);
    if (status == SL_OK)
        status = sl_error_context(stream_tensors(&from, reader->places[index], find, context),
                                  "%s/%s: ", reader->path, reader->state.files[index].name);
    if (status == SL_OK)
        status = compare(reader, index, from.sum);
    sli_checksum_destroy(&from.sum);
    free(from.piece);
    return status;
}

sl_status sl_checkpoint_verify(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < reader->state.count; i++) {
        if (reader->shards[i]) {
            SL_TRY(sli_checkpoint_stream(reader, i, NULL, NULL));
            continue;
        }
        char *data;
        size_t bytes;
        SL_TRY(sli_checkpoint_read_listed(reader, i, &data, &bytes));
        free(data);
    }
    return SL_OK;
}

/* ---- A part to memory ------------------------------------------------------------------- */

/* What is wanted of each tensor, in the order of their names. */
typedef struct wanted {
    const sl_checkpoint_reader *reader;
    const sli_checkpoint_slice **sorted;
    size_t count;
} wanted;

static int compare_slices(const void *a, const void *b)
{
    const sli_checkpoint_slice *const *left = a, *const *right = b;
    return strcmp((*left)->tensor, (*right)->tensor);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_with_name(const void *name, const void *slice)
{
    return strcmp(name, (*(const sli_checkpoint_slice *const *)slice)->tensor);
}

static const sli_checkpoint_slice *find_slice(const wanted *in, const char *name)
{
    const sli_checkpoint_slice **found =
        bsearch(name, in->sorted, in->count, sizeof(sli_checkpoint_slice *), compare_with_name);
    return found ? *found : NULL;
}

static bool fits(const sl_safetensors_info *info, const sli_checkpoint_slice *slice)
{
    if (!info->readable || info->dtype != slice->dtype || info->dims != slice->shape.dims)
        return false;
    for (int i = 0; i < info->dims; i++)
        if (info->size[i] != slice->shape.size[i])
            return false;
    return true;
}

static sl_status check_tensor(const wanted *in, const sl_safetensors_info *info)
{
    char quoted[SLI_QUOTE_BYTES], expected[SLI_SIZES_BYTES], found[SLI_SIZES_BYTES];
    const sli_checkpoint_slice *slice = find_slice(in, info->name);
    if (!slice)
        return sl_error(SL_ERR_INVALID, "tensor %s is unexpected",
                        sli_safetensors_quote(info->name, quoted));
    if (!fits(info, slice))
        return sl_error(SL_ERR_INVALID, "tensor %s should be %s %s, but is %s %s",
                        sli_safetensors_quote(info->name, quoted),
                        sli_safetensors_dtype_of(slice->dtype)->name,
                        sli_safetensors_sizes(slice->shape.dims, slice->shape.size, expected),
                        info->type_name, sli_safetensors_sizes(info->dims, info->size, found));
    return SL_OK;
}

static sl_status check_missing(const sl_checkpoint_reader *reader, const sli_checkpoint_range *part,
                               const wanted *in)
{
    char quoted[SLI_QUOTE_BYTES];
    const char **names = calloc(part->count + 1, sizeof(char *));
    if (!names)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", part->count);
    for (size_t i = 0; i < part->count; i++)
        names[i] = reader->tensors[part->first + i].info.name;
    qsort(names, part->count, sizeof(char *), compare_texts);
    sl_status status = SL_OK;
    for (size_t k = 0; k < in->count && status == SL_OK; k++) {
        const char *name = in->sorted[k]->tensor;
        if (!bsearch(&name, names, part->count, sizeof(char *), compare_texts))
            status = sl_error(SL_ERR_INVALID, "tensor %s is missing",
                              sli_safetensors_quote(name, quoted));
        else if (k > 0 && strcmp(in->sorted[k - 1]->tensor, name) == 0)
            status = sl_error(SL_ERR_INVALID, "tensor %s is asked for twice",
                              sli_safetensors_quote(name, quoted));
    }
    free(names);
    return status;
}

static sl_status check_wanted(const sl_checkpoint_reader *reader, const char *part,
                              const wanted *in)
{
    const sli_checkpoint_range *range = sli_checkpoint_range_of(reader, part);
    for (size_t i = 0; i < range->count; i++)
        SL_TRY(check_tensor(in, &reader->tensors[range->first + i].info));
    return check_missing(reader, range, in);
}

static sli_checkpoint_target slice_memory(void *context, size_t tensor)
{
    const wanted *in = context;
    const sli_checkpoint_slice *slice = find_slice(in, in->reader->tensors[tensor].info.name);
    uint64_t element = sl_dtype_bytes(slice->dtype), begin = (uint64_t)slice->begin * element;
    return (sli_checkpoint_target){slice->data, begin, begin + (uint64_t)slice->count * element};
}

/* Every file of the part. */
static sl_status stream_part(const sl_checkpoint_reader *reader, const char *part,
                             sli_checkpoint_find find, void *context)
{
    for (size_t i = 0; i < reader->state.count; i++)
        if (sli_checkpoint_is_shard(reader, i, part))
            SL_TRY(sli_checkpoint_stream(reader, i, find, context));
    return SL_OK;
}

/* Whether a file has anything that is wanted; of one without tensors nobody can tell. */
static bool is_wanted(const wanted *in, size_t file)
{
    const sl_safetensors_reader *shard = in->reader->shards[file];
    size_t count = sl_safetensors_count(shard);
    for (size_t i = 0; i < count; i++) {
        const sli_checkpoint_place *place = &in->reader->places[file][i];
        sli_checkpoint_target target = slice_memory((void *)in, place->tensor);
        uint64_t end = place->offset + sl_safetensors_get(shard, i)->bytes;
        if (target.begin < target.end && target.begin < end && target.end > place->offset)
            return true;
    }
    return count == 0;
}

static sl_status check_part(const sl_checkpoint_reader *reader, const char *part)
{
    if (sli_checkpoint_range_of(reader, part))
        return SL_OK;
    return sl_error(SL_ERR_NOT_FOUND, "%s: the checkpoint has no part \"%s\"", reader->path, part);
}

/* The list, sorted, when it is exactly the part's tensors; `in->sorted` is to be freed, also after
 * an error. */
static sl_status want(const sl_checkpoint_reader *reader, const char *part,
                      const sli_checkpoint_slice *slices, size_t count, wanted *in)
{
    *in = (wanted){reader, NULL, count};
    SL_TRY(check_part(reader, part));
    in->sorted = calloc(count + 1, sizeof(sli_checkpoint_slice *));
    if (!in->sorted)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        in->sorted[i] = &slices[i];
    qsort(in->sorted, count, sizeof(sli_checkpoint_slice *), compare_slices);
    return sl_error_context(check_wanted(reader, part, in), "%s: part %s: ", reader->path, part);
}

sl_status sli_checkpoint_read_slices(const sl_checkpoint_reader *reader, const char *part,
                                     const sli_checkpoint_slice *slices, size_t count)
{
    wanted in;
    sl_status status = want(reader, part, slices, count, &in);
    for (size_t i = 0; i < reader->state.count && status == SL_OK; i++)
        if (sli_checkpoint_is_shard(reader, i, part) && is_wanted(&in, i))
            status = sli_checkpoint_stream(reader, i, slice_memory, &in);
    free(in.sorted);
    return status;
}

/* Each item whole; NULL: there was no memory. */
static sli_checkpoint_slice *whole_slices(const sl_safetensors_item *items, size_t count)
{
    sli_checkpoint_slice *slices = calloc(count + 1, sizeof *slices);
    for (size_t i = 0; slices && i < count; i++)
        slices[i] = (sli_checkpoint_slice){
            items[i].name, items[i].dtype, items[i].shape, 0, sl_shape_count(&items[i].shape),
            items[i].data};
    if (!slices)
        sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", count);
    return slices;
}

sl_status sl_checkpoint_read(const sl_checkpoint_reader *reader, const char *part,
                             const sl_safetensors_item *items, size_t count)
{
    sli_checkpoint_slice *slices = whole_slices(items, count);
    if (!slices)
        return SL_ERR_MEMORY;
    sl_status status = sli_checkpoint_read_slices(reader, part, slices, count);
    free(slices);
    return status;
}

sl_status sli_checkpoint_check_items(const sl_checkpoint_reader *reader, const char *part,
                                     const sl_safetensors_item *items, size_t count)
{
    wanted in;
    sli_checkpoint_slice *slices = whole_slices(items, count);
    if (!slices)
        return SL_ERR_MEMORY;
    sl_status status = want(reader, part, slices, count, &in);
    free(in.sorted);
    free(slices);
    return status;
}

sl_status sli_checkpoint_verify_part(const sl_checkpoint_reader *reader, const char *part)
{
    SL_TRY(check_part(reader, part));
    return stream_part(reader, part, NULL, NULL);
}

/* ---- A part to devices ------------------------------------------------------------------ */

typedef struct loading {
    size_t first;              /* the part's, of the checkpoint's tensors */
    sl_tensor **of;            /* [tensors of the part]; NULL: left out */
    sl_checkpoint_tensor *out; /* [count] */
    size_t count;
} loading;

static sl_status create_tensor(const sl_safetensors_info *info, sl_device *device, sl_tensor **out)
{
    char quoted[SLI_QUOTE_BYTES];
    if (!info->readable || info->dims > SL_MAX_DIMS)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "tensor %s: %s with %d dimensions is none of sluice's tensors",
                        sli_safetensors_quote(info->name, quoted), info->type_name, info->dims);
    sl_shape shape = {.dims = info->dims};
    for (int i = 0; i < info->dims; i++)
        shape.size[i] = info->size[i];
    return sl_tensor_create(device, SL_MEMORY_PARAMETERS, info->dtype, &shape, out);
}

static sl_status create_tensors(const sl_checkpoint_reader *reader,
                                const sli_checkpoint_range *part,
                                sl_device *(*device_of)(void *context, const char *name),
                                void *context, loading *to)
{
    *to = (loading){.first = part->first,
                    .of = calloc(part->count + 1, sizeof(sl_tensor *)),
                    .out = calloc(part->count + 1, sizeof *to->out)};
    if (!to->of || !to->out)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", part->count);
    for (size_t i = 0; i < part->count; i++) {
        const sl_safetensors_info *info = &reader->tensors[part->first + i].info;
        sl_device *device = device_of(context, info->name);
        if (!device)
            continue;
        SL_TRY(create_tensor(info, device, &to->of[i]));
        to->out[to->count++] = (sl_checkpoint_tensor){info->name, to->of[i]};
    }
    return SL_OK;
}

/* A CPU's memory is the host's. */
static sli_checkpoint_target tensor_memory(void *context, size_t tensor)
{
    const loading *to = context;
    sl_tensor *found = to->of[tensor - to->first];
    if (!found)
        return (sli_checkpoint_target){NULL, 0, 0};
    return (sli_checkpoint_target){sl_tensor_data(found), 0, sl_tensor_bytes(found)};
}

sl_status sl_checkpoint_load(const sl_checkpoint_reader *reader, const char *part,
                             sl_device *(*device_of)(void *context, const char *name),
                             void *context, sl_checkpoint_tensor **out, size_t *count)
{
    loading to;
    *out = NULL;
    *count = 0;
    SL_TRY(check_part(reader, part));
    sl_status status =
        sl_error_context(create_tensors(reader, sli_checkpoint_range_of(reader, part), device_of,
                                        context, &to),
                         "%s: part %s: ", reader->path, part);
    if (status == SL_OK)
        status = stream_part(reader, part, tensor_memory, &to);
    free(to.of);
    if (status != SL_OK) {
        sl_checkpoint_tensors_destroy(&to.out, to.count);
        return status;
    }
    *out = to.out;
    *count = to.count;
    return SL_OK;
}

void sl_checkpoint_tensors_destroy(sl_checkpoint_tensor **tensors, size_t count)
{
    if (!tensors || !*tensors)
        return;
    for (size_t i = 0; i < count; i++)
        sl_tensor_destroy(&(*tensors)[i].tensor);
    free(*tensors);
    *tensors = NULL;
}
