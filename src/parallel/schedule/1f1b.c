/* 1F1B (PipeDream-flush): once the pipe is full, every rank does one forward and one backward in
 * turn, so that activations are given back as early as they can be (Narayanan et al.,
 * "Memory-efficient pipeline-parallel DNN training", 2021). For 3 ranks and 4 micro-batches, a
 * clock for each action:
 *
 *     rank 0   0F0 0F1 0F2 ... ... 0B0 0F3 0B1 ... 0B2 ... 0B3
 *     rank 1   ... 1F0 1F1 ... 1B0 1F2 1B1 1F3 1B2 ... 1B3 ...
 *     rank 2   ... ... 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 ... ...
 *
 * Rank r first fills the pipe behind it: min(ranks - 1 - r, micros) forwards. Then it alternates,
 * and at last it drains. It holds at most min(ranks - r, micros) micro-batches, where GPipe holds
 * all; the bubble is GPipe's. */
#include "parallel/schedule/writers.h"

sl_status sli_write_1f1b(const sli_writer_costs *costs, sl_schedule *out)
{
    (void)costs;
    for (int rank = 0; rank < out->ranks; rank++) {
        int forward = 0, filling = out->ranks - 1 - rank;
        while (forward < filling && forward < out->micros)
            sli_schedule_append(out, rank, rank, SL_ACTION_FORWARD, forward++);
        for (int backward = 0; backward < out->micros; backward++) {
            if (forward < out->micros)
                sli_schedule_append(out, rank, rank, SL_ACTION_FORWARD, forward++);
            sli_schedule_append(out, rank, rank, SL_ACTION_BACKWARD, backward);
        }
    }
    return SL_OK;
}
