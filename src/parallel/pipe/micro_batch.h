/* The micro-batches that a batch is cut into. */
#ifndef SLI_PARALLEL_PIPE_MICRO_BATCH_H
#define SLI_PARALLEL_PIPE_MICRO_BATCH_H

#include "sluice/tensor.h"

/* The rows of micro-batch `micro` of a batch that is cut into `batch_micros`. */
sl_status sli_micro_rows(const sl_tensor *batch, int batch_micros, int micro, sl_tensor **out);

#endif
