#include "sluice/text.h"

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
                        .bptt = bptt,
                        .shard_columns = columns};
    return SL_OK;
}

static const int32_t *column_start(const sl_batches *batches, int64_t n)
{
    int64_t column = batches->skipped + n;
    return batches->tokens + column / batches->shard_columns * batches->column_length +
           (column % batches->shard_columns - batches->skipped) * batches->stride;
}

sl_status sl_batches_columns(const sl_batches *batches, int64_t first, int64_t columns,
                             sl_batches *out)
{
    sl_batches whole = *batches; /* `out` may be `batches` */
    if (first < 0 || columns < 1 || first > whole.columns - columns) {
        *out = (sl_batches){0};
        return sl_error(SL_ERR_INVALID,
                        "sl_batches_columns: asked for %lld columns from column %lld of %lld",
                        (long long)columns, (long long)first, (long long)whole.columns);
    }
    *out = whole;
    out->tokens = column_start(&whole, first);
    out->skipped = (whole.skipped + first) % whole.shard_columns;
    out->columns = columns;
    return SL_OK;
}

sl_status sl_batches_shards(const sl_batches *batches, int shards, sl_batches *out)
{
    sl_batches whole = *batches; /* `out` may be `batches` */
    *out = (sl_batches){0};
    if (shards < 1)
        return sl_error(SL_ERR_INVALID, "sl_batches_shards: asked for %d shards", shards);
    if (whole.skipped + whole.columns > whole.shard_columns)
        return sl_error(SL_ERR_INVALID,
                        "sl_batches_shards: these %lld columns are of several shards already",
                        (long long)whole.columns);
    int64_t length = whole.column_length / shards;
    if (length <= whole.bptt)
        return sl_error(SL_ERR_INVALID,
                        "%lld tokens a column in %d shards are %lld each, too "
                        "few for bptt %lld and one more as the last target",
                        (long long)whole.column_length, shards, (long long)length,
                        (long long)whole.bptt);
    *out = whole;
    out->columns = shards * whole.columns;
    out->column_length = length;
    out->shard_columns = whole.columns;
    out->skipped = 0;
    return SL_OK;
}

sl_status sl_batches_shard(const sl_batches *batches, int shard, int shards, sl_batches *out)
{
    sl_batches all;
    sl_status status = sl_batches_shards(batches, shards, &all);
    int64_t columns = all.shard_columns;
    if (status == SL_OK && (shard < 0 || shard >= shards))
        status =
            sl_error(SL_ERR_INVALID, "sl_batches_shard: asked for shard %d of %d", shard, shards);
    if (status == SL_OK)
        return sl_batches_columns(&all, shard * columns, columns, out);
    *out = (sl_batches){0};
    return status;
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
        const int32_t *from = column_start(batches, n) + index * batches->bptt;
        memcpy(inputs + n * length, from, row_bytes);
        if (targets)
            memcpy(targets + n * length, from + 1, row_bytes);
    }
    return SL_OK;
}
