#include "train/checkpoint/snapshot.h"

#include "core/usable_memory.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

static sl_status no_memory(size_t bytes)
{
    return sl_error(SL_ERR_MEMORY, "no memory for a copy of the run's state, %zu bytes", bytes);
}

void sli_copied_forget(sli_copied *copied)
{
    for (size_t i = 0; i < copied->count; i++)
        free((char *)copied->items[i].name);
    free(copied->items);
    copied->items = NULL;
    copied->count = 0;
}

void sli_snapshot_clear(sli_snapshot *snapshot)
{
    sli_copied *const all[] = {&snapshot->model, &snapshot->optimizer, &snapshot->best};
    for (int i = 0; i < 3; i++) {
        sli_copied_forget(all[i]);
        free(all[i]->memory);
    }
    free(snapshot->state);
    *snapshot = (sli_snapshot){0};
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static sl_status take_memory(sli_copied *to, size_t bytes)
{
    if (to->memory_bytes >= bytes)
        return SL_OK;
    free(to->memory);
    to->memory = NULL;
    if (sli_resident_memory() + bytes <= sli_usable_memory(""))
        to->memory = aligned_alloc(ALIGNMENT, aligned(bytes));
    to->memory_bytes = to->memory ? bytes : 0;
    return to->memory ? SL_OK : no_memory(bytes);
}

/* Names, shapes and places; the data come later. */
static sl_status describe(const sli_tensors *from, sli_copied *to)
{
    size_t bytes = 0;
    for (size_t i = 0; i < from->count; i++)
        bytes += aligned(sl_tensor_bytes(from->entries[i].tensor));
    SL_TRY(take_memory(to, bytes));
    to->items = calloc(from->count + 1, sizeof *to->items);
    if (!to->items)
        return no_memory(bytes);
    char *at = to->memory;
    for (size_t i = 0; i < from->count; i++) {
        const sl_tensor *tensor = from->entries[i].tensor;
        to->items[i] = (sl_safetensors_item){strdup(from->entries[i].name), SL_F32,
                                             *sl_tensor_shape(tensor), at};
        to->count++;
        if (!to->items[i].name)
            return no_memory(bytes);
        at += aligned(sl_tensor_bytes(tensor));
    }
    return SL_OK;
}

typedef struct copying {
    const sli_tensors *from;
    const sli_copied *to;
} copying;

static sl_status copy_stage(int stage, void *arg)
{
    const copying *job = arg;
    for (size_t i = 0; i < job->from->count; i++)
        if (job->from->entries[i].stage == stage)
            SL_TRY(sl_tensor_read(job->from->entries[i].tensor, job->to->items[i].data));
    return SL_OK;
}

sl_status sli_copied_take(sl_pipe *pipe, const sli_tensors *from, sli_copied *to)
{
    copying job = {from, to};
    sli_copied_forget(to);
    SL_TRY(describe(from, to));
    return sl_pipe_run(pipe, copy_stage, &job);
}
