/* Reading: each file once, from its first byte to its last, its checksum taken on the way. */
#include "core/error.h"
#include "io/checkpoint/format.h"

#include "core/file.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static sl_status read_listed(const sl_checkpoint_reader *reader, size_t index, char **data,
                             size_t *bytes)
{
    char *path, checksum[SLI_CHECKSUM_BYTES];
    const sl_checkpoint_file_info *file = &reader->state.files[index];
    const char *text = reader->files[index].text;
    if (text) {
        *bytes = file->bytes;
        *data = malloc(*bytes + 1);
        return *data ? (memcpy(*data, text, *bytes + 1), SL_OK)
                     : sli_no_memory(reader->path, "%s", file->name);
    }
    SL_TRY(sli_checkpoint_file_path(reader, index, &path));
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

sl_status sli_checkpoint_read_file(const sl_checkpoint_reader *reader, const char *name,
                                   char **data, size_t *bytes)
{
    *data = NULL;
    for (size_t i = 0; i < reader->state.count; i++)
        if (!reader->files[i].reader && strcmp(reader->state.files[i].name, name) == 0)
            return read_listed(reader, i, data, bytes);
    return sl_error(SL_ERR_NOT_FOUND, "%s: it has no file \"%s\"", reader->path, name);
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

static sl_status start_stream(stream *input)
{
    return input->buffer ? sli_checksum_create(&input->sum)
                         : sli_no_memory(input->path, "reading it");
}

/* The next bytes; to NULL: only into the checksum. */
static sl_status stream_bytes(stream *input, uint64_t bytes, char *to)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t count = bytes - done < BUFFER_BYTES ? bytes - done : BUFFER_BYTES;
        char *memory = to ? to + done : input->buffer;
        SL_TRY(sli_file_read_at(input->path, input->descriptor, input->at, memory, count));
        sli_checksum_add(input->sum, memory, count);
        input->at += count;
        done += count;
    }
    return SL_OK;
}

/* Reads all of the file; wanted[t] (NULL: none of them) is filled with the part's tensor t, if it
 * is not NULL. */
static sl_status stream_tensors(stream *input, const sli_checkpoint_file *file,
                                const sl_safetensors_item *const *wanted)
{
    SL_TRY(stream_bytes(input, file->reader->data_begin, NULL));
    for (size_t i = 0; i < sli_safetensors_count(file->reader); i++) {
        const sli_segment *segment = &file->segments[i];
        const sl_safetensors_item *item = wanted ? wanted[segment->tensor] : NULL;
        char *to = item && item->data ? (char *)item->data + segment->offset : NULL;
        SL_TRY(stream_bytes(input, segment->info->bytes, to));
    }
    return SL_OK;
}

/* The same for file `index`, with its checksum. */
static sl_status stream_file(const sl_checkpoint_reader *reader, size_t index,
                             const sl_safetensors_item *const *wanted)
{
    char found[SLI_CHECKSUM_BYTES];
    const sli_checkpoint_file *file = &reader->files[index];
    stream input = {.path = file->reader->path, .buffer = malloc(BUFFER_BYTES)};
    sl_status status;
    SLI_TRY_OR_FAIL(start_stream(&input));
    SLI_TRY_OR_FAIL(sli_safetensors_borrow_descriptor(file->reader, &input.descriptor));
    status = stream_tensors(&input, file, wanted);
    sli_safetensors_return_descriptor(file->reader, input.descriptor);
    if (status == SL_OK)
        status = check_sum(reader, index, input.path, sli_checksum_text(input.sum, found));
fail:
    sli_checksum_destroy(&input.sum);
    free(input.buffer);
    return status;
}

/* The same for a file without tensors. */
static sl_status stream_listed(const sl_checkpoint_reader *reader, size_t index)
{
    char found[SLI_CHECKSUM_BYTES], *path;
    uint64_t bytes;
    SL_TRY(sli_checkpoint_file_path(reader, index, &path));
    stream input = {.path = path, .descriptor = -1, .buffer = malloc(BUFFER_BYTES)};
    sl_status status;
    SLI_TRY_OR_FAIL(start_stream(&input));
    SLI_TRY_OR_FAIL(sli_file_open(path, &input.descriptor, &bytes));
    SLI_TRY_OR_FAIL(stream_bytes(&input, bytes, NULL));
    status = check_sum(reader, index, path, sli_checksum_text(input.sum, found));
fail:
    if (input.descriptor >= 0)
        close(input.descriptor);
    sli_checksum_destroy(&input.sum);
    free(input.buffer);
    free(path);
    return status;
}

sl_status sl_checkpoint_verify(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < reader->state.count; i++)
        if (!reader->files[i].text)
            SL_TRY(reader->files[i].reader ? stream_file(reader, i, NULL)
                                           : stream_listed(reader, i));
    return SL_OK;
}

sl_status sli_checkpoint_read_elements(const sl_checkpoint_reader *reader,
                                       const sli_checkpoint_entry *tensor, int64_t first,
                                       int64_t count, void *out)
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
                                              (char *)out + (low - begin)));
    }
    return SL_OK;
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

bool sli_checkpoint_fits(const sl_safetensors_info *info, const sl_safetensors_item *item)
{
    if (item->shape.dims < 0 && !item->data)
        return true;
    if (!info->readable || info->dtype != item->dtype || info->dims != item->shape.dims)
        return false;
    for (int i = 0; i < info->dims; i++)
        if (info->size[i] != item->shape.size[i])
            return false;
    return true;
}

/* Names the first tensor whose shape or data type is another, and counts the others. */
static sl_status check_shapes(const sli_checkpoint_tensors *listed,
                              const sl_safetensors_item *const *matches)
{
    char quoted[SLI_QUOTE_BYTES], wanted[SLI_SIZES_BYTES], is[SLI_SIZES_BYTES], more[64] = "";
    size_t first = listed->count, misfits = 0;
    for (size_t i = listed->count; i > 0; i--)
        if (matches[i - 1] && !sli_checkpoint_fits(&listed->tensors[i - 1].info, matches[i - 1])) {
            first = i - 1;
            misfits++;
        }
    if (misfits == 0)
        return SL_OK;
    if (misfits > 1)
        snprintf(more, sizeof more, "; %zu more of the tensors do not fit", misfits - 1);
    const sl_safetensors_info *info = &listed->tensors[first].info;
    const sl_safetensors_item *item = matches[first];
    return sl_error(SL_ERR_INVALID, "tensor %s should be %s %s, but is %s %s%s",
                    sli_safetensors_quote(item->name, quoted),
                    sli_safetensors_dtype_of(item->dtype)->name,
                    sli_safetensors_sizes(item->shape.dims, item->shape.size, wanted),
                    info->type_name, sli_safetensors_sizes(info->dims, info->size, is), more);
}

/* The items must be exactly the tensors, in any order. of [tensors] is all NULL, and gets each
 * tensor's item. */
static sl_status match_items(const sli_checkpoint_tensors *listed, const sl_safetensors_item *items,
                             size_t count, const sl_safetensors_item **matches)
{
    name_list missing = {0}, unexpected = {0};
    for (size_t i = 0; i < count; i++) {
        const sli_checkpoint_entry *found =
            sli_names_find(listed->tensors, listed->count, sizeof *listed->tensors, items[i].name);
        if (!found)
            name_list_add(&missing, items[i].name);
        else if (matches[found - listed->tensors])
            return sl_error(SL_ERR_INVALID, "tensor \"%s\" is asked for twice", items[i].name);
        else
            matches[found - listed->tensors] = &items[i];
    }
    for (size_t i = 0; i < listed->count; i++)
        if (!matches[listed->order[i]])
            name_list_add(&unexpected, listed->tensors[listed->order[i]].info.name);
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
    return check_shapes(listed, matches);
}

static sl_status no_memory(const sl_checkpoint_reader *reader, size_t tensors)
{
    return sli_no_memory(reader->path, "%zu tensors", tensors);
}

sl_status sli_checkpoint_check_items(const sl_checkpoint_reader *reader, const char *part,
                                     const sl_safetensors_item *items, size_t count)
{
    const sli_checkpoint_tensors *listed;
    SL_TRY(sli_checkpoint_need_part(reader, part, &listed));
    const sl_safetensors_item **matches = calloc(listed->count + 1, sizeof(sl_safetensors_item *));
    if (!matches)
        return no_memory(reader, listed->count);
    sl_status status =
        sli_checkpoint_part_error(reader, part, match_items(listed, items, count, matches));
    free(matches);
    return status;
}

/* ---- A part to memory ------------------------------------------------------------------- */

sl_status sli_checkpoint_read_items(const sl_checkpoint_reader *reader, const char *part,
                                    const sl_safetensors_item *items, size_t count)
{
    const sli_checkpoint_tensors *listed;
    SL_TRY(sli_checkpoint_need_part(reader, part, &listed));
    const sl_safetensors_item **wanted = calloc(listed->count + 1, sizeof(sl_safetensors_item *));
    if (!wanted)
        return no_memory(reader, listed->count);
    for (size_t i = 0; i < count; i++)
        if (items[i].data)
            wanted[sli_checkpoint_find_tensor(reader, part, items[i].name) - listed->tensors] =
                &items[i];
    sl_status status = SL_OK;
    for (size_t i = 0; i < reader->state.count && status == SL_OK; i++)
        if (sli_checkpoint_has_tensors(reader, i, part))
            status = stream_file(reader, i, wanted);
    free(wanted);
    return status;
}

sl_status sli_checkpoint_verify_part(const sl_checkpoint_reader *reader, const char *part)
{
    return sli_checkpoint_read_items(reader, part, NULL, 0);
}

sl_status sl_checkpoint_read(const sl_checkpoint_reader *reader, const char *part,
                             const sl_safetensors_item *items, size_t count)
{
    SL_TRY(sli_checkpoint_check_items(reader, part, items, count));
    return sli_checkpoint_read_items(reader, part, items, count);
}

sl_status sl_safetensors_load(const char *path, const sl_safetensors_item *items, size_t count)
{
    sl_checkpoint_reader *reader;
    SL_TRY(sl_checkpoint_open(path, &reader));
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

/* Creates the tensors that have a device, out [*count], and items that lead to their memory, or to
 * that of `copies`, where the host does not reach it. */
static sl_status create_tensors(const sli_checkpoint_tensors *listed,
                                sl_device *(*device_of)(void *context, const char *name),
                                void *context, sl_safetensors_item *items, sli_host_array *copies,
                                sl_checkpoint_tensor *out, size_t *count)
{
    for (size_t i = 0; i < listed->count; i++) {
        const sl_safetensors_info *info = &listed->tensors[listed->order[i]].info;
        sl_safetensors_item *item = &items[*count];
        sl_device *device = device_of(context, info->name);
        if (!device)
            continue;
        SL_TRY(sli_checkpoint_describe(info, item));
        SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, item->dtype, &item->shape,
                                &out[*count].tensor));
        out[*count].name = item->name;
        sli_host_array *copy = &copies[(*count)++];
        SL_TRY(sli_tensor_open_host(out[*count - 1].tensor, false, copy));
        item->data = copy->host;
    }
    return SL_OK;
}

sl_status sl_checkpoint_load(const sl_checkpoint_reader *reader, const char *part,
                             sl_device *(*device_of)(void *context, const char *name),
                             void *context, sl_checkpoint_tensor **out, size_t *count)
{
    const sli_checkpoint_tensors *listed;
    *out = NULL;
    *count = 0;
    SL_TRY(sli_checkpoint_need_part(reader, part, &listed));
    sl_safetensors_item *items = calloc(listed->count + 1, sizeof *items);
    sli_host_array *copies = calloc(listed->count + 1, sizeof *copies);
    *out = calloc(listed->count + 1, sizeof **out);
    sl_status status = items && copies && *out
                           ? sli_checkpoint_part_error(reader, part,
                                                       create_tensors(listed, device_of, context,
                                                                      items, copies, *out, count))
                           : no_memory(reader, listed->count);
    if (status == SL_OK)
        status = sli_checkpoint_read_items(reader, part, items, *count);
    for (size_t i = 0; i < *count; i++) {
        sl_status written = sli_host_array_close(&copies[i], status == SL_OK);
        status = status == SL_OK ? written : status;
    }
    if (status != SL_OK) {
        sl_checkpoint_tensors_destroy(out, *count);
        *count = 0;
    }
    free(copies);
    free(items);
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
