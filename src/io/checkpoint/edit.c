/* Checkpoints made from checkpoints. What goes in is compared with its checksums first; then each
 * tensor is read when its turn to be written comes, so that memory need hold but the largest. */
#include "core/dtype.h"
#include "io/checkpoint/format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct edit {
    sl_checkpoint_reader **readers; /* [count] */
    size_t count;
    bool is_mean;                    /* of their models; else all that the first one has is saved */
    sl_checkpoint_contents contents; /* of the below */
    sl_checkpoint_part parts[SL_CHECKPOINT_MOST_PARTS]; /* each item's data are the first reader's
                                                           sli_checkpoint_entry */
    sl_checkpoint_file *files;
    uint64_t largest; /* bytes of the largest tensor */
    float *data;      /* of the tensor that was asked for last, of whatever type */
    double *sums;     /* of its elements */
} edit;

/* ---- What is saved ---------------------------------------------------------------------- */

static sl_status add_part(edit *to, const sli_checkpoint_tensors *from)
{
    sl_checkpoint_part *part = &to->parts[to->contents.part_count++];
    sl_safetensors_item *items = calloc(from->count + 1, sizeof *items);
    *part = (sl_checkpoint_part){.name = from->part, .items = items, .count = from->count};
    if (!items)
        return sl_error(SL_ERR_MEMORY, "no memory for %zu tensors", from->count);
    for (size_t i = 0; i < from->count; i++) {
        sli_checkpoint_entry *tensor = &from->tensors[from->order[i]];
        SL_TRY(sli_checkpoint_describe(&tensor->info, &items[i]));
        items[i].data = tensor;
        to->largest = tensor->info.bytes > to->largest ? tensor->info.bytes : to->largest;
    }
    return SL_OK;
}

/* Metadata that the writer adds, or that say how the file was cut. */
static bool is_written_anew(const char *key)
{
    return strcmp(key, SLI_CHECKPOINT_ID_KEY) == 0 || strcmp(key, SLI_MODEL_VERSION_KEY) == 0 ||
           strcmp(key, SLI_SEGMENTS_KEY) == 0 || strcmp(key, "format") == 0;
}

/* The part's other metadata, as its first file says. */
static sl_status add_metadata(const sl_checkpoint_reader *reader, sl_checkpoint_part *part)
{
    size_t first = 0;
    while (!sli_checkpoint_has_tensors(reader, first, part->name))
        first++;
    const sli_safetensors_header *of = &reader->files[first].reader->header;
    sl_metadata *kept = calloc(of->metadata_count + 1, sizeof *kept);
    part->metadata = kept;
    if (!kept)
        return sl_error(SL_ERR_MEMORY, "no memory for a file's metadata");
    for (size_t i = 0; i < of->metadata_count; i++)
        if (!is_written_anew(of->metadata[i].key))
            kept[part->metadata_count++] = of->metadata[i];
    return SL_OK;
}

/* All that belongs to no part. */
static sl_status add_files(const sl_checkpoint_reader *reader, edit *to)
{
    to->contents.files = to->files = calloc(reader->state.count + 1, sizeof *to->files);
    if (!to->files)
        return sl_error(SL_ERR_MEMORY, "no memory for %zu files", reader->state.count);
    for (size_t i = 0; i < reader->state.count; i++) {
        char *data;
        sl_checkpoint_file *file = &to->files[to->contents.file_count];
        file->name = reader->state.files[i].name;
        if (reader->state.files[i].part)
            continue;
        SL_TRY(sli_checkpoint_read_file(reader, file->name, &data, &file->bytes));
        file->data = data;
        to->contents.file_count++;
    }
    return SL_OK;
}

static sl_status list_contents(edit *to)
{
    const sl_checkpoint_reader *reader = to->readers[0];
    to->contents.parts = to->parts;
    for (size_t i = 0; i < reader->part_count; i++)
        if (!to->is_mean || strcmp(reader->parts[i].part, SLI_MODEL_PART) == 0) {
            SL_TRY(add_part(to, &reader->parts[i]));
            SL_TRY(add_metadata(reader, &to->parts[to->contents.part_count - 1]));
        }
    to->contents.state = to->is_mean ? NULL : sl_checkpoint_state(reader);
    SL_TRY(add_files(reader, to));
    to->data = malloc(to->largest + 1);
    to->sums = to->is_mean ? malloc(2 * to->largest + 1) : NULL;
    return to->data && (to->sums || !to->is_mean)
               ? SL_OK
               : sl_error(SL_ERR_MEMORY, "no memory for a tensor of %" PRIu64 " bytes",
                          to->largest);
}

/* All models must be f32, have the first one's names and shapes, and be whole. */
static sl_status check_models(const edit *of)
{
    char quoted[SLI_QUOTE_BYTES];
    const sl_checkpoint_part *model = of->parts;
    const sli_checkpoint_tensors *first;
    SL_TRY(sli_checkpoint_need_part(of->readers[0], SLI_MODEL_PART, &first));
    for (size_t i = 0; i < model->count; i++)
        if (model->items[i].dtype != SL_F32)
            return sl_error(SL_ERR_INVALID, "tensor %s is %s: only f32 can be averaged",
                            sli_safetensors_quote(model->items[i].name, quoted),
                            sli_dtype_name(model->items[i].dtype));
    for (size_t i = 0; i < of->count; i++)
        SL_TRY(
            sli_checkpoint_check_items(of->readers[i], SLI_MODEL_PART, model->items, model->count));
    for (size_t i = 0; i < of->count; i++)
        SL_TRY(sli_checkpoint_verify_part(of->readers[i], SLI_MODEL_PART));
    return SL_OK;
}

/* ---- Saving ----------------------------------------------------------------------------- */

/* Reads a tensor, or the mean of those of its name. */
static sl_status read_item(void *context, const sl_safetensors_item *item, const void **data)
{
    const edit *of = context;
    int64_t elements = sl_shape_count(&item->shape);
    *data = of->data;
    if (!of->is_mean)
        return sli_checkpoint_read_elements(of->readers[0], item->data, 0, elements, of->data);
    for (int64_t k = 0; k < elements; k++)
        of->sums[k] = 0;
    for (size_t i = 0; i < of->count; i++) {
        const sli_checkpoint_entry *tensor =
            sli_checkpoint_find_tensor(of->readers[i], SLI_MODEL_PART, item->name);
        SL_TRY(sli_checkpoint_read_elements(of->readers[i], tensor, 0, elements, of->data));
        for (int64_t k = 0; k < elements; k++)
            of->sums[k] += (double)of->data[k];
    }
    for (int64_t k = 0; k < elements; k++)
        of->data[k] = (float)(of->sums[k] / (double)of->count);
    return SL_OK;
}

/* The files of many checkpoints would be more than may be open at once. */
static void close_descriptors(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < reader->state.count && i < SLI_SAFETENSORS_MAX_OPEN; i++)
        if (reader->files[i].reader)
            sli_safetensors_close_descriptor(reader->files[i].reader);
}

static sl_status open_and_save(edit *of, const char *const *from, const char *to)
{
    SL_TRY(sli_checkpoint_check_path(to, false, true));
    of->readers = calloc(of->count, sizeof(sl_checkpoint_reader *));
    if (!of->readers)
        return sl_error(SL_ERR_MEMORY, "no memory for %zu checkpoints", of->count);
    for (size_t i = 0; i < of->count; i++) {
        SL_TRY(sl_checkpoint_open(from[i], &of->readers[i]));
        if (of->is_mean)
            close_descriptors(of->readers[i]);
    }
    if (!of->is_mean)
        SL_TRY(sl_checkpoint_verify(of->readers[0]));
    SL_TRY(list_contents(of));
    if (of->is_mean)
        SL_TRY(check_models(of));
    const sli_item_source source = {read_item, of};
    return sli_checkpoint_write(to, &of->contents,
                                &(sli_checkpoint_writing){.source = &source,
                                                          .is_model =
                                                              !sl_checkpoint_state(of->readers[0]),
                                                          .is_new = true});
}

static sl_status save_edited(edit *of, const char *const *from, const char *to)
{
    sl_status status = open_and_save(of, from, to);
    for (size_t i = 0; i < of->contents.part_count; i++) {
        free((void *)of->parts[i].items);
        free((void *)of->parts[i].metadata);
    }
    for (size_t i = 0; i < of->contents.file_count; i++)
        free((void *)of->files[i].data);
    for (size_t i = 0; of->readers && i < of->count; i++)
        sl_checkpoint_close(&of->readers[i]);
    free(of->readers);
    free(of->files);
    free(of->data);
    free(of->sums);
    return status;
}

sl_status sl_checkpoint_convert(const char *from, const char *to, uint64_t shard_bytes)
{
    edit of = {.count = 1, .contents = {.shard_bytes = shard_bytes}};
    return save_edited(&of, &from, to);
}

sl_status sl_checkpoint_average(const char *const *from, size_t count, const char *to,
                                uint64_t shard_bytes)
{
    edit of = {.count = count, .is_mean = true, .contents = {.shard_bytes = shard_bytes}};
    if (count == 0)
        return sl_error(SL_ERR_INVALID, "sl_checkpoint_average: a mean needs a checkpoint");
    return save_edited(&of, from, to);
}
