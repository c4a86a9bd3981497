/* What a call of a pipe runs: the accumulation steps of a batch. */
#ifndef SLI_PARALLEL_PIPE_PIPE_STEP_H
#define SLI_PARALLEL_PIPE_PIPE_STEP_H

#include "parallel/pipe/step.h"
#include "sluice/pipe.h"

/* What can be said of the arguments before the rows are known everywhere. */
sl_status sli_pipe_check_batch(const char *who, const sl_pipe *pipe, const sl_pipe_batch *batch,
                               bool has_loss);

/* Runs a step of which `who`, `backward`, `training`, `loss`, `scale` and `observers` are set, with
 * `status` of what was done before: every process calls it, also after an error. On success, what
 * came out is the caller's: step->output or step->row_losses. */
sl_status sli_pipe_run_step(sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step,
                            sl_status status);

/* The same with the pipe's loss, whose sum and number of terms every process gets. */
sl_status sli_pipe_run_with_loss(sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step,
                                 sl_status status, double *sum, int64_t *terms);

#endif
