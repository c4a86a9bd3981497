#include "train/checkpoint/shards.h"

#include "io/checkpoint/slices.h"
#include "optim/optimizer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is being listed: the pieces of replica `rank`. */
typedef struct listing {
    const sli_replica *replicas;
    const sli_update *update;
    sli_shards *to;
    int rank;
    size_t room;
    sli_sliced_tensor *cut; /* [cut_count], names of their own */
    size_t cut_count, cut_room;
} listing;

static sl_status no_memory(void)
{
    return sl_error(SL_ERR_MEMORY, "no memory for the list of an optimizer's slices");
}

/* ---- One piece -------------------------------------------------------------------------- */

/* A part of an array of a parameter's state. */
typedef struct piece {
    const sl_parameter *parameter;
    int stage, array;
    sli_shard_range at;
} piece;

static bool is_whole(const piece *of)
{
    return of->at.end - of->at.begin == sl_shape_count(sl_parameter_shape(of->parameter));
}

static sl_status make_room(listing *in)
{
    sli_shards *to = in->to;
    if (to->part.count < in->room)
        return SL_OK;
    size_t room = 2 * in->room + 256;
    sl_safetensors_item *items = realloc(to->items, room * sizeof *items);
    if (items)
        to->items = items;
    int *owner_of = realloc(to->owner_of, room * sizeof *owner_of);
    if (owner_of)
        to->owner_of = owner_of;
    if (!items || !owner_of)
        return no_memory();
    in->room = room;
    return SL_OK;
}

/* The first slice of a tensor lists its shape; takes `name`. */
static sl_status add_cut(listing *in, char *name, const sl_shape *shape)
{
    if (in->cut_count == in->cut_room) {
        size_t room = 2 * in->cut_room + 16;
        sli_sliced_tensor *more = realloc(in->cut, room * sizeof *more);
        if (!more) {
            free(name);
            return no_memory();
        }
        in->cut = more;
        in->cut_room = room;
    }
    in->cut[in->cut_count++] = (sli_sliced_tensor){name, *shape};
    return SL_OK;
}

static sl_status name_piece(listing *in, const piece *of, const char *array_name, char **out)
{
    char *name;
    *out = NULL;
    size_t bytes = strlen(sl_parameter_name(of->parameter)) + strlen(array_name) + 2;
    if (!(name = malloc(bytes)))
        return no_memory();
    snprintf(name, bytes, "%s.%s", sl_parameter_name(of->parameter), array_name);
    if (is_whole(of)) {
        *out = name;
        return SL_OK;
    }
    sl_status status = sli_slice_name(name, of->at.begin, out);
    if (status == SL_OK && of->at.begin == 0)
        return add_cut(in, name, sl_parameter_shape(of->parameter));
    free(name);
    return status;
}

static sl_status add_own(listing *in, const piece *of, const char *name, const sl_shape *shape)
{
    const sl_optimizer *own = sli_update_own(in->update, of->stage);
    return sli_tensors_add(&in->to->own, name, of->stage,
                           sli_optimizer_state(own, of->at.bucket, of->array), of->at.in_slice,
                           shape);
}

static sl_status add_piece(listing *in, const piece *of)
{
    const sl_optimizer *own = sli_update_own(in->update, of->stage);
    sl_shape shape =
        is_whole(of) ? *sl_parameter_shape(of->parameter) : sl_shape_1d(of->at.end - of->at.begin);
    char *name;
    SL_TRY(make_room(in));
    sl_status status = name_piece(in, of, sli_optimizer_state_name(own, of->array), &name);
    if (status == SL_OK && in->rank == in->replicas->rank)
        status = add_own(in, of, name, &shape);
    if (status != SL_OK) {
        free(name);
        return status;
    }
    size_t at = in->to->part.count++;
    in->to->items[at] = (sl_safetensors_item){name, SL_F32, shape, NULL};
    in->to->owner_of[at] = in->rank;
    return SL_OK;
}

/* ---- All of them ------------------------------------------------------------------------ */

sl_status sli_shard_find(const sl_parameter_set *set, const sl_parameter *parameter, int rank,
                         int ranks, sli_shard_range *out)
{
    int64_t offset, count = sl_shape_count(sl_parameter_shape(parameter));
    SL_TRY(sli_tensors_find_place(set, parameter, &out->bucket, &offset));
    sli_shard slice = sli_optimizer_shard(set, out->bucket, rank, ranks);
    int64_t end = slice.start + slice.count - offset;
    out->begin = slice.start > offset ? slice.start - offset : 0;
    out->end = end < count ? end : count;
    out->in_slice = offset + out->begin - slice.start;
    return SL_OK;
}

static sl_status list_parameter(listing *in, int stage, const sl_parameter *parameter)
{
    const sl_parameter_set *set = sl_pipe_parameters(in->replicas->pipe, stage);
    piece found = {.parameter = parameter, .stage = stage};
    if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
        return SL_OK;
    SL_TRY(sli_shard_find(set, parameter, in->rank, in->replicas->count, &found.at));
    if (found.at.begin >= found.at.end)
        return SL_OK;
    int arrays = sli_optimizer_state_arrays(sli_update_own(in->update, stage));
    for (found.array = 0; found.array < arrays; found.array++)
        SL_TRY(add_piece(in, &found));
    return SL_OK;
}

static sl_status list_replica(listing *in)
{
    if (in->rank == in->replicas->rank)
        in->to->own_first = in->to->part.count;
    for (int s = 0; s < sl_pipe_stages(in->replicas->pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(in->replicas->pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            SL_TRY(list_parameter(in, s, sl_parameter_set_get(set, i)));
    }
    return SL_OK;
}

static sl_status list_all(listing *in, uint64_t shard_bytes)
{
    sli_shards *to = in->to;
    char *text;
    for (in->rank = 0; in->rank < in->replicas->count; in->rank++)
        SL_TRY(list_replica(in));
    SL_TRY(sli_slices_print(in->cut, in->cut_count, &text));
    to->note = (sl_metadata){SLI_SLICES_KEY, text};
    to->part.items = to->items;
    to->part.metadata = &to->note;
    to->part.metadata_count = 1;
    return sli_checkpoint_plan_create(&to->part, to->owner_of, shard_bytes, &to->plan);
}

sl_status sli_shards_create(const sli_replica *replicas, const sli_update *update,
                            uint64_t shard_bytes, sli_shards **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return no_memory();
    (*out)->part.name = "optimizer";
    listing in = {.replicas = replicas, .update = update, .to = *out};
    sl_status status = list_all(&in, shard_bytes);
    for (size_t i = 0; i < in.cut_count; i++)
        free((char *)in.cut[i].name);
    free(in.cut);
    if (status != SL_OK)
        sli_shards_destroy(out);
    return status;
}

void sli_shards_destroy(sli_shards **shards)
{
    if (!shards || !*shards)
        return;
    sli_checkpoint_plan_clear(&(*shards)->plan);
    sli_tensors_clear(&(*shards)->own);
    for (size_t i = 0; i < (*shards)->part.count; i++)
        free((char *)(*shards)->items[i].name);
    free((*shards)->items);
    free((*shards)->owner_of);
    free((char *)(*shards)->note.value);
    free(*shards);
    *shards = NULL;
}

/* All elements are of one width: the plan has the items in the order of the list. */
void sli_shards_take_data(sli_shards *shards, const sli_copied *copy)
{
    assert(copy->count == shards->own.count);
    for (size_t i = 0; i < copy->count; i++) {
        sl_safetensors_item *item = &shards->plan.items[shards->own_first + i];
        assert(strcmp(item->name, copy->items[i].name) == 0);
        item->data = copy->items[i].data;
    }
}

size_t sli_shards_most_files(const sli_shards *shards, int replicas)
{
    size_t most = 0;
    for (int rank = 0; rank < replicas; rank++) {
        size_t count;
        sli_checkpoint_plan_first(&shards->plan, rank, &count);
        most = count > most ? count : most;
    }
    return most;
}
