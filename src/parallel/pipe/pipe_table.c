/* The tables of a pipe: what its writer writes, or those of the caller's table, for each purpose
 * and number of micro-batches. */
#include "parallel/pipe/pipe_table.h"

#include "core/error.h"
#include "parallel/pipe/pipe.h"
#include "parallel/schedule/table.h"

#include <stdlib.h>

sl_status sli_pipe_check_table(const sl_pipe *pipe, const sl_schedule *table, const int *placement,
                               int micros)
{
    int ranks = sl_schedule_ranks(table), stages = sl_schedule_stages(table);
    int has = sl_schedule_micros(table);
    bool is_long_enough = pipe->is_given ? has >= micros : has == micros;
    if (ranks != pipe->rank_count || stages != pipe->stage_count || !is_long_enough)
        return sl_error(SL_ERR_INVALID,
                        "the table has %d rank%s, %d stage%s and %d micro-batches, the pipe needs "
                        "%d, %d and %d",
                        ranks, ranks == 1 ? "" : "s", stages, stages == 1 ? "" : "s", has,
                        pipe->rank_count, pipe->stage_count, micros);
    if (sl_schedule_slices(table) != pipe->slices)
        return sl_error(SL_ERR_INVALID, "the table has %d slices of a micro-batch, not %d",
                        sl_schedule_slices(table), pipe->slices);
    if (pipe->loss && !pipe->inference && !sli_schedule_goes_backward(table))
        return sl_error(SL_ERR_INVALID, "the table never goes backward");
    if (table->splits_head && !pipe->head_blocks)
        return sl_error(SL_ERR_INVALID, "the table splits the head, but the pipe does not");
    return sli_schedule_check_placement(table, "the table", placement);
}

sl_status sli_pipe_write_order(const sl_pipe *pipe, const int *placement, int micros,
                               sl_schedule **out)
{
    sl_schedule_options wanted = {.ranks = pipe->rank_count,
                                  .virtual_stages = pipe->stage_count / pipe->rank_count,
                                  .placement = placement,
                                  .micros = micros,
                                  .slices = pipe->slices};
    *out = NULL;
    SL_TRY(pipe->writer ? pipe->writer(pipe->writer_context, &wanted, out)
                        : sl_schedule_write(pipe->schedule, &wanted, out));
    if (!*out)
        return sl_error(SL_ERR_INVALID, "the writer gave no table, and reported no error");
    sl_status status = sli_pipe_check_table(pipe, *out, placement, micros);
    if (status != SL_OK)
        sl_schedule_destroy(out);
    return status;
}

/* The order of computation for `micros` micro-batches. */
static sl_status write_order(const sl_pipe *pipe, int micros, sl_schedule **out)
{
    if (pipe->is_given || micros == pipe->chunks)
        return sl_schedule_first_micros(pipe->order, micros, out);
    return sli_pipe_write_order(pipe, sl_schedule_placement(pipe->order), micros, out);
}

static sl_status write_table(const sl_pipe *pipe, sli_table_kind kind, int micros, sli_table *out)
{
    if (kind == SLI_TABLE_FORWARD)
        SL_TRY(sli_schedule_forward_only(
            &(sl_schedule_options){.ranks = pipe->rank_count,
                                   .virtual_stages = pipe->stage_count / pipe->rank_count,
                                   .placement = sl_schedule_placement(pipe->order),
                                   .micros = micros},
            &out->schedule));
    else
        SL_TRY(write_order(pipe, micros, &out->schedule));
    if (kind == SLI_TABLE_WHOLE || kind == SLI_TABLE_GRADIENT)
        SL_TRY(sli_schedule_join_slices(out->schedule));
    if (kind != SLI_TABLE_FORWARD)
        SL_TRY(sl_schedule_freeze(out->schedule, pipe->backward));
    if (kind == SLI_TABLE_TRAINING || kind == SLI_TABLE_WHOLE)
        SL_TRY(sl_schedule_recompute(out->schedule, pipe->recompute));
    if (kind != SLI_TABLE_FORWARD && pipe->head_blocks > 0)
        SL_TRY(sl_schedule_split_head(out->schedule, sl_partition_head(pipe->model)));
    SL_TRY(sl_schedule_validate(out->schedule));
    return sli_schedule_order(out->schedule, &out->order);
}

sl_status sli_pipe_find_table(sl_pipe *pipe, sli_table_kind kind, int micros, const sli_table **out)
{
    sli_table *table = pipe->tables[kind] + micros - 1;
    *out = table;
    if (table->order)
        return SL_OK;
    sl_status status = write_table(pipe, kind, micros, table);
    if (status != SL_OK)
        sl_schedule_destroy(&table->schedule);
    return status;
}

void sli_tables_destroy(sli_table *tables, int count)
{
    for (int i = 0; tables && i < count; i++) {
        sl_schedule_destroy(&tables[i].schedule);
        free(tables[i].order);
    }
    free(tables);
}
