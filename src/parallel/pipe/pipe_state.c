/* A pipe's tensors and its optimizers' state by name, whatever cut and shards it has: listed,
 * saved, read, and copied. */
#define _GNU_SOURCE /* asprintf */

#include "core/error.h"
#include "optim/optimizer.h"
#include "parallel/pipe/pipe.h"
#include "parallel/pipe/pipe_head.h"
#include "parallel/pipe/pipe_optimizer.h"

#include <assert.h>
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
    tensors->items[tensors->entry_count] = item;
    tensors->entries[tensors->entry_count++] = entry;
    return SL_OK;
}

/* Adds the elements `range` of a parameter, which `flat` has; NULL: it does not have them. */
static sl_status add_tensor(sli_tensors *tensors, const sl_parameter *parameter,
                            const sl_parameter *held, const char *suffix, int stage, sl_dtype dtype,
                            const sli_shard_range *range, const sl_tensor *flat)
{
    const sl_shape row = sl_shape_1d(range->count);
    sl_safetensors_item item = {NULL, dtype, *sl_parameter_shape(parameter), NULL};
    sli_tensor_entry entry = {.first = range->first,
                              .count = range->count,
                              .whole = sl_shape_count(sl_parameter_shape(held)),
                              .stage = stage};
    entry.is_buffer = sl_parameter_get_kind(parameter) == SL_PARAMETER_BUFFER;
    SL_TRY(add_item(tensors, parameter, suffix, item, entry));
    if (!flat || range->count == 0)
        return SL_OK;
    sl_tensor **view = &tensors->entries[tensors->entry_count - 1].tensor;
    SL_TRY(sl_tensor_view(flat, range->offset, &row, view));
    if (sl_device_has_host_memory(sl_tensor_device(*view)))
        tensors->items[tensors->entry_count - 1].data = sl_tensor_data(*view);
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
    struct cut_parts *cut;
    bool lists_cut_alone; /* the other parameters are another process's, and not asked for */
    sli_tensors *tensors;
} listed_stage;

/* Of cut parameters, the first rank's parts stand where the parameters do in the model, and those
 * of the other ranks behind all. */
typedef struct cut_parts {
    const sli_head_part *parts; /* [ranks] */
    listed_stage first;         /* of the first rank */
    size_t at[SLI_HEAD_PARAMETERS];
    sl_parameter *whole[SLI_HEAD_PARAMETERS];
    int count;
} cut_parts;

/* Adds the arrays of a trained parameter's state, and the number of its steps. `held`: as in
 * add_parameter. */
static sl_status add_state(listed_stage *stage, const sl_parameter *parameter,
                           const sl_parameter *held)
{
    const listing *list = stage->list;
    const sl_optimizer *source =
        list->whole ? list->optimizer->stage[stage->index].whole : stage->optimizer;
    const sl_optimizer_options *options = &list->optimizer->options;
    int arrays = sli_optimizer_arrays_of(options);
    sli_shard_range range = {0};
    if (stage->optimizer)
        SL_TRY(sli_optimizer_range(stage->set, held, list->whole ? 0 : list->optimizer->shard,
                                   list->whole ? 1 : list->optimizer->shards, &range));
    range.first += held->first;
    for (int a = 0; a < arrays; a++)
        SL_TRY(add_tensor(stage->tensors, parameter, held, sli_optimizer_array_name(options, a),
                          stage->index, sli_optimizer_dtype_of(options), &range,
                          source ? sli_optimizer_state(source, range.bucket, a) : NULL));
    if (arrays == 0 || !list->steps)
        return SL_OK;
    return add_item(stage->tensors, parameter, "step",
                    (sl_safetensors_item){
                        NULL, SL_I64, {0}, stage->optimizer ? &stage->steps[--stage->left] : NULL},
                    (sli_tensor_entry){.count = stage->optimizer != NULL,
                                       .whole = 1,
                                       .stage = stage->index});
}

/* Adds what is listed of a parameter. `held` is what the stage's set has of it: itself, or a part.
 */
static sl_status add_parameter(listed_stage *stage, const sl_parameter *parameter,
                               const sl_parameter *held)
{
    const listing *list = stage->list;
    bool trained = sl_parameter_get_kind(parameter) == SL_PARAMETER_TRAINED;
    sli_shard_range range = {0};
    const sl_tensor *flat = NULL;
    if (!trained && (list->optimizer || list->buckets))
        return SL_OK;
    if (list->optimizer)
        return add_state(stage, parameter, held);
    if (stage->set && list->buckets) {
        SL_TRY(sli_optimizer_range(stage->set, held, 0, 1, &range));
        flat = list->buckets[stage->index][range.bucket];
    } else if (stage->set) {
        range.count = sl_shape_count(sl_parameter_shape(held));
        flat = sl_parameter_value(held);
    }
    range.first += held->first;
    return add_tensor(stage->tensors, parameter, held, NULL, stage->index,
                      sli_parameter_dtype(parameter, stage->precision), &range, flat);
}

static sl_status add_first_part(cut_parts *cut, sl_parameter *parameter)
{
    int index = cut->count++;
    assert(cut->parts[0].own[index].number == parameter->number); /* modules have them in order */
    cut->whole[index] = parameter;
    cut->at[index] = cut->first.tensors->entry_count;
    return add_parameter(&cut->first, parameter, &cut->parts[0].own[index]);
}

static sl_status list_module(listed_stage *stage, const sl_module *module)
{
    for (int i = 0; i < module->parameter_count; i++) {
        sl_parameter *parameter = module->parameters[i];
        if (parameter->is_cut)
            SL_TRY(add_first_part(stage->cut, parameter));
        else if (!stage->lists_cut_alone)
            SL_TRY(add_parameter(stage, parameter, parameter));
    }
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(list_module(stage, module->children[i]));
    return SL_OK;
}

static listed_stage begin_stage(const sl_pipe *pipe, const listing *list, int index,
                                sli_tensors *tensors)
{
    const sli_stage *stage = &pipe->stages[index];
    listed_stage listed = {.list = list,
                           .index = index,
                           .precision = pipe->precision,
                           .set = stage->parameters,
                           .tensors = tensors};
    if (list->optimizer && stage->is_here) {
        listed.optimizer = sli_pipe_optimizer_own(list->optimizer, index);
        listed.steps = sli_optimizer_steps(listed.optimizer, &listed.left);
    }
    return listed;
}

/* Parts of cut parameters are the first parameters of a set, and so their numbers of steps the
 * last.
 */
static sl_status list_stage(const sl_pipe *pipe, const listing *list, int index, cut_parts *cut,
                            sli_tensors *tensors)
{
    sli_stage *stage = &pipe->stages[index];
    sl_parameter *parts[SLI_HEAD_PARAMETERS];
    int part_count = sli_stage_list_parts(stage, parts);
    listed_stage listed = begin_stage(pipe, list, index, tensors);
    for (int i = 0; i < part_count; i++)
        listed.left -= sl_parameter_get_kind(parts[i]) == SL_PARAMETER_TRAINED;
    listed.cut = cut;
    listed.lists_cut_alone = list->own && !stage->is_here;
    for (int m = 0; m < stage->count; m++)
        SL_TRY(list_module(&listed, sl_module_child(pipe->model, stage->first + m)));
    return SL_OK;
}

/* Lists the parts that the rank has, and makes them those that follow on the ones before. */
static sl_status list_other_parts(const sl_pipe *pipe, const listing *list, int rank,
                                  cut_parts *cut, sli_tensors *tensors)
{
    listed_stage listed = begin_stage(pipe, list, pipe->ranks[rank].own[0], tensors);
    for (int k = 0; k < cut->count; k++) {
        size_t begin = tensors->entry_count;
        SL_TRY(add_parameter(&listed, cut->whole[k], &pipe->parts[rank].own[k]));
        for (size_t i = begin; i < tensors->entry_count; i++)
            tensors->entries[cut->at[k] + i - begin].next = i;
        cut->at[k] = begin;
    }
    return SL_OK;
}

/* After an error the list is empty. */
static sl_status list_tensors(const sl_pipe *pipe, const listing *list, sli_tensors *out)
{
    enum { MOST_ITEMS = 3 }; /* of a parameter */
    size_t most = 1;
    cut_parts cut = {.parts = pipe->parts};
    sl_status status;
    for (int s = 0; s < pipe->stage_count; s++)
        most += MOST_ITEMS * (size_t)pipe->stages[s].parameter_count;
    if (pipe->head_is_cut)
        most += MOST_ITEMS * SLI_HEAD_PARAMETERS * (size_t)pipe->rank_count;
    sli_tensors_empty(out);
    out->items = calloc(most, sizeof *out->items);
    out->entries = calloc(most, sizeof *out->entries);
    SL_TRY_OR_FAIL(out->items && out->entries ? SL_OK : no_memory());
    if (pipe->head_is_cut)
        cut.first = begin_stage(pipe, list, pipe->ranks[0].own[0], out);
    for (int s = 0; s < pipe->stage_count; s++)
        SL_TRY_OR_FAIL(list_stage(pipe, list, s, &cut, out));
    out->count = out->entry_count;
    for (int rank = 1; rank < pipe->rank_count; rank++)
        SL_TRY_OR_FAIL(list_other_parts(pipe, list, rank, &cut, out));
    for (size_t i = 0; i < out->entry_count; i++)
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
    for (size_t i = 0; i < tensors->entry_count; i++) {
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
    for (size_t i = 0; i < tensors->entry_count; i++)
        if (tensors->items[i].dtype != SL_F32)
            return sl_error(SL_ERR_UNSUPPORTED,
                            "tensor \"%s\" is needed in f32, but the pipe has it in bf16 alone",
                            tensors->items[i].name);
    return SL_OK;
}

sl_status sli_tensors_store(const sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->entry_count; i++)
        if (needs_copy(&tensors->entries[i]))
            SL_TRY(sl_tensor_write(tensors->entries[i].tensor, tensors->items[i].data));
    return SL_OK;
}

/* ---- Parts of checkpoints --------------------------------------------------------------- */

/* A load may have given tensors other memory since they were listed. */
static void find_values(const sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->entry_count; i++) {
        const sl_tensor *tensor = tensors->entries[i].tensor;
        if (tensor && sl_device_has_host_memory(sl_tensor_device(tensor)))
            tensors->items[i].data = sl_tensor_data(tensor);
    }
}

static sl_status list_own(sl_pipe *pipe)
{
    if (!pipe->tensors)
        pipe->tensors = calloc(1, sizeof *pipe->tensors);
    if (!pipe->tensors)
        return no_memory();
    if (pipe->tensors->count == 0 || pipe->head_is_cut)
        SL_TRY(list_tensors(pipe, &(listing){.own = true}, pipe->tensors));
    find_values(pipe->tensors);
    return SL_OK;
}

sl_status sl_pipe_get_state(sl_pipe *pipe, sl_checkpoint_part *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_checkpoint_part){0};
    SLI_CHECK_NOT_NULL(pipe);
    sl_status status = list_own(pipe);
    SL_TRY(sli_tensors_gather(pipe, pipe->tensors, status));
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
    sl_status status =
        list_tensors(optimizer->pipe,
                     &(listing){.optimizer = optimizer, .whole = true, .steps = true, .own = true},
                     tensors);
    if (optimizer->shard > 0)
        sli_tensors_empty(tensors);
    SL_TRY(sli_tensors_gather(optimizer->pipe, tensors, status));
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
    for (size_t i = 0; i < tensors->entry_count; i++)
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
