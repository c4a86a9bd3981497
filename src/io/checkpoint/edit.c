/* Checkpoints made from checkpoints. What goes in is compared with its checksums first; then each
 * tensor is read when its turn to be written comes, so that memory need hold but the largest. */
#include "core/dtype.h"
#include "core/error.h"
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

static sl_status add_part(edit *job, const sli_checkpoint_tensors *source)
{
    sl_checkpoint_part *part = &job->parts[job->contents.part_count++];
    sl_safetensors_item *items = calloc(source->count + 1, sizeof *items);
    *part = (sl_checkpoint_part){.name = source->part, .items = items, .count = source->count};
    if (!items)
        return sli_no_memory(NULL, "%zu tensors", source->count);
    for (size_t i = 0; i < source->count; i++) {
        sli_checkpoint_entry *tensor = &source->tensors[source->order[i]];
        SL_TRY(sli_checkpoint_describe(&tensor->info, &items[i]));
        items[i].data = tensor;
        job->largest = tensor->info.bytes > job->largest ? tensor->info.bytes : job->largest;
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
    const sli_safetensors_header *header = &reader->files[first].reader->header;
    sl_metadata *kept = calloc(header->metadata_count + 1, sizeof *kept);
    part->metadata = kept;
    if (!kept)
        return sli_no_memory(NULL, "a file's metadata");
    for (size_t i = 0; i < header->metadata_count; i++)
        if (!is_written_anew(header->metadata[i].key))
            kept[part->metadata_count++] = header->metadata[i];
    return SL_OK;
}

/* All that belongs to no part. */
static sl_status add_files(const sl_checkpoint_reader *reader, edit *job)
{
    job->contents.files = job->files = calloc(reader->state.count + 1, sizeof *job->files);
    if (!job->files)
        return sli_no_memory(NULL, "%zu files", reader->state.count);
    for (size_t i = 0; i < reader->state.count; i++) {
        char *data;
        sl_checkpoint_file *file = &job->files[job->contents.file_count];
        file->name = reader->state.files[i].name;
        if (reader->state.files[i].part)
            continue;
        SL_TRY(sli_checkpoint_read_file(reader, file->name, &data, &file->bytes));
        file->data = data;
        job->contents.file_count++;
    }
    return SL_OK;
}

static sl_status list_contents(edit *job)
{
    const sl_checkpoint_reader *reader = job->readers[0];
    job->contents.parts = job->parts;
    for (size_t i = 0; i < reader->part_count; i++)
        if (!job->is_mean || strcmp(reader->parts[i].part, SLI_MODEL_PART) == 0) {
            SL_TRY(add_part(job, &reader->parts[i]));
            SL_TRY(add_metadata(reader, &job->parts[job->contents.part_count - 1]));
        }
    job->contents.state = job->is_mean ? NULL : sl_checkpoint_state(reader);
    SL_TRY(add_files(reader, job));
    job->data = malloc(job->largest + 1);
    job->sums = job->is_mean ? malloc(2 * job->largest + 1) : NULL;
    return job->data && (job->sums || !job->is_mean)
               ? SL_OK
               : sli_no_memory(NULL, "a tensor of %" PRIu64 " bytes", job->largest);
}

/* All models must be f32, have the first one's names and shapes, and be whole. */
static sl_status check_models(const edit *job)
{
    char quoted[SLI_QUOTE_BYTES];
    const sl_checkpoint_part *model = job->parts;
    const sli_checkpoint_tensors *first;
    SL_TRY(sli_checkpoint_need_part(job->readers[0], SLI_MODEL_PART, &first));
    for (size_t i = 0; i < model->count; i++)
        if (model->items[i].dtype != SL_F32)
            return sl_error(SL_ERR_INVALID, "tensor %s is %s: only f32 can be averaged",
                            sli_safetensors_quote(model->items[i].name, quoted),
                            sli_dtype_name(model->items[i].dtype));
    for (size_t i = 0; i < job->count; i++)
        SL_TRY(sli_checkpoint_check_items(job->readers[i], SLI_MODEL_PART, model->items,
                                          model->count));
    for (size_t i = 0; i < job->count; i++)
        SL_TRY(sli_checkpoint_verify_part(job->readers[i], SLI_MODEL_PART));
    return SL_OK;
}

/* ---- Saving ----------------------------------------------------------------------------- */

/* Reads a tensor, or the mean of those of its name. */
static sl_status read_item(void *context, const sl_safetensors_item *item, const void **data)
{
    const edit *job = context;
    int64_t elements = sl_shape_count(&item->shape);
    *data = job->data;
    if (!job->is_mean)
        return sli_checkpoint_read_elements(job->readers[0], item->data, 0, elements, job->data);
    for (int64_t k = 0; k < elements; k++)
        job->sums[k] = 0;
    for (size_t i = 0; i < job->count; i++) {
        const sli_checkpoint_entry *tensor =
            sli_checkpoint_find_tensor(job->readers[i], SLI_MODEL_PART, item->name);
        SL_TRY(sli_checkpoint_read_elements(job->readers[i], tensor, 0, elements, job->data));
        for (int64_t k = 0; k < elements; k++)
            job->sums[k] += (double)job->data[k];
    }
    for (int64_t k = 0; k < elements; k++)
        job->data[k] = (float)(job->sums[k] / (double)job->count);
    return SL_OK;
}

static sl_status open_and_save(edit *job, const char *const *paths, const char *target)
{
    SL_TRY(sli_checkpoint_check_path(target, false, true));
    job->readers = calloc(job->count, sizeof(sl_checkpoint_reader *));
    if (!job->readers)
        return sli_no_memory(NULL, "%zu checkpoints", job->count);
    for (size_t i = 0; i < job->count; i++)
        SL_TRY(sl_checkpoint_open(paths[i], &job->readers[i]));
    if (!job->is_mean)
        SL_TRY(sl_checkpoint_verify(job->readers[0]));
    SL_TRY(list_contents(job));
    if (job->is_mean)
        SL_TRY(check_models(job));
    const sli_item_source source = {read_item, job};
    return sli_checkpoint_write(target, &job->contents,
                                &(sli_checkpoint_writing){.source = &source,
                                                          .is_model =
                                                              !sl_checkpoint_state(job->readers[0]),
                                                          .is_new = true});
}

static sl_status save_edited(edit *job, const char *const *paths, const char *target)
{
    sl_status status = open_and_save(job, paths, target);
    for (size_t i = 0; i < job->contents.part_count; i++) {
        free((void *)job->parts[i].items);
        free((void *)job->parts[i].metadata);
    }
    for (size_t i = 0; i < job->contents.file_count; i++)
        free((void *)job->files[i].data);
    for (size_t i = 0; job->readers && i < job->count; i++)
        sl_checkpoint_close(&job->readers[i]);
    free(job->readers);
    free(job->files);
    free(job->data);
    free(job->sums);
    return status;
}

sl_status sl_checkpoint_convert(const char *from, const char *to, uint64_t shard_bytes)
{
    edit job = {.count = 1, .contents = {.shard_bytes = shard_bytes}};
    return save_edited(&job, &from, to);
}

sl_status sl_checkpoint_average(const char *const *from, size_t count, const char *to,
                                uint64_t shard_bytes)
{
    edit job = {.count = count, .is_mean = true, .contents = {.shard_bytes = shard_bytes}};
    if (count == 0)
        return sl_error(SL_ERR_INVALID, "sl_checkpoint_average: a mean needs a checkpoint");
    return save_edited(&job, from, to);
}
