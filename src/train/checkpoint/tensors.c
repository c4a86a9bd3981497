/* A run's tensors by name, whatever layout and shards it has, and copies of them. */
#define _GNU_SOURCE /* asprintf */

#include "train/checkpoint/checkpoints.h"

#include "core/usable_memory.h"
#include "optim/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lists ------------------------------------------------------------------------------ */

static sl_status no_memory(void)
{
    return sl_error(SL_ERR_MEMORY, "no memory for the list of a run's tensors");
}

/* Adds the elements `range` of a parameter, which `flat` has, as "NAME" or "NAME.SUFFIX". */
static sl_status add_tensor(sli_tensors *to, const sl_parameter *parameter, const char *suffix,
                            int stage, const sli_shard_range *range, const sl_tensor *flat)
{
    char *name;
    const sl_shape row = sl_shape_1d(range->count);
    if (asprintf(&name, "%s%s%s", sl_parameter_name(parameter), suffix ? "." : "",
                 suffix ? suffix : "") < 0)
        return no_memory();
    sl_safetensors_item *item = &to->items[to->count];
    sli_tensor_entry *entry = &to->entries[to->count++];
    *item = (sl_safetensors_item){name, SL_F32, *sl_parameter_shape(parameter), NULL};
    *entry = (sli_tensor_entry){.first = range->first, .count = range->count, .stage = stage};
    entry->is_buffer = sl_parameter_get_kind(parameter) == SL_PARAMETER_BUFFER;
    if (range->count == 0)
        return SL_OK;
    SL_TRY(sl_tensor_view(flat, range->offset, &row, &entry->tensor));
    item->data = sl_tensor_data(entry->tensor);
    return SL_OK;
}

/* What is listed: the optimizers' state, of which they have shard `rank` of `ranks`, the best
 * parameters, or else the model. */
typedef struct listing {
    sl_optimizer *const *optimizers; /* [stages] */
    int rank, ranks;
    const sli_best *best;
} listing;

static sl_status add_parameter(const listing *in, const sl_parameter_set *set,
                               const sl_parameter *parameter, int stage, sli_tensors *to)
{
    sli_shard_range range = {.count = sl_shape_count(sl_parameter_shape(parameter))};
    if (!in->best && !in->optimizers)
        return add_tensor(to, parameter, NULL, stage, &range, sl_parameter_value(parameter));
    if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
        return SL_OK;
    SL_TRY(sli_optimizer_range(set, parameter, in->rank, in->ranks, &range));
    if (in->best)
        return add_tensor(to, parameter, NULL, stage, &range,
                          sli_best_bucket(in->best, stage, range.bucket));
    const sl_optimizer *optimizer = in->optimizers[stage];
    for (int a = 0; a < sli_optimizer_state_arrays(optimizer); a++)
        SL_TRY(add_tensor(to, parameter, sli_optimizer_state_name(optimizer, a), stage, &range,
                          sli_optimizer_state(optimizer, range.bucket, a)));
    return SL_OK;
}

/* Of the model every parameter and buffer is listed, else the trained ones alone. */
static sl_status list_tensors(const sl_pipe *pipe, const listing *in, sli_tensors *out)
{
    enum { MOST_ARRAYS = 2 }; /* of a parameter */
    size_t most = 1;
    for (int s = 0; s < sl_pipe_stages(pipe); s++)
        most += MOST_ARRAYS * (size_t)sl_parameter_set_count(sl_pipe_parameters(pipe, s));
    sli_tensors_empty(out);
    out->items = calloc(most, sizeof *out->items);
    out->entries = calloc(most, sizeof *out->entries);
    if (!out->items || !out->entries)
        return no_memory();
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            SL_TRY(add_parameter(in, set, sl_parameter_set_get(set, i), s, out));
    }
    return SL_OK;
}

sl_status sli_tensors_of_model(const sl_pipe *pipe, sli_tensors *out)
{
    return list_tensors(pipe, &(listing){0}, out);
}

sl_status sli_tensors_of_best(const sl_pipe *pipe, const sli_best *best, sli_tensors *out)
{
    return list_tensors(pipe, &(listing){.best = best, .ranks = 1}, out);
}

sl_status sli_tensors_of_optimizer(const sl_pipe *pipe, sl_optimizer *const *optimizers, int rank,
                                   int ranks, sli_tensors *out)
{
    return list_tensors(pipe, &(listing){optimizers, rank, ranks, NULL}, out);
}

void sli_tensors_empty(sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        sl_tensor_destroy(&tensors->entries[i].tensor);
        free((char *)tensors->items[i].name);
    }
    free(tensors->items);
    free(tensors->entries);
    free(tensors->shapes);
    *tensors = (sli_tensors){.memory = tensors->memory, .memory_bytes = tensors->memory_bytes};
}

void sli_tensors_clear(sli_tensors *tensors)
{
    sli_tensors_empty(tensors);
    free(tensors->memory);
    *tensors = (sli_tensors){0};
}

/* ---- Copies ----------------------------------------------------------------------------- */

enum { ALIGNMENT = 64 };

static size_t aligned_bytes(const sli_tensor_entry *entry)
{
    size_t bytes = (size_t)entry->count * sizeof(float);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static sl_status reserve_memory(sli_tensors *to)
{
    size_t bytes = 0;
    for (size_t i = 0; i < to->count; i++)
        bytes += aligned_bytes(&to->entries[i]);
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

/* Leaves what has elements here: whole tensors, and segments of others. */
static sl_status cut_tensors(sli_tensors *tensors, json_t *shapes)
{
    size_t kept = 0;
    sl_status status = SL_OK;
    for (size_t i = 0; i < tensors->count; i++) {
        sl_safetensors_item *item = &tensors->items[i];
        sli_tensor_entry *entry = &tensors->entries[i];
        char *whole = (char *)item->name;
        if (status == SL_OK && entry->count > 0 && entry->count < sl_shape_count(&item->shape))
            status = sli_checkpoint_make_segment(item, entry->first, entry->count, shapes);
        if (item->name != whole || entry->count == 0)
            free(whole);
        if (entry->count == 0)
            continue;
        tensors->items[kept] = *item;
        tensors->entries[kept++] = *entry;
    }
    tensors->count = kept;
    if (status == SL_OK && json_object_size(shapes) > 0)
        tensors->shapes = json_dumps(shapes, JSON_COMPACT);
    return status == SL_OK && json_object_size(shapes) > 0 && !tensors->shapes ? no_memory()
                                                                               : status;
}

static sl_status copy_stage(int stage, void *arg)
{
    const sli_tensors *tensors = arg;
    char *data = tensors->memory;
    for (size_t i = 0; i < tensors->count; i++) {
        sli_tensor_entry *entry = &tensors->entries[i];
        if (entry->stage == stage) {
            SL_TRY(sl_tensor_read(entry->tensor, data));
            sl_tensor_destroy(&entry->tensor);
            tensors->items[i].data = data;
        }
        data += aligned_bytes(entry);
    }
    return SL_OK;
}

sl_status sli_tensors_copy(sl_pipe *pipe, sli_tensors *tensors)
{
    SL_TRY(reserve_memory(tensors));
    json_t *shapes = json_object();
    sl_status status = shapes ? cut_tensors(tensors, shapes) : no_memory();
    json_decref(shapes);
    return status == SL_OK ? sl_pipe_run_on_stages(pipe, copy_stage, tensors) : status;
}
