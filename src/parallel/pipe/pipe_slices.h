/* Slices of micro-batches: how a step is cut into them, and what a stage keeps between them. */
#ifndef SLI_PARALLEL_PIPE_PIPE_SLICES_H
#define SLI_PARALLEL_PIPE_PIPE_SLICES_H

#include "parallel/pipe/pipe.h"

/* Whether the pipe's modules and devices can work on slices. Errors: SL_ERR_UNSUPPORTED. */
sl_status sli_pipe_check_slices(const sl_pipe *pipe);

/* Sets how many slices the micro-batches of a training step have, and the positions of its rows:
 * for the process of the first stage, which tells the others. Where a micro-batch has fewer
 * positions than the pipe has slices, 1. Errors: SL_ERR_INVALID for a batch that cannot be cut. */
sl_status sli_pipe_choose_slices(const sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step);

/* Makes a whole micro-batch, as it would be cut without slices, its slice `index` of the step's. */
void sli_micro_slice(const sli_step *step, int index, sli_micro *micro);

/* Prepares a forward of slice `micro`; does nothing in a step of whole micro-batches. */
sl_status sli_stage_begin_slice(sli_stage *stage, const sli_step *step, int micro, sl_pass *pass);

/* Frees what the stage keeps for the slices of a micro-batch, when the last of them that needs it
 * has gone backward, or forward in a stage that never goes backward. */
void sli_stage_end_slice(sli_stage *stage, const sli_step *step, int micro);

#endif
