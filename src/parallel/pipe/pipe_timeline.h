/* The timeline of a pipe's last training step. */
#ifndef SLI_PARALLEL_PIPE_PIPE_TIMELINE_H
#define SLI_PARALLEL_PIPE_PIPE_TIMELINE_H

#include "sluice/pipe.h"

/* The timelines of all ranks, in the table's order and on one clock, on every rank of the group;
 * the caller frees it. By the clocks' error, an action may seem to start up to *clock_error
 * seconds before a result that it needs. Every rank calls it with its `status`, and gets the first
 * rank's error. */
sl_status sli_pipe_gather_timeline(const sl_pipe *pipe, sl_status status, sl_timeline_entry **out,
                                   int *count, double *clock_error);

#endif
