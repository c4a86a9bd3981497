/* A pipe's tensors and its optimizers' state by name, whatever cut and shards it has: listed,
 * saved, read, and copied. */
#define _GNU_SOURCE /* asprintf */

#include "core/error.h"
#include "core/memory.h"
#include "core/usable_memory.h"
#include "optim/optimizer.h"
#include "parallel/pipe/pipe.h"
#include "parallel/pipe/pipe_optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL     "model"
#define OPTIMIZER "optimizer"

/* ---- Lists ------------------------------------------------------------------------------ */

static sl_status no_memory(void)
{
    return sli_no_memory(NULL, "a list of a pipe's tensors");
}

/* Adds an item, named "NAME" or "NAME.SUFFIX" after its parameter. */
static sl_status add_item(sli_tensors *tensors, const sl_parameter *parameter, const char *suffix,
                          sl_safetensors_item item, sli_tensor_entry entry)
{
    char *name;
    if (asprintf(&name, "%s%s%s", sl_parameter_name(parameter), suffix ? "." : "",
                 suffix ? suffix : "") < 0)
        return no_memory();
    item.name = name;
    tensors->items[tensors->count] = item;
    tensors->entries[tensors->count++] = entry;
    return SL_OK;
}

/* Adds the elements `range` of a parameter, which `flat` has; NULL: it does not have them. */
static sl_status add_tensor(sli_tensors *tensors, const sl_parameter *parameter, const char *suffix,
                            int stage, sl_dtype dtype, const sli_shard_range *range,
                            const sl_tensor *flat)
{
    const sl_shape row = sl_shape_1d(range->count);
    sl_safetensors_item item = {NULL, dtype, *sl_parameter_shape(parameter), NULL};
    sli_tensor_entry entry = {.first = range->first, .count = range->count, .stage = stage};
    entry.is_buffer = sl_parameter_get_kind(parameter) == SL_PARAMETER_BUFFER;
    SL_TRY(add_item(tensors, parameter, suffix, item, entry));
    if (!flat || range->count == 0)
        return SL_OK;
    sl_tensor **view = &tensors->entries[tensors->count - 1].tensor;
    SL_TRY(sl_tensor_view(flat, range->offset, &row, view));
    if (sl_device_has_host_memory(sl_tensor_device(*view)))
        tensors->items[tensors->count - 1].data = sl_tensor_data(*view);
    return SL_OK;
}

/* What is listed: an optimizer's state; else copies of the trained parameters' buckets; else the
 * model, all its parameters and buffers. */
typedef struct listing {
    const sl_pipe_optimizer *optimizer;
    bool whole, steps;          /* of the optimizer: what was gathered; with numbers of steps */
    bool own;                   /* nothing of other processes' stages */
    sl_tensor **const *buckets; /* [stages] */
} listing;

/* The stage under way. */
typedef struct listed_stage {
    const listing *list;
    int index;
    sl_precision precision;
    const sl_parameter_set *set;   /* NULL: it is in another process */
    const sl_optimizer *optimizer; /* NULL: likewise, or no optimizer is listed */
    int64_t *steps;
    int left; /* of the steps, which are in the order of buckets: that of parameters reversed */
    sli_tensors *tensors;
} listed_stage;

/* Adds the arrays of a trained parameter's state, and the number of its steps. */
static sl_status add_state(listed_stage *stage, const sl_parameter *parameter)
{
    const listing *list = stage->list;
    const sl_optimizer *source =
        list->whole ? list->optimizer->stage[stage->index].whole : stage->optimizer;
    const sl_optimizer_options *options = &list->optimizer->options;
    int arrays = sli_optimizer_arrays_of(options);
    sli_shard_range range = {0};
    if (stage->optimizer)
        SL_TRY(sli_optimizer_range(stage->set, parameter, list->whole ? 0 : list->optimizer->shard,
                                   list->whole ? 1 : list->optimizer->shards, &range));
    for (int a = 0; a < arrays; a++)
        SL_TRY(add_tensor(stage->tensors, parameter, sli_optimizer_array_name(options, a),
                          stage->index, sli_optimizer_dtype_of(options), &range,
                          source ? sli_optimizer_state(source, range.bucket, a) : NULL));
    if (arrays == 0 || !list->steps)
        return SL_OK;
    return add_item(stage->tensors, parameter, "step",
                    (sl_safetensors_item){
                        NULL, SL_I64, {0}, stage->optimizer ? &stage->steps[--stage->left] : NULL},
                    (sli_tensor_entry){.count = stage->optimizer != NULL, .stage = stage->index});
}

static sl_status add_parameter(listed_stage *stage, const sl_parameter *parameter)
{
    const listing *list = stage->list;
    bool trained = sl_parameter_get_kind(parameter) == SL_PARAMETER_TRAINED;
    sli_shard_range range = {0};
    const sl_tensor *flat = NULL;
    if (!trained && (list->optimizer || list->buckets))
        return SL_OK;
    if (list->optimizer)
        return add_state(stage, parameter);
    if (stage->set && list->buckets) {
        SL_TRY(sli_optimizer_range(stage->set, parameter, 0, 1, &range));
        flat = list->buckets[stage->index][range.bucket];
    } else if (stage->set) {
        range.count = sl_shape_count(sl_parameter_shape(parameter));
        flat = sl_parameter_value(parameter);
    }
    return add_tensor(stage->tensors, parameter, NULL, stage->index,
                      sli_parameter_dtype(parameter, stage->precision), &range, flat);
}

static sl_status list_module(listed_stage *stage, const sl_module *module)
{
    for (int i = 0; i < module->parameter_count; i++)
        SL_TRY(add_parameter(stage, module->parameters[i]));
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(list_module(stage, module->children[i]));
    return SL_OK;
}

static sl_status list_stage(const sl_pipe *pipe, const listing *list, int index,
                            sli_tensors *tensors)
{
    const sli_stage *stage = &pipe->stages[index];
    listed_stage listed = {.list = list,
                           .index = index,
                           .precision = pipe->precision,
                           .set = stage->parameters,
                           .tensors = tensors};
    if (list->own && !stage->is_here)
        return SL_OK;
    if (list->optimizer && stage->is_here) {
        listed.optimizer = sli_pipe_optimizer_own(list->optimizer, index);
        listed.steps = sli_optimizer_steps(listed.optimizer, &listed.left);
    }
    for (int m = 0; m < stage->count; m++)
        SL_TRY(list_module(&listed, sl_module_child(pipe->model, stage->first + m)));
    return SL_OK;
}

/* After an error the list is empty. */
static sl_status list_tensors(const sl_pipe *pipe, const listing *list, sli_tensors *out)
{
    enum { MOST_ITEMS = 3 }; /* of a parameter */
    size_t most = 1;
    sl_status status;
    for (int s = 0; s < pipe->stage_count; s++)
        most += MOST_ITEMS * (size_t)pipe->stages[s].parameter_count;
    sli_tensors_empty(out);
    out->items = calloc(most, sizeof *out->items);
    out->entries = calloc(most, sizeof *out->entries);
    SL_TRY_OR_FAIL(out->items && out->entries ? SL_OK : no_memory());
    for (int s = 0; s < pipe->stage_count; s++)
        SL_TRY_OR_FAIL(list_stage(pipe, list, s, out));
    for (size_t i = 0; i < out->count; i++)
        out->entries[i].owner = pipe->stages[out->entries[i].stage].group_rank;
    return SL_OK;

fail:
    sli_tensors_empty(out);
    return status;
}

sl_status sli_tensors_of_model(const sl_pipe *pipe, sli_tensors *out)
{
    SL_TRY(list_tensors(pipe, &(listing){0}, out));
    out->may_be_mapped = pipe->inference;
    return SL_OK;
}

sl_status sli_tensors_of_buckets(const sl_pipe *pipe, sl_tensor **const *buckets, sli_tensors *out)
{
    return list_tensors(pipe, &(listing){.buckets = buckets}, out);
}

sl_status sli_tensors_of_optimizer(const sl_pipe_optimizer *optimizer, bool steps, sli_tensors *out)
{
    return list_tensors(optimizer->pipe, &(listing){.optimizer = optimizer, .steps = steps}, out);
}

/* ---- Data of devices with memory of their own ------------------------------------------- */

static bool needs_copy(const sli_tensor_entry *entry)
{
    return entry->tensor && !sl_device_has_host_memory(sl_tensor_device(entry->tensor));
}

sl_status sli_tensors_open(sli_tensors *tensors, bool reads)
{
    for (size_t i = 0; i < tensors->count; i++) {
        sli_tensor_entry *entry = &tensors->entries[i];
        if (!needs_copy(entry))
            continue;
        sli_host_array_close(&entry->host, false);
        SL_TRY(sli_tensor_open_host(entry->tensor, reads, &entry->host));
        tensors->items[i].data = entry->host.host;
    }
    return SL_OK;
}

sl_status sli_tensors_need_f32(const sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++)
        if (tensors->items[i].dtype != SL_F32)
            return sl_error(SL_ERR_UNSUPPORTED,
                            "tensor \"%s\" is needed in f32, but the pipe has it in bf16 alone",
                            tensors->items[i].name);
    return SL_OK;
}

sl_status sli_tensors_store(const sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++)
        if (needs_copy(&tensors->entries[i]))
            SL_TRY(sl_tensor_write(tensors->entries[i].tensor, tensors->items[i].data));
    return SL_OK;
}

/* ---- Parts of checkpoints --------------------------------------------------------------- */

/* A load may have given tensors other memory since they were listed. */
static void find_values(const sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        const sl_tensor *tensor = tensors->entries[i].tensor;
        if (tensor && sl_device_has_host_memory(sl_tensor_device(tensor)))
            tensors->items[i].data = sl_tensor_data(tensor);
    }
}

sl_status sl_pipe_get_state(sl_pipe *pipe, sl_checkpoint_part *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_checkpoint_part){0};
    SLI_CHECK_NOT_NULL(pipe);
    if (!pipe->tensors)
        pipe->tensors = calloc(1, sizeof *pipe->tensors);
    if (!pipe->tensors)
        return no_memory();
    if (pipe->tensors->count == 0)
        SL_TRY(list_tensors(pipe, &(listing){.own = true}, pipe->tensors));
    find_values(pipe->tensors);
    SL_TRY(sli_tensors_open(pipe->tensors, true));
    *out = (sl_checkpoint_part){.name = MODEL,
                                .items = pipe->tensors->items,
                                .count = pipe->tensors->count};
    return SL_OK;
}

sl_status sl_pipe_optimizer_get_state(sl_pipe_optimizer *optimizer, sl_checkpoint_part *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_checkpoint_part){.name = OPTIMIZER};
    SLI_CHECK_NOT_NULL(optimizer);
    sli_tensors *tensors = &optimizer->tensors;
    SL_TRY(sli_pipe_optimizer_gather(optimizer));
    SL_TRY(
        list_tensors(optimizer->pipe,
                     &(listing){.optimizer = optimizer, .whole = true, .steps = true, .own = true},
                     tensors));
    if (optimizer->shard > 0)
        sli_tensors_empty(tensors);
    SL_TRY(sli_tensors_open(tensors, true));
    out->items = tensors->items;
    out->count = tensors->count;
    return SL_OK;
}

bool sli_checkpoint_has_steps(const sl_checkpoint_reader *reader)
{
    static const char suffix[] = ".step";
    for (size_t i = 0; i < sl_checkpoint_tensor_count(reader, OPTIMIZER); i++) {
        const char *name = sl_checkpoint_tensor_get(reader, OPTIMIZER, i)->name;
        size_t length = strlen(name);
        if (length >= strlen(suffix) && strcmp(name + length - strlen(suffix), suffix) == 0)
            return true;
    }
    return false;
}

sl_status sli_tensors_read(const sl_checkpoint_reader *reader, const char *part,
                           sli_tensors *tensors)
{
    SL_TRY(sli_tensors_open(tensors, false));
    SL_TRY(sli_checkpoint_check_items(reader, part, tensors->items, tensors->count));
    for (size_t i = 0; i < tensors->count; i++)
        if (tensors->entries[i].count > 0)
            SL_TRY(sli_checkpoint_read_elements(
                reader, sli_checkpoint_find_tensor(reader, part, tensors->items[i].name),
                tensors->entries[i].first, tensors->entries[i].count, tensors->items[i].data));
    return sli_tensors_store(tensors);
}

sl_status sl_pipe_load(sl_pipe *pipe, const sl_checkpoint_reader *reader)
{
    sli_tensors tensors = {0};
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(reader);
    SL_TRY(sli_checkpoint_verify_part(reader, MODEL));
    sl_status status;
    SL_TRY_OR_FAIL(sli_tensors_of_model(pipe, &tensors));
    status = sli_tensors_read(reader, MODEL, &tensors);

fail:
    sli_tensors_clear(&tensors);
    return status;
}

sl_status sl_pipe_optimizer_load(sl_pipe_optimizer *optimizer, const sl_checkpoint_reader *reader)
{
    SLI_CHECK_NOT_NULL(optimizer);
    SLI_CHECK_NOT_NULL(reader);
    double step;
    bool has_step =
        sl_checkpoint_number(reader, "step", &step) == SL_OK && step >= 0 && step < 1e18;
    bool reads_steps = sli_checkpoint_has_steps(reader) || !has_step;
    sli_tensors *tensors = &optimizer->tensors;
    sli_pipe_optimizer_release(optimizer);
    SL_TRY(sli_tensors_of_optimizer(optimizer, reads_steps, tensors));
    SL_TRY(sli_checkpoint_verify_part(reader, OPTIMIZER));
    SL_TRY(sli_tensors_read(reader, OPTIMIZER, tensors));
    for (int s = 0; s < optimizer->stages && !reads_steps; s++)
        if (sl_pipe_parameters(optimizer->pipe, s))
            sli_optimizer_set_steps(sli_pipe_optimizer_own(optimizer, s), (int64_t)step);
    return SL_OK;
}

/* ---- Copies ----------------------------------------------------------------------------- */

void sli_tensors_empty(sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        sli_host_array_close(&tensors->entries[i].host, false);
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

enum { ALIGNMENT = 64 };

/* Of the elements of tensor i that are here. */
static size_t aligned_bytes(const sli_tensors *tensors, size_t i)
{
    size_t bytes = (size_t)tensors->entries[i].count * sl_dtype_bytes(tensors->items[i].dtype);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static sl_status reserve_memory(sli_tensors *tensors)
{
    size_t bytes = 0;
    for (size_t i = 0; i < tensors->count; i++)
        bytes += aligned_bytes(tensors, i);
    if (tensors->memory_bytes >= bytes)
        return SL_OK;
    free(tensors->memory);
    tensors->memory = NULL;
    if (sli_resident_memory() + bytes <= sli_usable_memory(""))
        tensors->memory = sli_huge_pages_alloc(bytes);
    tensors->memory_bytes = tensors->memory ? bytes : 0;
    return tensors->memory ? SL_OK
                           : sli_no_memory(NULL, "a copy of the run's state, %zu bytes", bytes);
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
    if (status != SL_OK || json_object_size(shapes) == 0)
        return status;
    tensors->shapes = json_dumps(shapes, JSON_COMPACT);
    return tensors->shapes ? SL_OK : no_memory();
}

static sl_status copy_stage(int stage, void *arg)
{
    const sli_tensors *tensors = arg;
    char *data = tensors->memory;
    for (size_t i = 0; i < tensors->count; i++) {
        sli_tensor_entry *entry = &tensors->entries[i];
        if (entry->stage == stage && entry->tensor) {
            SL_TRY(sl_tensor_read(entry->tensor, data));
            sl_tensor_destroy(&entry->tensor);
            tensors->items[i].data = data;
        }
        data += aligned_bytes(tensors, i);
    }
    return SL_OK;
}

sl_status sli_tensors_copy(sl_pipe *pipe, sli_tensors *tensors, bool keeps_all)
{
    SL_TRY(reserve_memory(tensors));
    if (keeps_all)
        return sli_pipe_run_here(pipe, copy_stage, tensors);
    json_t *shapes = json_object();
    sl_status status = shapes ? cut_tensors(tensors, shapes) : no_memory();
    json_decref(shapes);
    SL_TRY(status);
    return sli_pipe_run_here(pipe, copy_stage, tensors);
}
