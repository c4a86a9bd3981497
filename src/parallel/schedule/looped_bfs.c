/* Looped breadth first: GPipe with several stages a rank (Lamy-Poirier, "Breadth-first pipeline
 * parallelism", 2022). A rank runs all micro-batches through its first stage, then through its
 * second, and backward the other way round. For 2 ranks of 2 stages and 2 micro-batches:
 *
 *     rank 0   0F1 0F0 2F1 2F0 ... ... 2B0 2B1 0B0 0B1
 *     rank 1   ... 1F1 1F0 3F1 3F0 3B0 3B1 1B0 1B1 ...
 *
 * Rows hold for any placement: each stage needs only stages before it. */
#include "parallel/schedule/writers.h"

#include <stdlib.h>

/* `own`: the rank's `count` stages. */
static void write_row(sl_schedule *out, int rank, const int *own, int count)
{
    for (int i = 0; i < count; i++)
        for (int micro = out->micros - 1; micro >= 0; micro--)
            sli_schedule_append(out, rank, own[i], SL_ACTION_FORWARD, micro);
    for (int i = count - 1; i >= 0; i--)
        for (int micro = 0; micro < out->micros; micro++)
            sli_schedule_append(out, rank, own[i], SL_ACTION_BACKWARD, micro);
}

sl_status sli_write_looped_bfs(const sli_writer_costs *costs, sl_schedule *out)
{
    (void)costs;
    int *stages, each = out->stages / out->ranks;
    SL_TRY(sli_schedule_rank_stages(out, &stages));
    for (int rank = 0; rank < out->ranks; rank++)
        write_row(out, rank, stages + rank * each, each);
    free(stages);
    return SL_OK;
}
