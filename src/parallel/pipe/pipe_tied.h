/* Tied parameters of a pipe's stages. */
#ifndef SLI_PARALLEL_PIPE_PIPE_TIED_H
#define SLI_PARALLEL_PIPE_PIPE_TIED_H

#include "sluice/pipe.h"

/* Finds tied parameters, and refuses those of devices that do not share memory. */
sl_status sli_pipe_check_ties(sl_pipe *pipe);

/* Gives tied parameters to the stages that use them, when all sets of this process have been
 * created: their owners' tensors, or copies of those of another process. */
sl_status sli_pipe_place_tied(sl_pipe *pipe);
void sli_pipe_destroy_tied(sl_pipe *pipe); /* the copies */
void sli_pipe_zero_tied(sl_pipe *pipe);    /* their gradients */

/* Gives the copies their owners' values. Every process calls it. */
sl_status sli_pipe_exchange_tied(sl_pipe *pipe);

/* Sums the gradients of tied parameters, when no action runs any more. */
sl_status sli_pipe_sum_tied(sl_pipe *pipe);

#endif
