/* 1F1B (PipeDream-flush): once the pipe is full, every stage does one forward, one backward, in
 * turn, so that a stage's activations are given back as early as they can be. For 3 stages,
 * 4 micro-batches and no checkpointing:
 *
 *     stage 0   F3 F2 F1 .. .. B3 F0 B2 .. B1 .. B0
 *     stage 1   .. F3 F2 .. B3 F1 B2 F0 B1 .. B0 ..
 *     stage 2   .. .. F3 B3 F2 B2 F1 B1 F0 B0 .. ..
 *
 * Stage s first fills the pipe behind it: min(stages - 1 - s, micros) forwards, one for each stage
 * between it and the end. Then it alternates, and at last it drains. It holds at most
 * min(stages - s, micros) micro-batches at once, where GPipe holds all; the bubble is GPipe's.
 *
 * The forwards run from the last micro-batch to the first, because a schedule here sends them
 * backward in that order: gradients are then added in GPipe's order, and so are the same bits. */
#include "parallel/schedule_table.h"

sl_status sl_schedule_1f1b(int stages, int micros, sl_recompute recompute, sl_schedule **out)
{
    *out = NULL;
    SL_TRY(sli_schedule_check_size("sl_schedule_1f1b", stages, micros));
    SL_TRY(sli_schedule_allocate("sl_schedule_1f1b", stages, micros,
                                 stages * micros * SLI_ACTIONS_PER_MICRO, out));
    for (int stage = 0; stage < stages; stage++) {
        int filling = stages - 1 - stage < micros ? stages - 1 - stage : micros;
        int forward = micros - 1;
        for (int i = 0; i < filling; i++)
            sli_schedule_append_forward(*out, stage, recompute, forward--);
        for (int backward = micros - 1; backward >= 0; backward--) {
            if (forward >= 0)
                sli_schedule_append_forward(*out, stage, recompute, forward--);
            sli_schedule_append_backward(*out, stage, recompute, backward);
        }
    }
    return SL_OK;
}
