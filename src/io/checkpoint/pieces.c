#include "io/checkpoint/pieces.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What one file has of a tensor: the whole, or a slice. */
typedef struct piece {
    const char *tensor;
    uint64_t offset; /* in the tensor */
    const sl_safetensors_reader *file;
    const sl_safetensors_info *info;
} piece;

struct sli_checkpoint_pieces {
    size_t count;
    piece of[]; /* [count], by tensor and offset */
};

static int compare(const void *a, const void *b)
{
    const piece *left = a, *right = b;
    int order = strcmp(left->tensor, right->tensor);
    return order ? order : (left->offset > right->offset) - (left->offset < right->offset);
}

static void list_file(const sl_checkpoint_reader *reader, size_t file, sli_checkpoint_pieces *to)
{
    const sl_safetensors_reader *shard = reader->shards[file];
    for (size_t i = 0; i < sl_safetensors_count(shard); i++) {
        const sli_checkpoint_place *place = &reader->places[file][i];
        to->of[to->count++] = (piece){reader->tensors[place->tensor].info.name, place->offset,
                                      shard, sl_safetensors_get(shard, i)};
    }
}

sl_status sli_checkpoint_pieces_create(const sl_checkpoint_reader *reader, const char *part,
                                       sli_checkpoint_pieces **out)
{
    size_t count = 0;
    for (size_t i = 0; i < reader->state.count; i++)
        if (sli_checkpoint_is_shard(reader, i, part))
            count += sl_safetensors_count(reader->shards[i]);
    *out = calloc(1, sizeof **out + count * sizeof(piece));
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", count);
    for (size_t i = 0; i < reader->state.count; i++)
        if (sli_checkpoint_is_shard(reader, i, part))
            list_file(reader, i, *out);
    qsort((*out)->of, count, sizeof(piece), compare);
    return SL_OK;
}

void sli_checkpoint_pieces_destroy(sli_checkpoint_pieces **pieces)
{
    free(*pieces);
    *pieces = NULL;
}

/* The first piece of the tensor. */
static size_t find(const sli_checkpoint_pieces *in, const char *tensor)
{
    size_t low = 0, high = in->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(in->of[middle].tensor, tensor) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

sl_status sli_checkpoint_pieces_read(const sli_checkpoint_pieces *pieces, const char *tensor,
                                     void *to)
{
    size_t at = find(pieces, tensor);
    assert(at < pieces->count && strcmp(pieces->of[at].tensor, tensor) == 0);
    for (; at < pieces->count && strcmp(pieces->of[at].tensor, tensor) == 0; at++) {
        const piece *next = &pieces->of[at];
        SL_TRY(sl_safetensors_read(next->file, next->info, (char *)to + next->offset));
    }
    return SL_OK;
}
