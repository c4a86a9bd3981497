#define _GNU_SOURCE /* asprintf */

#include "train/checkpoint/checkpoints.h"

#include "core/usable_memory.h"
#include "io/checkpoint/format.h"
#include "optim/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lists ------------------------------------------------------------------------------ */

static sl_status no_memory(void)
{
    return sl_error(SL_ERR_MEMORY, "no memory for the list of a run's tensors");
}

/* Adds an entry without elements: "NAME" or "NAME.SUFFIX". */
static sl_status add_entry(sli_tensors *to, const sl_parameter *parameter, const char *suffix,
                           int stage, sli_tensor_entry **out)
{
    *out = &to->entries[to->count++];
    (*out)->stage = stage;
    (*out)->shape = *sl_parameter_shape(parameter);
    if (asprintf(&(*out)->name, "%s%s%s", sl_parameter_name(parameter), suffix ? "." : "",
                 suffix ? suffix : "") >= 0)
        return SL_OK;
    (*out)->name = NULL;
    return no_memory();
}

/* The range of `flat`, which lies as the bucket or its shard does. */
static sl_status set_range(sli_tensor_entry *entry, const sli_shard_range *range,
                           const sl_tensor *flat)
{
    const sl_shape row = sl_shape_1d(range->count);
    entry->first = range->first;
    entry->count = range->count;
    bool whole = range->count == sl_shape_count(&entry->shape);
    if (range->count == 0)
        return SL_OK;
    return sl_tensor_view(flat, range->offset, whole ? &entry->shape : &row, &entry->tensor);
}

/* What a list is made of: the optimizers' state, the best parameters, or else the model. */
typedef struct listing {
    sli_tensors *out;
    const sli_best *best;
    sl_optimizer *const *optimizers; /* [stages], with shard `rank` of `ranks` */
    int rank, ranks;
} listing;

static sl_status add_parameter(const listing *in, const sl_parameter_set *set,
                               const sl_parameter *parameter, int stage)
{
    sli_shard_range range;
    sli_tensor_entry *entry;
    SL_TRY(sli_optimizer_range(set, parameter, in->rank, in->ranks, &range));
    if (in->best) {
        SL_TRY(add_entry(in->out, parameter, NULL, stage, &entry));
        return set_range(entry, &range, sli_best_bucket(in->best, stage, range.bucket));
    }
    const sl_optimizer *optimizer = in->optimizers[stage];
    for (int a = 0; a < sli_optimizer_state_arrays(optimizer); a++) {
        const char *suffix = sli_optimizer_state_name(optimizer, a);
        SL_TRY(add_entry(in->out, parameter, suffix, stage, &entry));
        SL_TRY(set_range(entry, &range, sli_optimizer_state(optimizer, range.bucket, a)));
    }
    return SL_OK;
}

static sl_status add_value(const listing *in, const sl_parameter *parameter, int stage)
{
    sli_tensor_entry *entry;
    SL_TRY(add_entry(in->out, parameter, NULL, stage, &entry));
    SL_TRY(sl_tensor_alias(sl_parameter_value(parameter), &entry->tensor));
    entry->count = sl_tensor_count(entry->tensor);
    entry->is_buffer = sl_parameter_get_kind(parameter) == SL_PARAMETER_BUFFER;
    return SL_OK;
}

/* Of the model every parameter and buffer is listed, else the trained ones alone. */
static sl_status list_tensors(const sl_pipe *pipe, const listing *in)
{
    enum { MOST_ENTRIES = 2 }; /* of a parameter */
    size_t count = 0;
    for (int s = 0; s < sl_pipe_stages(pipe); s++)
        count += (size_t)sl_parameter_set_count(sl_pipe_parameters(pipe, s));
    *in->out = (sli_tensors){calloc(MOST_ENTRIES * count + 1, sizeof *in->out->entries), 0};
    if (!in->out->entries)
        return no_memory();
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            const sl_parameter *parameter = sl_parameter_set_get(set, i);
            if (!in->best && !in->optimizers)
                SL_TRY(add_value(in, parameter, s));
            else if (sl_parameter_get_kind(parameter) == SL_PARAMETER_TRAINED)
                SL_TRY(add_parameter(in, set, parameter, s));
        }
    }
    return SL_OK;
}

sl_status sli_tensors_of_model(const sl_pipe *pipe, sli_tensors *out)
{
    return list_tensors(pipe, &(listing){.out = out});
}

sl_status sli_tensors_of_best(const sl_pipe *pipe, const sli_best *best, sli_tensors *out)
{
    return list_tensors(pipe, &(listing){.out = out, .best = best, .ranks = 1});
}

sl_status sli_tensors_of_optimizer(const sl_pipe *pipe, sl_optimizer *const *optimizers, int rank,
                                   int ranks, sli_tensors *out)
{
    return list_tensors(
        pipe, &(listing){.out = out, .optimizers = optimizers, .rank = rank, .ranks = ranks});
}

void sli_tensors_clear(sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        sl_tensor_destroy(&tensors->entries[i].tensor);
        free(tensors->entries[i].name);
    }
    free(tensors->entries);
    *tensors = (sli_tensors){0};
}

static bool is_whole(const sli_tensor_entry *entry)
{
    return entry->count == sl_shape_count(&entry->shape);
}

sl_status sli_tensors_items(const sli_tensors *tensors, sl_safetensors_item **out)
{
    *out = calloc(tensors->count + 1, sizeof **out);
    if (!*out)
        return no_memory();
    for (size_t i = 0; i < tensors->count; i++) {
        const sli_tensor_entry *entry = &tensors->entries[i];
        (*out)[i] = (sl_safetensors_item){entry->name, SL_F32, entry->shape,
                                          is_whole(entry) ? sl_tensor_data(entry->tensor) : NULL};
    }
    return SL_OK;
}

/* ---- Copies ----------------------------------------------------------------------------- */

enum { ALIGNMENT = 64 };

static size_t copy_bytes(const sli_tensor_entry *entry)
{
    size_t bytes = (size_t)entry->count * sizeof(float);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void sli_tensor_copy_empty(sli_tensor_copy *copy)
{
    for (size_t i = 0; i < copy->count; i++)
        free((char *)copy->items[i].name);
    free(copy->items);
    free(copy->shapes);
    copy->items = NULL;
    copy->shapes = NULL;
    copy->count = 0;
}

void sli_tensor_copy_clear(sli_tensor_copy *copy)
{
    sli_tensor_copy_empty(copy);
    free(copy->memory);
    *copy = (sli_tensor_copy){0};
}

static sl_status reserve(sli_tensor_copy *to, size_t bytes)
{
    if (to->memory_bytes >= bytes)
        return SL_OK;
    free(to->memory);
    to->memory = NULL;
    if (sli_resident_memory() + bytes <= sli_usable_memory(""))
        to->memory = aligned_alloc(ALIGNMENT, bytes);
    to->memory_bytes = to->memory ? bytes : 0;
    return to->memory ? SL_OK
                      : sl_error(SL_ERR_MEMORY,
                                 "no memory for a copy of the run's state, %zu bytes", bytes);
}

static sl_status add_item(sli_tensor_copy *to, const sli_tensor_entry *entry, char *data)
{
    sl_safetensors_item *item = &to->items[to->count++];
    *item = (sl_safetensors_item){NULL, SL_F32, entry->shape, data};
    if (is_whole(entry))
        return (item->name = strdup(entry->name)) ? SL_OK : no_memory();
    item->shape = sl_shape_1d(entry->count);
    return sli_segment_name(entry->name, entry->first, (char **)&item->name);
}

/* Names and shapes, and where the data will be. */
static sl_status describe(const sli_tensors *from, sli_tensor_copy *to, sli_cut_tensor *cut)
{
    size_t bytes = 0, cut_count = 0;
    for (size_t i = 0; i < from->count; i++)
        bytes += copy_bytes(&from->entries[i]);
    SL_TRY(reserve(to, bytes));
    char *data = to->memory;
    for (size_t i = 0; i < from->count; i++) {
        const sli_tensor_entry *entry = &from->entries[i];
        if (entry->count == 0)
            continue;
        SL_TRY(add_item(to, entry, data));
        data += copy_bytes(entry);
        if (!is_whole(entry))
            cut[cut_count++] = (sli_cut_tensor){entry->name, entry->shape};
    }
    return cut_count ? sli_cut_tensors_print(cut, cut_count, &to->shapes) : SL_OK;
}

typedef struct copying {
    const sli_tensors *from;
    const sli_tensor_copy *to;
} copying;

static sl_status copy_stage(int stage, void *arg)
{
    const copying *job = arg;
    const sl_safetensors_item *item = job->to->items;
    for (size_t i = 0; i < job->from->count; i++) {
        const sli_tensor_entry *entry = &job->from->entries[i];
        if (entry->count == 0)
            continue;
        if (entry->stage == stage)
            SL_TRY(sl_tensor_read(entry->tensor, item->data));
        item++;
    }
    return SL_OK;
}

sl_status sli_tensor_copy_make(sl_pipe *pipe, const sli_tensors *from, sli_tensor_copy *to)
{
    copying job = {from, to};
    sli_tensor_copy_empty(to);
    sli_cut_tensor *cut = calloc(from->count + 1, sizeof *cut);
    to->items = calloc(from->count + 1, sizeof *to->items);
    sl_status status = cut && to->items ? describe(from, to, cut) : no_memory();
    free(cut);
    return status == SL_OK ? sl_pipe_run(pipe, copy_stage, &job) : status;
}
