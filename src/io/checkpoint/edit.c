/* Checkpoints made from checkpoints. What goes in is compared with its checksums first; then each
 * tensor is read when its turn to be written comes, so that memory need hold but the largest. */
#include "core/file.h"
#include "core/replace.h"
#include "io/checkpoint/pieces.h"
#include "io/checkpoint/slices.h"
#include "io/checkpoint/writer.h"
#include "io/safetensors/reader.h"
#include "io/safetensors/text.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const model_part = "model";

/* ---- What a part has -------------------------------------------------------------------- */

typedef struct listed_part {
    sl_safetensors_item *items; /* [count], names are the reader's */
    size_t count;
    uint64_t largest;      /* bytes of the largest tensor */
    sl_metadata *metadata; /* the reader's, but the checkpoint's id and slices */
    size_t metadata_count;
} listed_part;

static void clear_list(listed_part *part)
{
    free(part->items);
    free(part->metadata);
}

static sl_status describe_item(const sl_safetensors_info *info, sl_safetensors_item *out)
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

static sl_status list_metadata(const sl_checkpoint_reader *reader, const char *part,
                               listed_part *to)
{
    const sl_metadata *metadata = NULL;
    size_t count = 0;
    for (size_t i = 0; i < reader->state.count && !metadata; i++)
        if (sli_checkpoint_is_shard(reader, i, part))
            metadata = sli_safetensors_all_metadata(reader->shards[i], &count);
    to->metadata = calloc(count + 1, sizeof *to->metadata);
    if (!to->metadata)
        return sl_error(SL_ERR_MEMORY, "no memory for a file's metadata");
    for (size_t i = 0; i < count; i++)
        if (strcmp(metadata[i].key, SLI_CHECKPOINT_ID_KEY) != 0 &&
            strcmp(metadata[i].key, SLI_SLICES_KEY) != 0)
            to->metadata[to->metadata_count++] = metadata[i];
    return SL_OK;
}

/* Cleared by clear_list, also after an error. */
static sl_status list_part(const sl_checkpoint_reader *reader, const char *part, listed_part *to)
{
    size_t count = sl_checkpoint_tensor_count(reader, part);
    *to = (listed_part){.items = calloc(count + 1, sizeof *to->items)};
    if (!to->items)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", count);
    for (size_t i = 0; i < count; i++) {
        const sl_safetensors_info *info = sl_checkpoint_tensor_get(reader, part, i);
        SL_TRY(describe_item(info, &to->items[to->count++]));
        if (info->bytes > to->largest)
            to->largest = info->bytes;
    }
    return list_metadata(reader, part, to);
}

/* ---- Where tensors come from ------------------------------------------------------------ */

/* One checkpoint's tensors, or the means of several's. */
typedef struct origin {
    sli_checkpoint_pieces **of; /* [count] */
    size_t count;
    float *data;  /* of the tensor that was asked for last, of whatever type */
    double *sums; /* of its elements; NULL: there is one checkpoint */
} origin;

static void origin_clear(origin *from)
{
    for (size_t i = 0; from->of && i < from->count; i++)
        sli_checkpoint_pieces_destroy(&from->of[i]);
    free(from->of);
    free(from->data);
    free(from->sums);
}

static sl_status origin_create(sl_checkpoint_reader *const *readers, size_t count, const char *part,
                               uint64_t largest, origin *out)
{
    *out = (origin){.of = calloc(count, sizeof(sli_checkpoint_pieces *)),
                    .count = count,
                    .data = malloc(largest + 1),
                    .sums = count > 1 ? malloc(2 * largest + 1) : NULL};
    if (!out->of || !out->data || (count > 1 && !out->sums))
        return sl_error(SL_ERR_MEMORY, "no memory for a tensor of %llu bytes",
                        (unsigned long long)largest);
    for (size_t i = 0; i < count; i++)
        SL_TRY(sli_checkpoint_pieces_create(readers[i], part, &out->of[i]));
    return SL_OK;
}

static sl_status read_mean(const origin *from, const sl_safetensors_item *item)
{
    int64_t elements = sl_shape_count(&item->shape);
    for (int64_t k = 0; k < elements; k++)
        from->sums[k] = 0;
    for (size_t i = 0; i < from->count; i++) {
        SL_TRY(sli_checkpoint_pieces_read(from->of[i], item->name, from->data));
        for (int64_t k = 0; k < elements; k++)
            from->sums[k] += (double)from->data[k];
    }
    for (int64_t k = 0; k < elements; k++)
        from->data[k] = (float)(from->sums[k] / (double)from->count);
    return SL_OK;
}

static sl_status read_item(void *context, const sl_safetensors_item *item, const void **data)
{
    const origin *from = context;
    *data = from->data;
    if (from->count > 1)
        return read_mean(from, item);
    return sli_checkpoint_pieces_read(from->of[0], item->name, from->data);
}

/* ---- Writing ---------------------------------------------------------------------------- */

/* The part of the first reader's checkpoint, or of several the mean. */
static sl_status write_part(sli_checkpoint_writer *to, sl_checkpoint_reader *const *readers,
                            size_t count, const char *name, uint64_t shard_bytes)
{
    listed_part list;
    origin from = {0};
    sl_status status = list_part(readers[0], name, &list);
    const sl_checkpoint_part part = {name, list.items, list.count, list.metadata,
                                     list.metadata_count};
    if (status == SL_OK)
        status = origin_create(readers, count, name, list.largest, &from);
    if (status == SL_OK)
        status = sli_checkpoint_writer_add_from(to, &part, shard_bytes,
                                                &(sli_checkpoint_source){read_item, &from});
    origin_clear(&from);
    clear_list(&list);
    return status;
}

/* All that belongs to no part. */
static sl_status write_files(sli_checkpoint_writer *to, const sl_checkpoint_reader *from)
{
    for (size_t i = 0; i < sl_checkpoint_file_count(from); i++) {
        const sl_checkpoint_file_info *info = sl_checkpoint_file_get(from, i);
        char *data;
        size_t bytes;
        if (info->part)
            continue;
        SL_TRY(sl_checkpoint_read_file(from, info->name, &data, &bytes));
        const sl_checkpoint_file file = {info->name, data, bytes};
        sl_status status =
            sli_checkpoint_writer_add(to,
                                      &(sl_checkpoint_contents){.files = &file, .file_count = 1});
        free(data);
        SL_TRY(status);
    }
    return SL_OK;
}

/* What a checkpoint is made of: all of one, or the mean of several's models. */
typedef struct recipe {
    sl_checkpoint_reader **readers; /* [count] */
    size_t count;
    bool mean;
    uint64_t shard_bytes;
} recipe;

static sl_status fill(sli_checkpoint_writer *to, const recipe *by)
{
    const sl_checkpoint_reader *first = by->readers[0];
    for (size_t i = 0; i < first->part_count; i++)
        if (!by->mean || strcmp(first->parts[i].part, model_part) == 0)
            SL_TRY(write_part(to, by->readers, by->count, first->parts[i].part, by->shard_bytes));
    SL_TRY(write_files(to, first));
    return sli_checkpoint_writer_commit(to, by->mean ? NULL : sl_checkpoint_state(first));
}

static sl_status write_checkpoint(const recipe *by, const char *path)
{
    uint64_t id;
    sli_checkpoint_writer *writer;
    SL_TRY(sli_draw_number(path, &id));
    SL_TRY(sli_checkpoint_writer_create(path, id, &writer));
    sl_status status = fill(writer, by);
    sli_checkpoint_writer_destroy(&writer);
    return status;
}

static sl_status write_new(const recipe *by, const char *path)
{
    return sl_error_context(write_checkpoint(by, path),
                            "%s: the checkpoint cannot be written: ", path);
}

static sl_status check_free(const char *path)
{
    int holder;
    char *name;
    struct stat found;
    SL_TRY(sli_path_open_parent(path, path, &holder, &name));
    bool free_name = fstatat(holder, name, &found, AT_SYMLINK_NOFOLLOW) != 0;
    close(holder);
    free(name);
    return free_name
               ? SL_OK
               : sl_error(SL_ERR_INVALID, "%s: there is something of that name already", path);
}

sl_status sl_checkpoint_convert(const char *from, const char *to, uint64_t shard_bytes)
{
    sl_checkpoint_reader *reader;
    SL_TRY(check_free(to));
    SL_TRY(sl_checkpoint_open(from, &reader));
    sl_status status = sl_checkpoint_verify(reader);
    if (status == SL_OK)
        status = write_new(&(recipe){&reader, 1, false, shard_bytes}, to);
    sl_checkpoint_close(&reader);
    return status;
}

/* ---- The mean --------------------------------------------------------------------------- */

static sl_status check_floats(const listed_part *model)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < model->count; i++)
        if (model->items[i].dtype != SL_F32)
            return sl_error(SL_ERR_INVALID, "tensor %s is %s: only f32 can be averaged",
                            sli_safetensors_quote(model->items[i].name, quoted),
                            sl_dtype_name(model->items[i].dtype));
    return SL_OK;
}

/* All models must have the first one's names and shapes, and be whole. */
static sl_status check_models(sl_checkpoint_reader *const *readers, size_t count)
{
    listed_part first;
    sl_status status = list_part(readers[0], model_part, &first);
    if (status == SL_OK)
        status = check_floats(&first);
    for (size_t i = 0; i < count && status == SL_OK; i++)
        status = sli_checkpoint_check_items(readers[i], model_part, first.items, first.count);
    for (size_t i = 0; i < count && status == SL_OK; i++)
        status = sli_checkpoint_verify_part(readers[i], model_part);
    clear_list(&first);
    return status;
}

/* The files of many checkpoints would be more than may be open at once. */
static sl_status open_released(const char *path, sl_checkpoint_reader **out)
{
    SL_TRY(sl_checkpoint_open(path, out));
    for (size_t i = 0; i < (*out)->state.count && i < SLI_SAFETENSORS_MOST_OPEN; i++)
        if ((*out)->shards[i])
            sli_safetensors_release((*out)->shards[i]);
    return SL_OK;
}

sl_status sl_checkpoint_average(const char *const *from, size_t count, const char *to,
                                uint64_t shard_bytes)
{
    if (count == 0)
        return sl_error(SL_ERR_INVALID, "sl_checkpoint_average: a mean needs a checkpoint");
    SL_TRY(check_free(to));
    sl_checkpoint_reader **readers = calloc(count, sizeof *readers);
    sl_status status = readers ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for a mean");
    for (size_t i = 0; i < count && status == SL_OK; i++)
        status = open_released(from[i], &readers[i]);
    if (status == SL_OK)
        status = check_models(readers, count);
    if (status == SL_OK)
        status = write_new(&(recipe){readers, count, true, shard_bytes}, to);
    for (size_t i = 0; readers && i < count; i++)
        sl_checkpoint_close(&readers[i]);
    free(readers);
    return status;
}
