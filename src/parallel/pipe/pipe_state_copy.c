/* Copies of a pipe's tensors in host memory: of what each process has, and of cut tensors as a
 * whole. */
#include "core/error.h"
#include "core/memory.h"
#include "core/usable_memory.h"
#include "parallel/pipe/pipe.h"
#include "parallel/pipe/pipe_optimizer.h"

#include <stdlib.h>
#include <string.h>

void sli_tensors_empty(sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->entry_count; i++) {
        sli_host_array_close(&tensors->entries[i].host, false);
        sl_tensor_destroy(&tensors->entries[i].tensor);
        free(tensors->entries[i].gathered);
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

/* Of the elements of tensor i that are here, and are to be copied. */
static size_t aligned_bytes(const sli_tensors *tensors, size_t i)
{
    if (tensors->entries[i].gathered)
        return 0;
    size_t bytes = (size_t)tensors->entries[i].count * sl_dtype_bytes(tensors->items[i].dtype);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool has_room(size_t bytes)
{
    return sli_resident_memory() + bytes <= sli_usable_memory("");
}

static sl_status no_room(size_t bytes)
{
    return sli_no_memory(NULL, "a copy of the run's state, %zu bytes", bytes);
}

static sl_status reserve_memory(sli_tensors *tensors)
{
    size_t bytes = 0;
    for (size_t i = 0; i < tensors->entry_count; i++)
        bytes += aligned_bytes(tensors, i);
    if (tensors->memory_bytes >= bytes)
        return SL_OK;
    free(tensors->memory);
    tensors->memory = NULL;
    if (has_room(bytes))
        tensors->memory = sli_huge_pages_alloc(bytes);
    tensors->memory_bytes = tensors->memory ? bytes : 0;
    return tensors->memory ? SL_OK : no_room(bytes);
}

/* Leaves what has elements here: whole tensors, and segments of others. */
static sl_status cut_tensors(sli_tensors *tensors, json_t *shapes)
{
    size_t kept = 0;
    sl_status status = SL_OK;
    for (size_t i = 0; i < tensors->entry_count; i++) {
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
    tensors->count = tensors->entry_count = kept;
    if (status != SL_OK || json_object_size(shapes) == 0)
        return status;
    tensors->shapes = json_dumps(shapes, JSON_COMPACT);
    return tensors->shapes ? SL_OK : sli_no_memory(NULL, "the shapes of tensors");
}

static sl_status copy_stage(int stage, void *arg)
{
    const sli_tensors *tensors = arg;
    char *data = tensors->memory;
    for (size_t i = 0; i < tensors->entry_count; i++) {
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

/* ---- Cut tensors made whole -------------------------------------------------------------- */

static sl_status reserve_whole(const sl_pipe *pipe, sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count && sli_last_stage(pipe)->is_here; i++) {
        const sl_safetensors_item *item = &tensors->items[i];
        size_t bytes = (size_t)sl_shape_count(&item->shape) * sl_dtype_bytes(item->dtype);
        if (tensors->entries[i].next == 0)
            continue;
        tensors->entries[i].gathered = has_room(bytes) ? malloc(bytes) : NULL;
        if (!tensors->entries[i].gathered)
            return no_room(bytes);
    }
    return SL_OK;
}

static sl_status send_part(const sl_pipe *pipe, const sl_safetensors_item *item,
                           const sli_tensor_entry *entry)
{
    const int64_t range[] = {entry->first, entry->count};
    int last = sli_last_stage(pipe)->group_rank;
    SL_TRY(sli_pipe_group_send(pipe->group, range, 2, SL_I64, last));
    return sli_pipe_group_send(pipe->group, item->data, entry->count, item->dtype, last);
}

static sl_status receive_part(const sl_pipe *pipe, const sl_safetensors_item *item, int owner,
                              char *whole)
{
    int64_t range[2];
    SL_TRY(sli_pipe_group_receive(pipe->group, range, 2, SL_I64, owner));
    char *elements = whole + (size_t)range[0] * sl_dtype_bytes(item->dtype);
    return sli_pipe_group_receive(pipe->group, elements, range[1], item->dtype, owner);
}

/* Brings an entry's elements to `whole`; NULL: the last stage is in another process. */
static sl_status gather_entry(const sl_pipe *pipe, const sl_safetensors_item *item,
                              const sli_tensor_entry *entry, char *whole)
{
    if (entry->owner == pipe->group->rank && !whole)
        return send_part(pipe, item, entry);
    if (!whole)
        return SL_OK;
    if (entry->owner != pipe->group->rank)
        return receive_part(pipe, item, entry->owner, whole);
    size_t bytes = sl_dtype_bytes(item->dtype);
    memcpy(whole + (size_t)entry->first * bytes, item->data, (size_t)entry->count * bytes);
    return SL_OK;
}

static sl_status gather_all(const sl_pipe *pipe, const sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++)
        for (size_t e = i; tensors->entries[i].next > 0; e = tensors->entries[e].next) {
            SL_TRY(gather_entry(pipe, &tensors->items[e], &tensors->entries[e],
                                tensors->entries[i].gathered));
            if (tensors->entries[e].next == 0)
                break;
        }
    return SL_OK;
}

static void drop_entry(sli_tensors *tensors, size_t index)
{
    sl_tensor_destroy(&tensors->entries[index].tensor);
    free((char *)tensors->items[index].name);
}

/* Leaves of cut tensors what was gathered. */
static void drop_parts(const sl_pipe *pipe, sli_tensors *tensors)
{
    size_t kept = 0;
    for (size_t i = tensors->count; i < tensors->entry_count; i++)
        drop_entry(tensors, i);
    for (size_t i = 0; i < tensors->count; i++) {
        sli_tensor_entry *entry = &tensors->entries[i];
        if (entry->next > 0 && !entry->gathered) {
            drop_entry(tensors, i);
            continue;
        }
        if (entry->gathered) {
            sl_tensor_destroy(&entry->tensor);
            tensors->items[i].data = entry->gathered;
            entry->first = 0;
            entry->count = entry->whole = sl_shape_count(&tensors->items[i].shape);
            entry->next = 0;
            entry->owner = sli_last_stage(pipe)->group_rank;
        }
        tensors->items[kept] = tensors->items[i];
        tensors->entries[kept++] = *entry;
    }
    tensors->count = tensors->entry_count = kept;
}

sl_status sli_tensors_gather(const sl_pipe *pipe, sli_tensors *tensors, sl_status status)
{
    if (!pipe->head_is_cut)
        return status;
    if (status == SL_OK)
        status = reserve_whole(pipe, tensors);
    SL_TRY(sli_pipe_agree(pipe, status));
    SL_TRY(sli_pipe_group_check(pipe->group, gather_all(pipe, tensors)));
    drop_parts(pipe, tensors);
    return SL_OK;
}

/* ---- A copy ------------------------------------------------------------------------------ */

sl_status sli_tensors_copy(sl_pipe *pipe, sli_tensors *tensors, bool keeps_all)
{
    SL_TRY(reserve_memory(tensors));
    if (keeps_all)
        return sli_pipe_run_here(pipe, copy_stage, tensors);
    json_t *shapes = json_object();
    sl_status status =
        shapes ? cut_tensors(tensors, shapes) : sli_no_memory(NULL, "the shapes of tensors");
    json_decref(shapes);
    SL_TRY(status);
    return sli_pipe_run_here(pipe, copy_stage, tensors);
}
