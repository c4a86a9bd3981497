/* Skip connections between a pipe's stages. */
#ifndef SLI_PARALLEL_PIPE_PIPE_SKIP_H
#define SLI_PARALLEL_PIPE_PIPE_SKIP_H

#include "parallel/pipe/stage.h"
#include "sluice/pipe.h"

/* Checks the skip connections that the model's modules declare, and leaves in pipe->skips those
 * between two stages, when the stages have their modules. */
sl_status sli_pipe_find_skips(sl_pipe *pipe);

/* Waits for the skips' tensors or gradients that the action needs; false when there is an error
 * whose number is `number` or lower. */
bool sli_stage_receive_skips(const sli_stage *stage, sl_action action, int number);

/* Copies what was received to the stage's device, where that is needed. */
sl_status sli_stage_copy_skips(const sli_stage *stage, sl_action action);

/* Sends on what came out of the action. */
void sli_stage_send_skips(const sli_stage *stage, sl_action action);

/* Before a forward: puts the tensors that arrived on the pass; `again`: aliases of them, since the
 * record keeps them for a recomputation. After it: moves those for other stages to the record. */
sl_status sli_stage_give_skips(const sli_stage *stage, int micro, sl_pass *pass, bool again);
sl_status sli_stage_take_skips(const sli_stage *stage, int micro, sl_pass *pass);

/* After a recomputation: frees these, since the first forward has sent them. */
void sli_stage_drop_skips(const sli_stage *stage, int micro);

/* The same for gradients, before and after a backward. */
void sli_stage_give_skip_grads(const sli_stage *stage, int micro);
sl_status sli_stage_take_skip_grads(const sli_stage *stage, int micro);

#endif
