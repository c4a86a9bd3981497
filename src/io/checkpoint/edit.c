/* Checkpoints made from checkpoints. What goes in is compared with its checksums first; then each
 * tensor is read when its turn to be written comes, so that memory need hold but the largest. */
#include "io/checkpoint/format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- What a checkpoint has -------------------------------------------------------------- */

typedef struct listing {
    sl_checkpoint_part parts[SL_CHECKPOINT_MOST_PARTS]; /* of items without data */
    sl_checkpoint_file *files;                          /* [contents.file_count] */
    uint64_t largest;                                   /* bytes of the largest tensor */
    sl_checkpoint_contents contents;                    /* of the above */
} listing;

static void clear_listing(listing *of)
{
    for (size_t i = 0; i < of->contents.part_count; i++) {
        free((void *)of->parts[i].items);
        free((void *)of->parts[i].metadata);
    }
    for (size_t i = 0; i < of->contents.file_count; i++)
        free((void *)of->files[i].data);
    free(of->files);
}

/* Its files' metadata, but for what every writer adds. */
static sl_status list_metadata(const sl_checkpoint_reader *reader, sl_checkpoint_part *part)
{
    const sli_safetensors_header *of = NULL;
    for (size_t i = 0; i < reader->state.count && !of; i++)
        if (sli_checkpoint_has_tensors(reader, i, part->name))
            of = &reader->files[i].reader->header;
    size_t count = of ? of->metadata_count : 0;
    sl_metadata *kept = calloc(count + 1, sizeof *kept);
    if (!kept)
        return sl_error(SL_ERR_MEMORY, "no memory for a file's metadata");
    part->metadata = kept;
    for (size_t i = 0; i < count; i++)
        if (strcmp(of->metadata[i].key, SLI_CHECKPOINT_ID_KEY) != 0 &&
            strcmp(of->metadata[i].key, SLI_SEGMENTS_KEY) != 0)
            kept[part->metadata_count++] = of->metadata[i];
    return SL_OK;
}

static sl_status list_part(const sl_checkpoint_reader *reader, const sli_checkpoint_tensors *from,
                           listing *to)
{
    sl_checkpoint_part *part = &to->parts[to->contents.part_count++];
    sl_safetensors_item *items = calloc(from->count + 1, sizeof *items);
    *part = (sl_checkpoint_part){.name = from->part, .items = items, .count = from->count};
    if (!items)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", from->count);
    for (size_t i = 0; i < from->count; i++) {
        const sl_safetensors_info *info = &from->tensors[i].info;
        SL_TRY(sli_checkpoint_describe(info, &items[i]));
        to->largest = info->bytes > to->largest ? info->bytes : to->largest;
    }
    return list_metadata(reader, part);
}

/* All that belongs to no part. */
static sl_status list_files(const sl_checkpoint_reader *reader, listing *to)
{
    to->files = calloc(reader->state.count + 1, sizeof *to->files);
    if (!to->files)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of files");
    for (size_t i = 0; i < reader->state.count; i++) {
        char *data;
        sl_checkpoint_file *file = &to->files[to->contents.file_count];
        if (reader->state.files[i].part)
            continue;
        SL_TRY(sli_checkpoint_read_listed(reader, i, &data, &file->bytes));
        file->name = reader->state.files[i].name;
        file->data = data;
        to->contents.file_count++;
    }
    return SL_OK;
}

/* Cleared by clear_listing, also after an error. */
static sl_status list(const sl_checkpoint_reader *reader, bool model_alone, listing *to)
{
    *to = (listing){.contents = {.parts = to->parts}};
    for (size_t i = 0; i < reader->part_count; i++)
        if (!model_alone || strcmp(reader->parts[i].part, SLI_MODEL_PART) == 0)
            SL_TRY(list_part(reader, &reader->parts[i], to));
    SL_TRY(list_files(reader, to));
    to->contents.files = to->files;
    to->contents.state = model_alone ? NULL : sl_checkpoint_state(reader);
    return SL_OK;
}

/* ---- Writing ---------------------------------------------------------------------------- */

/* One checkpoint's tensors, or the means of several's. */
typedef struct origin {
    sl_checkpoint_reader *const *readers; /* [count] */
    size_t count;
    float *data;  /* of the tensor that was asked for last, of whatever type */
    double *sums; /* of its elements; NULL: there is one checkpoint */
} origin;

static sl_status read_tensor(const origin *from, size_t index, const char *part,
                             const sl_safetensors_item *item)
{
    return sli_checkpoint_read_elements(from->readers[index], part, item->name, 0,
                                        sl_shape_count(&item->shape), from->data);
}

static sl_status read_item(void *context, const char *part, const sl_safetensors_item *item,
                           const void **data)
{
    const origin *from = context;
    *data = from->data;
    if (!from->sums)
        return read_tensor(from, 0, part, item);
    int64_t elements = sl_shape_count(&item->shape);
    for (int64_t k = 0; k < elements; k++)
        from->sums[k] = 0;
    for (size_t i = 0; i < from->count; i++) {
        SL_TRY(read_tensor(from, i, part, item));
        for (int64_t k = 0; k < elements; k++)
            from->sums[k] += (double)from->data[k];
    }
    for (int64_t k = 0; k < elements; k++)
        from->data[k] = (float)(from->sums[k] / (double)from->count);
    return SL_OK;
}

/* Saves what is listed, of one checkpoint or as the mean of several. */
static sl_status write_listed(const listing *list, sl_checkpoint_reader *const *readers,
                              size_t count, const char *to)
{
    origin from = {.readers = readers, .count = count, .data = malloc(list->largest + 1)};
    from.sums = count > 1 ? malloc(2 * list->largest + 1) : NULL;
    sl_status status = SL_OK;
    if (from.data && (from.sums || count == 1))
        status = sli_checkpoint_save_from(to, &list->contents,
                                          &(sli_checkpoint_source){read_item, &from});
    else
        status =
            sl_error(SL_ERR_MEMORY, "no memory for a tensor of %" PRIu64 " bytes", list->largest);
    free(from.data);
    free(from.sums);
    return status;
}

/* All models must be f32, have the first one's names and shapes, and be whole. */
static sl_status check_models(const listing *first, sl_checkpoint_reader *const *readers,
                              size_t count)
{
    char quoted[SLI_QUOTE_BYTES];
    const sl_checkpoint_part *model = first->parts;
    if (first->contents.part_count == 0)
        return sl_error(SL_ERR_NOT_FOUND, "%s: the checkpoint has no part \"%s\"", readers[0]->path,
                        SLI_MODEL_PART);
    for (size_t i = 0; i < model->count; i++)
        if (model->items[i].dtype != SL_F32)
            return sl_error(SL_ERR_INVALID, "tensor %s is %s: only f32 can be averaged",
                            sli_safetensors_quote(model->items[i].name, quoted),
                            sl_dtype_name(model->items[i].dtype));
    for (size_t i = 0; i < count; i++)
        SL_TRY(sli_checkpoint_check_items(readers[i], SLI_MODEL_PART, model->items, model->count));
    for (size_t i = 0; i < count; i++)
        SL_TRY(sli_checkpoint_verify_part(readers[i], SLI_MODEL_PART));
    return SL_OK;
}

/* The files of many checkpoints would be more than may be open at once. */
static void close_descriptors(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < reader->state.count && i < SLI_SAFETENSORS_MAX_OPEN; i++)
        if (reader->files[i].reader)
            sli_safetensors_close_descriptor(reader->files[i].reader);
}

/* Saves all that the first checkpoint has, or the mean of the models of all [count]. */
static sl_status rewrite(const char *const *from, size_t count, bool is_mean, const char *to,
                         uint64_t shard_bytes)
{
    listing all = {.contents = {0}};
    SL_TRY(sli_checkpoint_check_path(to, true));
    sl_checkpoint_reader **readers = calloc(count, sizeof *readers);
    sl_status status = readers ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for a list of readers");
    for (size_t i = 0; i < count && status == SL_OK; i++) {
        status = sl_checkpoint_open(from[i], &readers[i]);
        if (status == SL_OK && is_mean)
            close_descriptors(readers[i]);
    }
    if (status == SL_OK && !is_mean)
        status = sl_checkpoint_verify(readers[0]);
    if (status == SL_OK)
        status = list(readers[0], is_mean, &all);
    if (status == SL_OK && is_mean)
        status = check_models(&all, readers, count);
    all.contents.shard_bytes = shard_bytes;
    if (status == SL_OK)
        status = write_listed(&all, readers, count, to);
    clear_listing(&all);
    for (size_t i = 0; readers && i < count; i++)
        sl_checkpoint_close(&readers[i]);
    free(readers);
    return status;
}

sl_status sl_checkpoint_convert(const char *from, const char *to, uint64_t shard_bytes)
{
    return rewrite(&from, 1, false, to, shard_bytes);
}

sl_status sl_checkpoint_average(const char *const *from, size_t count, const char *to,
                                uint64_t shard_bytes)
{
    if (count == 0)
        return sl_error(SL_ERR_INVALID, "sl_checkpoint_average: a mean needs a checkpoint");
    return rewrite(from, count, true, to, shard_bytes);
}
