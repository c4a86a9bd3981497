#include "train/checkpoint/resume_slices.h"

#include "io/checkpoint/reader.h"
#include "optim/optimizer.h"
#include "train/checkpoint/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The same checkpoint ---------------------------------------------------------------- */

/* Which one the first replica has; a path that is longer is seen by nobody else. */
typedef struct checkpoint_name {
    char id[SLI_CHECKPOINT_ID_BYTES];
    char path[4096 - SLI_CHECKPOINT_ID_BYTES];
} checkpoint_name;

static bool is_same(const sl_checkpoint_reader *reader, const checkpoint_name *name)
{
    return strncmp(reader->state.id, name->id, sizeof name->id) == 0;
}

/* *own is a reader of the others' own, where all can have one; else NULL on all of them. */
static sl_status open_same(const sl_checkpoint_reader *from, const sli_replica *replicas,
                           sl_checkpoint_reader **own, bool *all)
{
    checkpoint_name name = {{0}, {0}};
    if (from) {
        snprintf(name.id, sizeof name.id, "%s", from->state.id);
        snprintf(name.path, sizeof name.path, "%s", from->path);
    }
    SL_TRY(
        sl_group_broadcast(replicas->group, &name, sizeof name / sizeof(int32_t), SL_I32, 0, NULL));
    int32_t opened = from ? strcmp(name.path, from->path) == 0
                          : sl_checkpoint_open(name.path, own) == SL_OK && is_same(*own, &name);
    SL_TRY(sl_group_all_reduce(replicas->group, &opened, 1, SL_I32, SL_REDUCE_MIN, NULL));
    *all = opened != 0;
    return SL_OK;
}

/* ---- This replica's slices -------------------------------------------------------------- */

typedef struct slice_list {
    sli_checkpoint_slice *slices; /* [count], names of their own */
    size_t count, room;
} slice_list;

static sl_status add_slice(slice_list *to, const sli_checkpoint_slice *slice, const char *array)
{
    if (to->count == to->room) {
        size_t room = 2 * to->room + 64;
        sli_checkpoint_slice *more = realloc(to->slices, room * sizeof *more);
        if (!more)
            return sl_error(SL_ERR_MEMORY, "no memory for the list of an optimizer's slices");
        to->slices = more;
        to->room = room;
    }
    size_t bytes = strlen(slice->tensor) + strlen(array) + 2;
    char *name = malloc(bytes);
    if (!name)
        return sl_error(SL_ERR_MEMORY, "no memory for a tensor's name");
    snprintf(name, bytes, "%s.%s", slice->tensor, array);
    to->slices[to->count] = *slice;
    to->slices[to->count++].tensor = name;
    return SL_OK;
}

static sl_status list_parameter(const sli_replica *replicas, const sl_optimizer *own, int stage,
                                const sl_parameter *parameter, slice_list *to)
{
    sli_shard_range range;
    const sl_parameter_set *set = sl_pipe_parameters(replicas->pipe, stage);
    if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
        return SL_OK;
    SL_TRY(sli_shard_find(set, parameter, replicas->rank, replicas->count, &range));
    for (int a = 0; a < sli_optimizer_state_arrays(own); a++) {
        sli_checkpoint_slice slice = {.tensor = sl_parameter_name(parameter),
                                      .dtype = SL_F32,
                                      .shape = *sl_parameter_shape(parameter)};
        if (range.begin < range.end) {
            /* A CPU's memory is the host's. */
            slice.data = sl_tensor_f32(sli_optimizer_state(own, range.bucket, a)) + range.in_slice;
            slice.begin = range.begin;
            slice.count = range.end - range.begin;
        }
        SL_TRY(add_slice(to, &slice, sli_optimizer_state_name(own, a)));
    }
    return SL_OK;
}

static sl_status list_own(const sli_replica *replicas, const sli_update *update, slice_list *to)
{
    for (int s = 0; s < sl_pipe_stages(replicas->pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(replicas->pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            SL_TRY(list_parameter(replicas, sli_update_own(update, s), s,
                                  sl_parameter_set_get(set, i), to));
    }
    return SL_OK;
}

static sl_status read_own(const sl_checkpoint_reader *from, const sli_replica *replicas,
                          const sli_update *update)
{
    slice_list list = {0};
    sl_status status = list_own(replicas, update, &list);
    if (status == SL_OK)
        status = sli_checkpoint_read_slices(from, "optimizer", list.slices, list.count);
    for (size_t i = 0; i < list.count; i++)
        free((char *)list.slices[i].tensor);
    free(list.slices);
    return status;
}

sl_status sli_resume_slices(const sl_checkpoint_reader *from, const sli_replica *replicas,
                            const sli_update *update, bool *done)
{
    sl_checkpoint_reader *own = NULL;
    *done = false;
    sl_status status = open_same(from, replicas, &own, done);
    if (status == SL_OK && *done)
        status = read_own(from ? from : own, replicas, update);
    sl_checkpoint_close(&own);
    return status;
}
