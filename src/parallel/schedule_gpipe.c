/* GPipe: all micro-batches forward, then all backward, in the reverse order.
 *
 * torchgpipe sees it as clock cycles: at clock k, every stage s works on micro-batch k - s. For
 * 2 stages, 3 micro-batches and no checkpointing:
 *
 *     stage 0   F0 F1 F2 .. .. B2 B1 B0
 *     stage 1   .. F0 F1 F2 B2 B1 B0 ..
 *
 * The table holds no clocks: each stage has its row, and waits only for what an action needs. The
 * dots are the bubble: (stages - 1) / (micros + stages - 1) of the time when all actions take
 * equally long. At the turn every stage holds all micro-batches: their activations without
 * checkpointing; with it their inputs, and the activations of one. Under except_last that is the
 * last one first, whose backward follows its forward:
 *
 *     stage 0   f0 f1 F2 .. .. B2 R1 B1 R0 B0
 *     stage 1   .. f0 f1 F2 B2 R1 B1 R0 B0 .. */
#include "parallel/schedule_table.h"

sl_status sl_schedule_gpipe(int stages, int micros, sl_recompute recompute, sl_schedule **out)
{
    *out = NULL;
    SL_TRY(sli_schedule_check_size("sl_schedule_gpipe", stages, micros));
    SL_TRY(sli_schedule_allocate("sl_schedule_gpipe", stages, micros,
                                 stages * micros * SLI_ACTIONS_PER_MICRO, out));
    for (int stage = 0; stage < stages; stage++) {
        for (int micro = 0; micro < micros; micro++)
            sli_schedule_append_forward(*out, stage, recompute, micro);
        for (int micro = micros - 1; micro >= 0; micro--)
            sli_schedule_append_backward(*out, stage, recompute, micro);
    }
    return SL_OK;
}
