/* Reading: each file once, from its first byte to its last, its checksum taken on the way. */
#include "io/checkpoint/format.h"

#include "core/file.h"

#include <stdlib.h>
#include <string.h>

static sl_status check_sum(const sl_checkpoint_reader *reader, size_t index, const char *path,
                           const char *found)
{
    const char *expected = reader->state.files[index].checksum;
    if (!expected || strcmp(found, expected) == 0)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT, "%s: it is damaged: its checksum is %s, and %s in state.json",
                    path, found, expected);
}

/* ---- Files without tensors -------------------------------------------------------------- */

sl_status sli_checkpoint_read_listed(const sl_checkpoint_reader *reader, size_t index, char **data,
                                     size_t *bytes)
{
    char *path, checksum[SLI_CHECKSUM_BYTES];
    const sl_checkpoint_file_info *file = &reader->state.files[index];
    *data = NULL;
    SL_TRY(sli_path_join(reader->path, file->name, &path));
    sl_status status = sli_file_read(path, file->bytes, data, bytes);
    if (status == SL_OK)
        status = check_sum(reader, index, path, sli_checksum_of(*data, *bytes, checksum));
    free(path);
    if (status != SL_OK) {
        free(*data);
        *data = NULL;
    }
    return status;
}

sl_status sl_checkpoint_read_file(const sl_checkpoint_reader *reader, const char *name, char **data,
                                  size_t *bytes)
{
    *data = NULL;
    for (size_t i = 0; i < reader->state.count; i++)
        if (!reader->files[i].reader && strcmp(reader->state.files[i].name, name) == 0)
            return sli_checkpoint_read_listed(reader, i, data, bytes);
    return sl_error(SL_ERR_NOT_FOUND, "%s: the checkpoint has no file \"%s\"", reader->path, name);
}

/* ---- Files of tensors ------------------------------------------------------------------- */

enum { BUFFER_BYTES = 1 << 18 }; /* stays in a core's cache between reading and summing */

typedef struct stream {
    const char *path;
    int descriptor;
    uint64_t at; /* the next byte */
    sli_checksum *sum;
    char *buffer; /* [BUFFER_BYTES] */
} stream;

/* The next bytes; to NULL: only into the checksum. */
static sl_status stream_bytes(stream *from, uint64_t bytes, char *to)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t count = bytes - done < BUFFER_BYTES ? bytes - done : BUFFER_BYTES;
        char *memory = to ? to + done : from->buffer;
        SL_TRY(sli_file_read_at(from->path, from->descriptor, from->at, memory, count));
        sli_checksum_add(from->sum, memory, count);
        from->at += count;
        done += count;
    }
    return SL_OK;
}

/* Reads all of the file; wanted[t] (NULL: none of them) is filled with the part's tensor t, if it
 * is not NULL. */
static sl_status stream_tensors(stream *from, const sli_checkpoint_file *file,
                                const sl_safetensors_item *const *wanted)
{
    SL_TRY(stream_bytes(from, file->reader->data_begin, NULL));
    for (size_t i = 0; i < sl_safetensors_count(file->reader); i++) {
        const sli_segment *segment = &file->segments[i];
        const sl_safetensors_item *item = wanted ? wanted[segment->tensor] : NULL;
        char *to = item && item->data ? (char *)item->data + segment->offset : NULL;
        SL_TRY(stream_bytes(from, segment->info->bytes, to));
    }
    return SL_OK;
}

/* The same for file `index`, with its checksum. */
static sl_status stream_file(const sl_checkpoint_reader *reader, size_t index,
                             const sl_safetensors_item *const *wanted)
{
    char found[SLI_CHECKSUM_BYTES];
    const sli_checkpoint_file *file = &reader->files[index];
    stream from = {.path = file->reader->path, .buffer = malloc(BUFFER_BYTES)};
    sl_status status = from.buffer ? sli_checksum_create(&from.sum)
                                   : sl_error(SL_ERR_MEMORY, "%s: no memory to read it", from.path);
    if (status == SL_OK)
        status = sli_safetensors_borrow_descriptor(file->reader, &from.descriptor);
    if (status == SL_OK) {
        status = stream_tensors(&from, file, wanted);
        sli_safetensors_return_descriptor(file->reader, from.descriptor);
    }
    if (status == SL_OK)
        status = check_sum(reader, index, from.path, sli_checksum_text(from.sum, found));
    sli_checksum_destroy(&from.sum);
    free(from.buffer);
    return status;
}

static sl_status stream_part(const sl_checkpoint_reader *reader, const char *part,
                             const sl_safetensors_item *const *wanted)
{
    for (size_t i = 0; i < reader->state.count; i++)
        if (sli_checkpoint_has_tensors(reader, i, part))
            SL_TRY(stream_file(reader, i, wanted));
    return SL_OK;
}

sl_status sl_checkpoint_verify(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < reader->state.count; i++) {
        char *data = NULL;
        size_t bytes;
        SL_TRY(reader->files[i].reader ? stream_file(reader, i, NULL)
                                       : sli_checkpoint_read_listed(reader, i, &data, &bytes));
        free(data);
    }
    return SL_OK;
}

sl_status sli_checkpoint_verify_part(const sl_checkpoint_reader *reader, const char *part)
{
    const sli_checkpoint_tensors *of;
    SL_TRY(sli_checkpoint_need_part(reader, part, &of));
    return stream_part(reader, part, NULL);
}

sl_status sli_checkpoint_read_elements(const sl_checkpoint_reader *reader,
                                       const sli_checkpoint_entry *tensor, int64_t first,
                                       int64_t count, void *to)
{
    uint64_t width = sl_dtype_bytes(tensor->info.dtype), begin = (uint64_t)first * width,
             end = begin + (uint64_t)count * width;
    for (size_t i = 0; i < tensor->count; i++) {
        const sli_segment *segment = tensor->segments[i];
        uint64_t low = segment->offset, high = low + segment->info->bytes;
        low = begin > low ? begin : low;
        high = end < high ? end : high;
        if (low < high)
            SL_TRY(sli_safetensors_read_bytes(reader->files[segment->file].reader, segment->info,
                                              low - segment->offset, high - low,
                                              (char *)to + (low - begin)));
    }
    return SL_OK;
}

/* ---- A part to memory ------------------------------------------------------------------- */

/* `reads`: into the items' data. */
static sl_status match_and_read(const sl_checkpoint_reader *reader, const char *part,
                                const sl_safetensors_item *items, size_t count, bool reads)
{
    const sli_checkpoint_tensors *in;
    SL_TRY(sli_checkpoint_need_part(reader, part, &in));
    const sl_safetensors_item **wanted = calloc(in->count + 1, sizeof(sl_safetensors_item *));
    if (!wanted)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for %zu tensors", reader->path, in->count);
    sl_status status =
        sli_checkpoint_part_error(reader, part, sli_checkpoint_match(in, items, count, wanted));
    if (status == SL_OK && reads)
        status = stream_part(reader, part, wanted);
    free(wanted);
    return status;
}

sl_status sl_checkpoint_read(const sl_checkpoint_reader *reader, const char *part,
                             const sl_safetensors_item *items, size_t count)
{
    return match_and_read(reader, part, items, count, true);
}

sl_status sli_checkpoint_check_items(const sl_checkpoint_reader *reader, const char *part,
                                     const sl_safetensors_item *items, size_t count)
{
    return match_and_read(reader, part, items, count, false);
}

sl_status sl_safetensors_load(const char *path, const sl_safetensors_item *items, size_t count)
{
    sl_checkpoint_reader *reader;
    SL_TRY(sli_checkpoint_open_model(path, &reader));
    sl_status status = sl_checkpoint_read(reader, SLI_MODEL_PART, items, count);
    sl_checkpoint_close(&reader);
    return status;
}

/* ---- A part to devices ------------------------------------------------------------------ */

sl_status sli_checkpoint_describe(const sl_safetensors_info *info, sl_safetensors_item *out)
{
    char quoted[SLI_QUOTE_BYTES];
    if (!info->readable || info->dims > SL_MAX_DIMS)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "tensor %s: %s with %d dimensions is none of sluice's tensors",
                        sli_safetensors_quote(info->name, quoted), info->type_name, info->dims);
    *out = (sl_safetensors_item){info->name, info->dtype, {.dims = info->dims}, NULL};
    for (int i = 0; i < info->dims; i++)
        out->shape.size[i] = info->size[i];
    return SL_OK;
}

/* Creates the tensors that have a device: out [*count], and wanted[t], an item of `items` that
 * leads to the memory of the part's tensor t. A CPU's memory is the host's. */
static sl_status create_tensors(const sli_checkpoint_tensors *in,
                                sl_device *(*device_of)(void *context, const char *name),
                                void *context, sl_safetensors_item *items,
                                const sl_safetensors_item **wanted, sl_checkpoint_tensor *out,
                                size_t *count)
{
    for (size_t i = 0; i < in->count; i++) {
        const sl_safetensors_info *info = &in->tensors[in->order[i]].info;
        sl_safetensors_item *item = &items[i];
        sl_device *device = device_of(context, info->name);
        if (!device)
            continue;
        SL_TRY(sli_checkpoint_describe(info, item));
        SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, item->dtype, &item->shape,
                                &out[*count].tensor));
        out[(*count)++].name = item->name;
        item->data = sl_tensor_data(out[*count - 1].tensor);
        wanted[in->order[i]] = item;
    }
    return SL_OK;
}

sl_status sl_checkpoint_load(const sl_checkpoint_reader *reader, const char *part,
                             sl_device *(*device_of)(void *context, const char *name),
                             void *context, sl_checkpoint_tensor **out, size_t *count)
{
    const sli_checkpoint_tensors *in;
    *out = NULL;
    *count = 0;
    SL_TRY(sli_checkpoint_need_part(reader, part, &in));
    sl_safetensors_item *items = calloc(in->count + 1, sizeof *items);
    const sl_safetensors_item **wanted = calloc(in->count + 1, sizeof(sl_safetensors_item *));
    *out = calloc(in->count + 1, sizeof **out);
    sl_status status = items && wanted && *out
                           ? create_tensors(in, device_of, context, items, wanted, *out, count)
                           : sl_error(SL_ERR_MEMORY, "no memory for %zu tensors", in->count);
    status = sli_checkpoint_part_error(reader, part, status);
    if (status == SL_OK)
        status = stream_part(reader, part, wanted);
    if (status != SL_OK) {
        sl_checkpoint_tensors_destroy(out, *count);
        *count = 0;
    }
    free(items);
    free(wanted);
    return status;
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
