/* Checkpoints made from checkpoints, in memory. */
#include "io/checkpoint_reader.h"
#include "io/checkpoint_slices.h"
#include "io/safetensors_reader.h"
#include "io/safetensors_text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- A part in memory ------------------------------------------------------------------- */

typedef struct held_part {
    sl_safetensors_item *items; /* [count], names are the reader's */
    size_t count;
    char *memory;
    sl_safetensors_note *notes; /* the reader's, but the checkpoint's id and slices */
    size_t note_count;
} held_part;

static void release(held_part *part)
{
    free(part->items);
    free(part->memory);
    free(part->notes);
    *part = (held_part){0};
}

static sl_status describe_item(const sl_safetensors_info *info, char *data,
                               sl_safetensors_item *out)
{
    char quoted[SLI_QUOTE_BYTES];
    if (!info->readable || info->dims > SL_MAX_DIMS)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "tensor %s: %s with %d dimensions is none of sluice's tensors",
                        sli_safetensors_quote(info->name, quoted), info->type_name, info->dims);
    *out = (sl_safetensors_item){info->name, info->dtype, {.dims = info->dims}, data};
    for (int i = 0; i < info->dims; i++)
        out->shape.size[i] = info->size[i];
    return SL_OK;
}

static sl_status hold_notes(const sl_checkpoint_reader *reader, const char *part, held_part *to)
{
    for (size_t i = 0; i < reader->state.count && !to->notes; i++)
        if (sli_checkpoint_is_shard(reader, i, part))
            SL_TRY(sli_safetensors_notes(reader->shards[i], &to->notes, &to->note_count));
    size_t kept = 0;
    for (size_t i = 0; i < to->note_count; i++)
        if (strcmp(to->notes[i].key, SLI_CHECKPOINT_ID_NOTE) != 0 &&
            strcmp(to->notes[i].key, SLI_SLICES_NOTE) != 0)
            to->notes[kept++] = to->notes[i];
    to->note_count = kept;
    return SL_OK;
}

/* Lists the part's tensors and takes memory for them. */
static sl_status prepare(const sl_checkpoint_reader *reader, const char *part, held_part *to)
{
    uint64_t bytes = 0;
    size_t count = sl_checkpoint_tensor_count(reader, part);
    for (size_t i = 0; i < count; i++)
        bytes += (sl_checkpoint_tensor_get(reader, part, i)->bytes + 7) / 8 * 8;
    to->items = calloc(count + 1, sizeof *to->items);
    to->memory = malloc(bytes + 1);
    if (!to->items || !to->memory)
        return sl_error(SL_ERR_MEMORY, "no memory for the %llu bytes of part %s",
                        (unsigned long long)bytes, part);
    char *at = to->memory;
    for (size_t i = 0; i < count; i++) {
        const sl_safetensors_info *info = sl_checkpoint_tensor_get(reader, part, i);
        SL_TRY(describe_item(info, at, &to->items[i]));
        to->count++;
        at += (info->bytes + 7) / 8 * 8;
    }
    return hold_notes(reader, part, to);
}

static sl_status hold(const sl_checkpoint_reader *reader, const char *part, held_part *to)
{
    *to = (held_part){0};
    sl_status status = prepare(reader, part, to);
    if (status == SL_OK)
        status = sl_checkpoint_read(reader, part, to->items, to->count);
    if (status != SL_OK)
        release(to);
    return status;
}

/* ---- A checkpoint in memory ------------------------------------------------------------- */

typedef struct held_checkpoint {
    const sl_checkpoint_reader *reader;
    sl_checkpoint_part *parts; /* [part_count], over `held` */
    held_part *held;
    size_t part_count;
    sl_checkpoint_file *files; /* [file_count], data of their own */
    size_t file_count;
} held_checkpoint;

static void release_checkpoint(held_checkpoint *of)
{
    for (size_t i = 0; i < of->part_count; i++)
        release(&of->held[i]);
    for (size_t i = 0; i < of->file_count; i++)
        free((void *)of->files[i].data);
    free(of->files);
    free(of->held);
    free(of->parts);
}

static sl_status hold_part(held_checkpoint *to, const char *name)
{
    for (size_t i = 0; i < to->part_count; i++)
        if (strcmp(to->parts[i].name, name) == 0)
            return SL_OK;
    held_part *held = &to->held[to->part_count];
    SL_TRY(hold(to->reader, name, held));
    to->parts[to->part_count++] =
        (sl_checkpoint_part){name, held->items, held->count, held->notes, held->note_count};
    return SL_OK;
}

static sl_status hold_file(held_checkpoint *to, const char *name)
{
    char *data;
    size_t bytes;
    SL_TRY(sl_checkpoint_read_file(to->reader, name, &data, &bytes));
    to->files[to->file_count++] = (sl_checkpoint_file){name, data, bytes};
    return SL_OK;
}

/* Its parts (only_model: that one alone) and other files. */
static sl_status hold_checkpoint(const sl_checkpoint_reader *reader, bool only_model,
                                 held_checkpoint *to)
{
    size_t count = sl_checkpoint_file_count(reader);
    *to = (held_checkpoint){.reader = reader,
                            .parts = calloc(count + 1, sizeof *to->parts),
                            .held = calloc(count + 1, sizeof *to->held),
                            .files = calloc(count + 1, sizeof *to->files)};
    if (!to->parts || !to->held || !to->files)
        return sl_error(SL_ERR_MEMORY, "no memory for a checkpoint's parts");
    for (size_t i = 0; i < count; i++) {
        const sl_checkpoint_file_info *file = sl_checkpoint_file_get(reader, i);
        if (!file->part)
            SL_TRY(hold_file(to, file->name));
        else if (!only_model || strcmp(file->part, "model") == 0)
            SL_TRY(hold_part(to, file->part));
    }
    return SL_OK;
}

static sl_status save(const held_checkpoint *held, const char *state, const char *to,
                      uint64_t shard_bytes)
{
    const sl_checkpoint_contents contents = {.parts = held->parts,
                                             .part_count = held->part_count,
                                             .files = held->files,
                                             .file_count = held->file_count,
                                             .state = state,
                                             .shard_bytes = shard_bytes};
    return sl_checkpoint_save(to, &contents);
}

static sl_status check_free(const char *path)
{
    struct stat found;
    if (lstat(path, &found) == 0)
        return sl_error(SL_ERR_INVALID, "%s: there is something of that name already", path);
    return SL_OK;
}

sl_status sl_checkpoint_convert(const char *from, const char *to, uint64_t shard_bytes)
{
    sl_checkpoint_reader *reader;
    held_checkpoint held;
    SL_TRY(check_free(to));
    SL_TRY(sl_checkpoint_open(from, &reader));
    sl_status status = hold_checkpoint(reader, false, &held);
    if (status == SL_OK)
        status = save(&held, sl_checkpoint_state(reader), to, shard_bytes);
    release_checkpoint(&held);
    sl_checkpoint_close(&reader);
    return status;
}

/* ---- The mean --------------------------------------------------------------------------- */

/* The running sums of a part's elements, item by item. */
typedef struct sums {
    double **of; /* [count] */
    size_t count;
} sums;

static void release_sums(sums *to)
{
    for (size_t i = 0; to->of && i < to->count; i++)
        free(to->of[i]);
    free(to->of);
}

static sl_status create_sums(const sl_checkpoint_part *part, sums *out)
{
    char quoted[SLI_QUOTE_BYTES];
    *out = (sums){calloc(part->count + 1, sizeof(double *)), part->count};
    if (!out->of)
        return sl_error(SL_ERR_MEMORY, "no memory for a mean");
    for (size_t i = 0; i < part->count; i++) {
        const sl_safetensors_item *item = &part->items[i];
        if (item->dtype != SL_F32)
            return sl_error(SL_ERR_INVALID, "tensor %s is %s: only f32 can be averaged",
                            sli_safetensors_quote(item->name, quoted), sl_dtype_name(item->dtype));
        out->of[i] = calloc((size_t)sl_shape_count(&item->shape) + 1, sizeof(double));
        if (!out->of[i])
            return sl_error(SL_ERR_MEMORY, "no memory for a mean");
    }
    return SL_OK;
}

static void add_to(sums *to, const sl_checkpoint_part *part)
{
    for (size_t i = 0; i < part->count; i++) {
        const float *values = part->items[i].data;
        int64_t count = sl_shape_count(&part->items[i].shape);
        for (int64_t k = 0; k < count; k++)
            to->of[i][k] += (double)values[k];
    }
}

static void divide(const sums *from, size_t by, const sl_checkpoint_part *part)
{
    for (size_t i = 0; i < part->count; i++) {
        float *values = part->items[i].data;
        int64_t count = sl_shape_count(&part->items[i].shape);
        for (int64_t k = 0; k < count; k++)
            values[k] = (float)(from->of[i][k] / (double)by);
    }
}

/* Reads the model of `path` over the first one's, whose names and shapes it must have. */
static sl_status add_model(const char *path, const sl_checkpoint_part *over, sums *to)
{
    sl_checkpoint_reader *reader;
    SL_TRY(sl_checkpoint_open(path, &reader));
    sl_status status = sl_checkpoint_read(reader, "model", over->items, over->count);
    sl_checkpoint_close(&reader);
    if (status == SL_OK)
        add_to(to, over);
    return status;
}

static sl_status average(const held_checkpoint *held, const char *const *from, size_t count,
                         const char *to, uint64_t shard_bytes)
{
    sums total = {0};
    if (held->part_count == 0)
        return sl_error(SL_ERR_INVALID, "%s: the checkpoint has no part \"model\"", from[0]);
    const sl_checkpoint_part *model = &held->parts[0];
    sl_status status = create_sums(model, &total);
    if (status == SL_OK)
        add_to(&total, model);
    for (size_t i = 1; i < count && status == SL_OK; i++)
        status = add_model(from[i], model, &total);
    if (status == SL_OK) {
        divide(&total, count, model);
        status = save(held, NULL, to, shard_bytes);
    }
    release_sums(&total);
    return status;
}

sl_status sl_checkpoint_average(const char *const *from, size_t count, const char *to,
                                uint64_t shard_bytes)
{
    sl_checkpoint_reader *reader;
    held_checkpoint held;
    if (count == 0)
        return sl_error(SL_ERR_INVALID, "sl_checkpoint_average: a mean needs a checkpoint");
    SL_TRY(check_free(to));
    SL_TRY(sl_checkpoint_open(from[0], &reader));
    sl_status status = hold_checkpoint(reader, true, &held);
    if (status == SL_OK)
        status = average(&held, from, count, to, shard_bytes);
    release_checkpoint(&held);
    sl_checkpoint_close(&reader);
    return status;
}
