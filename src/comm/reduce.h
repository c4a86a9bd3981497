/* Combining elements of several buffers, in the order of the buffers. */
#ifndef SLI_COMM_REDUCE_H
#define SLI_COMM_REDUCE_H

#include "sluice/group.h"

/* out[i] = op over sources[0][i], sources[1][i], …, for elements start … start + count - 1 (of the
 * sources; `out` begins with element `start`). `out` may be one of the sources at that place. bf16
 * is added up in f32 and rounded once, to nearest even; an average is the sum times 1 / sources. */
void sli_reduce(sl_dtype dtype, sl_reduce_op op, const void *const *sources, int source_count,
                int64_t start, int64_t count, void *out);

#endif
