/* GPipe: all micro-batches forward, then all backward (Huang et al., "GPipe", 2019). For 2 ranks
 * and 3 micro-batches, a clock for each action:
 *
 *     rank 0   0F2 0F1 0F0 ... ... 0B0 0B1 0B2
 *     rank 1   ... 1F2 1F1 1F0 1B0 1B1 1B2 ...
 *
 * Backward begins with the micro-batch that ran forward last, and backwards ascend; so forward runs
 * from the last micro-batch to the first. The dots are the bubble: (ranks - 1) / (micros + ranks -
 * 1) of the time. At the turn every rank holds all micro-batches.
 *
 * Slices are numbered as they go backward, so the same loops write a table of slices. */
#include "parallel/schedule/writers.h"

sl_status sli_write_gpipe(const sli_writer_costs *costs, sl_schedule *out)
{
    (void)costs;
    for (int rank = 0; rank < out->ranks; rank++) {
        for (int micro = out->micros - 1; micro >= 0; micro--)
            sli_schedule_append(out, rank, rank, SL_ACTION_FORWARD, micro);
        for (int micro = 0; micro < out->micros; micro++)
            sli_schedule_append(out, rank, rank, SL_ACTION_BACKWARD, micro);
    }
    return SL_OK;
}
