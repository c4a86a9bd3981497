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
 * all; the bubble is GPipe's.
 *
 * With slices it is Seq1F1B (Sun et al., "Seq1F1B", 2024): the unit is a slice, and since the last
 * slice of a micro-batch goes backward first, the last rank fills with the others. For 2 ranks and
 * 2 micro-batches of 2 slices:
 *
 *     rank 0   0F0.0 0F0.1 0F1.0 ..... 0B0.1 0F1.1 0B0.0 ..... 0B1.1 0B1.0
 *     rank 1   ..... 1F0.0 1F0.1 1B0.1 1F1.0 1B0.0 1F1.1 1B1.1 1B1.0 .....
 *
 * Rank r holds at most ranks - r + slices - 1 slices; the bubble is as if slices were
 * micro-batches.
 */
#include "parallel/schedule/writers.h"

/* The number of the slice, or micro-batch, that goes forward as number `index`. */
static int forward_number(const sl_schedule *table, int index)
{
    return sli_slice_number(index / table->slices, index % table->slices, table->slices);
}

sl_status sli_write_1f1b(const sli_writer_costs *costs, sl_schedule *out)
{
    (void)costs;
    for (int rank = 0; rank < out->ranks; rank++) {
        int forward = 0, filling = out->ranks - 1 - rank + out->slices - 1;
        while (forward < filling && forward < out->micros)
            sli_schedule_append(out, rank, rank, SL_ACTION_FORWARD, forward_number(out, forward++));
        for (int backward = 0; backward < out->micros; backward++) {
            if (forward < out->micros)
                sli_schedule_append(out, rank, rank, SL_ACTION_FORWARD,
                                    forward_number(out, forward++));
            sli_schedule_append(out, rank, rank, SL_ACTION_BACKWARD, backward);
        }
    }
    return SL_OK;
}

int sli_fill_1f1b(const sli_filled_row *filled, int k)
{
    int forwards = filled->ranks - filled->rank;
    (void)k;
    return forwards < filled->micros ? forwards : filled->micros;
}
