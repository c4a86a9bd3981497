/* ZB-H1: 1F1B whose backward is split (Qi et al., "Zero bubble pipeline parallelism", 2024).
 * Backwards for the input alone are what other ranks wait for; those for the weights fill the time
 * in which a rank would wait. For 3 ranks and 4 micro-batches, a clock for each action:
 *
 *     rank 0   0F0 0F1 0F2 ... ... 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
 *     rank 1   ... 1F0 1F1 ... 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
 *     rank 2   ... ... 2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
 *
 * No rank holds more micro-batches, or slices, than rank 0 does under 1F1B; the bubble is a third.
 */
#include "parallel/schedule/writers.h"

sl_status sli_write_zb_h1(const sli_writer_costs *costs, sl_schedule *out)
{
    SL_TRY(sli_write_1f1b(costs, out));
    for (size_t i = 0; i < out->count; i++)
        if (out->actions[i].kind == SL_ACTION_BACKWARD)
            out->actions[i].kind = SL_ACTION_BACKWARD_INPUT;
    return sli_insert_weights(costs, out->ranks + out->slices - 1, out);
}
