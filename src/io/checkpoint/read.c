/* Reading: the tensors that are wanted by several threads, since most of the time goes to memory
 * that nobody has touched yet; then, of a file that has one, the checksum, of what is in memory and
 * of the rest of the file. */
#include "core/error.h"
#include "io/checkpoint/format.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/threads.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <pthread.h>
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

/* A descriptor of such a file, which close_text closes: of the file that was opened with the
 * checkpoint, also where this has been replaced since; where none is held, of the file at its path.
 */
static sl_status open_text(const sl_checkpoint_reader *reader, size_t index, const char *path,
                           int *descriptor)
{
    uint64_t bytes;
    *descriptor = reader->files[index].descriptor;
    return *descriptor >= 0 ? SL_OK : sli_file_open(path, descriptor, &bytes);
}

static void close_text(const sl_checkpoint_reader *reader, size_t index, int descriptor)
{
    if (descriptor >= 0 && descriptor != reader->files[index].descriptor)
        close(descriptor);
}

static sl_status read_listed(const sl_checkpoint_reader *reader, size_t index, char **data,
                             size_t *bytes)
{
    char *path, checksum[SLI_CHECKSUM_BYTES];
    const sl_checkpoint_file_info *file = &reader->state.files[index];
    const char *text = reader->files[index].text;
    int descriptor = -1;
    *bytes = file->bytes;
    if (text) {
        *data = malloc(*bytes + 1);
        return *data ? (memcpy(*data, text, *bytes + 1), SL_OK)
                     : sli_no_memory(reader->path, "%s", file->name);
    }
    SL_TRY(sli_checkpoint_file_path(reader, index, &path));
    sl_status status;
    SL_TRY_OR_FAIL(open_text(reader, index, path, &descriptor));
    *data = calloc(1, *bytes + 1);
    if (!*data)
        SL_TRY_OR_FAIL(sli_no_memory(path, "its %" PRIu64 " bytes", file->bytes));
    SL_TRY_OR_FAIL(sli_file_read_at(path, descriptor, 0, *data, *bytes));
    status = check_sum(reader, index, path, sli_checksum_of(*data, *bytes, checksum));
fail:
    close_text(reader, index, descriptor);
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

enum { BLOCK_BYTES = 4 << 20 };

/* Bytes of a file, and where they go. */
typedef struct block {
    uint64_t begin, bytes;
    char *to;
} block;

typedef struct block_list {
    const sli_safetensors_reader *reader;
    int descriptor;
    block *blocks;
    size_t count, room;
    uint64_t bytes;       /* of all */
    pthread_mutex_t lock; /* guards what follows */
    int64_t failed;       /* the first block that could not be read; `count`: none */
    sli_error_copy error; /* its */
} block_list;

static sl_status add_blocks(block_list *list, uint64_t begin, uint64_t bytes, char *to)
{
    list->bytes += bytes;
    for (uint64_t done = 0; done < bytes; done += BLOCK_BYTES) {
        uint64_t count = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
        SL_TRY(sli_array_reserve(&list->blocks, &list->room, list->count + 1, sizeof(block),
                                 SIZE_MAX / sizeof(block), "blocks"));
        list->blocks[list->count++] = (block){begin + done, count, to + done};
    }
    return SL_OK;
}

static void read_block(void *argument, int64_t index, int thread)
{
    (void)thread;
    block_list *list = argument;
    const block *wanted = &list->blocks[index];
    sl_status status = sli_safetensors_read_at(list->reader, list->descriptor, wanted->begin,
                                               wanted->to, wanted->bytes);
    if (status == SL_OK)
        return;
    pthread_mutex_lock(&list->lock);
    if (index < list->failed) {
        list->failed = index;
        sli_error_save(&list->error, status);
    }
    pthread_mutex_unlock(&list->lock);
}

static sl_status read_blocks(block_list *list)
{
    sli_pool *pool;
    list->failed = (int64_t)list->count;
    SL_TRY(sli_pool_create_for_bytes(list->bytes, &pool));
    pthread_mutex_init(&list->lock, NULL);
    sli_pool_run(pool, (int64_t)list->count, read_block, list);
    pthread_mutex_destroy(&list->lock);
    sli_pool_destroy(&pool);
    return list->failed < (int64_t)list->count ? sli_error_restore(&list->error) : SL_OK;
}

/* Where the file's segment `i` goes: wanted[t] is the part's tensor t, or NULL. */
static char *find_target(const sli_checkpoint_file *file, size_t i,
                         const sl_safetensors_item *const *wanted)
{
    const sli_segment *segment = &file->segments[i];
    const sl_safetensors_item *item = wanted ? wanted[segment->tensor] : NULL;
    return item && item->data ? (char *)item->data + segment->offset : NULL;
}

static sl_status read_wanted(const sli_checkpoint_file *file, int descriptor,
                             const sl_safetensors_item *const *wanted)
{
    block_list list = {.reader = file->reader, .descriptor = descriptor};
    uint64_t begin = file->reader->data_begin;
    sl_status status;
    for (size_t i = 0; i < sli_safetensors_count(file->reader); i++) {
        uint64_t bytes = file->segments[i].info->bytes;
        char *target = find_target(file, i, wanted);
        if (target)
            SL_TRY_OR_FAIL(add_blocks(&list, begin, bytes, target));
        begin += bytes;
    }
    status = read_blocks(&list);
fail:
    free(list.blocks);
    return status;
}

enum { BUFFER_BYTES = 1 << 18 }; /* stays in a core's cache between reading and summing */

/* A file whose checksum is taken. */
typedef struct summing {
    const char *path;
    int descriptor;
    uint64_t at; /* the next byte */
    sli_checksum *sum;
    char *buffer; /* [BUFFER_BYTES] */
} summing;

static sl_status start_summing(summing *input)
{
    return input->buffer ? sli_checksum_create(&input->sum)
                         : sli_no_memory(input->path, "reading it");
}

/* The next bytes, which `data` has; NULL: they are read. */
static sl_status sum_bytes(summing *input, uint64_t bytes, const char *data)
{
    if (data)
        sli_checksum_add(input->sum, data, bytes);
    for (uint64_t done = 0; done < bytes && !data;) {
        uint64_t count = bytes - done < BUFFER_BYTES ? bytes - done : BUFFER_BYTES;
        SL_TRY(sli_file_read_at(input->path, input->descriptor, input->at + done, input->buffer,
                                count));
        sli_checksum_add(input->sum, input->buffer, count);
        done += count;
    }
    input->at += bytes;
    return SL_OK;
}

/* Takes the checksum of all of the file, of which what is wanted has been read. */
static sl_status sum_tensors(summing *input, const sli_checkpoint_file *file,
                             const sl_safetensors_item *const *wanted)
{
    SL_TRY(sum_bytes(input, file->reader->data_begin, NULL));
    for (size_t i = 0; i < sli_safetensors_count(file->reader); i++)
        SL_TRY(sum_bytes(input, file->segments[i].info->bytes, find_target(file, i, wanted)));
    return SL_OK;
}

/* Reads what is wanted of file `index`; NULL: all of it, to nowhere. */
static sl_status read_file(const sl_checkpoint_reader *reader, size_t index,
                           const sl_safetensors_item *const *wanted)
{
    char found[SLI_CHECKSUM_BYTES];
    const sli_checkpoint_file *file = &reader->files[index];
    summing input = {.path = file->reader->path};
    sl_status status;
    SL_TRY(sli_safetensors_borrow_descriptor(file->reader, &input.descriptor));
    if (wanted)
        SL_TRY_OR_FAIL(read_wanted(file, input.descriptor, wanted));
    status = SL_OK;
    if (wanted && !reader->state.files[index].checksum)
        goto fail;
    input.buffer = malloc(BUFFER_BYTES);
    SL_TRY_OR_FAIL(start_summing(&input));
    SL_TRY_OR_FAIL(sum_tensors(&input, file, wanted));
    status = check_sum(reader, index, input.path, sli_checksum_text(input.sum, found));
fail:
    sli_safetensors_return_descriptor(file->reader, input.descriptor);
    sli_checksum_destroy(&input.sum);
    free(input.buffer);
    return status;
}

/* Reads a file without tensors, to nowhere. */
static sl_status sum_listed(const sl_checkpoint_reader *reader, size_t index)
{
    char found[SLI_CHECKSUM_BYTES], *path;
    SL_TRY(sli_checkpoint_file_path(reader, index, &path));
    summing input = {.path = path, .descriptor = -1, .buffer = malloc(BUFFER_BYTES)};
    sl_status status;
    SL_TRY_OR_FAIL(start_summing(&input));
    SL_TRY_OR_FAIL(open_text(reader, index, path, &input.descriptor));
    SL_TRY_OR_FAIL(sum_bytes(&input, reader->state.files[index].bytes, NULL));
    status = check_sum(reader, index, path, sli_checksum_text(input.sum, found));
fail:
    close_text(reader, index, input.descriptor);
    sli_checksum_destroy(&input.sum);
    free(input.buffer);
    free(path);
    return status;
}

sl_status sl_checkpoint_verify(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < reader->state.count; i++)
        if (!reader->files[i].text)
            SL_TRY(reader->files[i].reader ? read_file(reader, i, NULL) : sum_listed(reader, i));
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

sl_status sli_checkpoint_map(const sl_checkpoint_reader *reader, const sli_checkpoint_entry *tensor,
                             sli_file_map **map, void **data)
{
    *map = NULL;
    *data = NULL;
    if (tensor->count != 1)
        return SL_OK;
    const sli_segment *segment = tensor->segments[0];
    SL_TRY(sli_safetensors_map(reader->files[segment->file].reader, segment->info, map, data));
    if ((uintptr_t)*data % sl_dtype_bytes(tensor->info.dtype) != 0)
        *data = NULL;
    return SL_OK;
}

void sli_checkpoint_end_maps(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < reader->state.count; i++)
        if (reader->files[i].reader)
            sli_safetensors_end_map(reader->files[i].reader);
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
            status = read_file(reader, i, wanted);
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
    sl_status status;
    if (!items || !copies || !*out)
        SL_TRY_OR_FAIL(no_memory(reader, listed->count));
    SL_TRY_OR_FAIL(sli_checkpoint_part_error(reader, part,
                                             create_tensors(listed, device_of, context, items,
                                                            copies, *out, count)));
    status = sli_checkpoint_read_items(reader, part, items, *count);
fail:
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
