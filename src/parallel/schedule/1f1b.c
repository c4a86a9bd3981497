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

static void write_rows(sl_schedule *out, sl_action_kind backward_kind)
{
    for (int rank = 0; rank < out->ranks; rank++) {
        int forward = 0, filling = out->ranks - 1 - rank;
        while (forward < filling && forward < out->micros)
            sli_schedule_append(out, rank, rank, SL_ACTION_FORWARD, forward++);
        for (int backward = 0; backward < out->micros; backward++) {
            if (forward < out->micros)
                sli_schedule_append(out, rank, rank, SL_ACTION_FORWARD, forward++);
            sli_schedule_append(out, rank, rank, backward_kind, backward);
        }
    }
}

sl_status sli_write_1f1b(const sli_writer_costs *costs, sl_schedule *out)
{
    (void)costs;
    write_rows(out, SL_ACTION_BACKWARD);
    return SL_OK;
}

/* ZB-H1: 1F1B whose backward is split (Qi et al., "Zero bubble pipeline parallelism", 2024).
 * Backwards for the input alone are what other ranks wait for; those for the weights fill the time
 * in which a rank would wait. For 3 ranks and 4 micro-batches, a clock for each action:
 *
 *     rank 0   0F0 0F1 0F2 ... ... 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
 *     rank 1   ... 1F0 1F1 ... 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
 *     rank 2   ... ... 2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
 *
 * No rank holds more micro-batches than rank 0 does under 1F1B; the bubble is a third. */
sl_status sli_write_zb_h1(const sli_writer_costs *costs, sl_schedule *out)
{
    write_rows(out, SL_ACTION_BACKWARD_INPUT);
    return sli_insert_weights(costs, out->ranks, out);
}
