#include "sluice/app/text.h"

#include <string.h>

sl_status sl_batchify(const int32_t *tokens, int64_t count, int64_t columns, int64_t bptt,
                      sl_batches *out)
{
    *out = (sl_batches){0};
    if (columns < 1 || bptt < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_batchify: columns and bptt must be at least 1, got %lld and %lld",
                        (long long)columns, (long long)bptt);
    int64_t length = count / columns;
    if (length <= bptt)
        return sl_error(SL_ERR_INVALID,
                        "%lld tokens in %lld columns are %lld a column, too few for "
                        "bptt %lld and one more as the last target",
                        (long long)count, (long long)columns, (long long)length, (long long)bptt);
    *out = (sl_batches){.tokens = tokens,
                        .columns = columns,
                        .column_length = length,
                        .stride = length,
                        .bptt = bptt};
    return SL_OK;
}

sl_status sl_batches_shard(const sl_batches *batches, int shard, int shards, sl_batches *out)
{
    sl_batches whole = *batches; /* `out` may be `batches` */
    *out = (sl_batches){0};
    if (shard < 0 || shard >= shards)
        return sl_error(SL_ERR_INVALID, "sl_batches_shard: asked for shard %d of %d", shard,
                        shards);
    int64_t length = whole.column_length / shards;
    if (length <= whole.bptt)
        return sl_error(SL_ERR_INVALID,
                        "%lld tokens a column in %d shards are %lld each, too few for bptt %lld "
                        "and one more as the last target",
                        (long long)whole.column_length, shards, (long long)length,
                        (long long)whole.bptt);
    *out = whole;
    out->tokens += shard * length;
    out->column_length = length;
    return SL_OK;
}

/* A column's last token is a target only. */
int64_t sl_batches_count(const sl_batches *batches)
{
    return (batches->column_length - 1 + batches->bptt - 1) / batches->bptt;
}

int64_t sl_batches_block_length(const sl_batches *batches, int64_t index)
{
    int64_t left = batches->column_length - 1 - index * batches->bptt;
    return left < batches->bptt ? left : batches->bptt;
}

sl_status sl_batches_block(const sl_batches *batches, int64_t index, int32_t *inputs,
                           int32_t *targets)
{
    if (index < 0 || index >= sl_batches_count(batches))
        return sl_error(SL_ERR_INVALID, "sl_batches_block: asked for block %lld of %lld",
                        (long long)index, (long long)sl_batches_count(batches));
    int64_t length = sl_batches_block_length(batches, index);
    size_t row_bytes = (size_t)length * sizeof *inputs;
    for (int64_t n = 0; n < batches->columns; n++) {
        const int32_t *from = batches->tokens + n * batches->stride + index * batches->bptt;
        memcpy(inputs + n * length, from, row_bytes);
        if (targets)
            memcpy(targets + n * length, from + 1, row_bytes);
    }
    return SL_OK;
}
