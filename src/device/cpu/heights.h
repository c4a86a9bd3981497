/* How many rows a panel is multiplied with, so that a row's bits do not depend on the others.
 *
 * A library's kernels may add in another order where a panel has another number of rows, or in its
 * last rows. So each height is tried before it is used, once for each shape of product: rows that
 * are all alike must give in each place the bits that a panel of SLI_HEIGHT rows gives. Which
 * instructions work on an element depends on its place and on the shape, not on values. A panel
 * gets the next height that passes, and its rows beyond the last are zeros. */
#ifndef SLI_DEVICE_CPU_HEIGHTS_H
#define SLI_DEVICE_CPU_HEIGHTS_H

#include "core/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { SLI_HEIGHT = 24, SLI_HEIGHTS = 512 };

/* All that a library may choose its kernel by, beside the height. */
typedef struct sli_height_shape {
    int64_t n, k, lda, ldb, ldc;
    int64_t kind; /* the caller's, for all else */
} sli_height_shape;

typedef struct sli_height_entry {
    sli_height_shape shape;
    int64_t rows, height; /* rows 0: a free entry */
} sli_height_entry;

typedef struct sli_heights {
    pthread_mutex_t lock; /* guards all, also during trials */
    int next;             /* the entry that is replaced next */
    sli_height_entry entries[SLI_HEIGHTS];
} sli_heights;

/* Whether all of `height` rows have the bits of a panel of SLI_HEIGHT, multiplied for a panel of
 * `rows`. */
typedef sl_status (*sli_height_trial)(void *context, int64_t rows, int64_t height, bool *passes);

void sli_heights_init(sli_heights *heights);
void sli_heights_clear(sli_heights *heights);

/* The lowest height from `rows` on that passes. Where none of the next does, *out is SLI_HEIGHT,
 * and 1 where not even that passes: a panel of more rows than *out is to be cut. Errors: those of
 * the trial. Any thread may call. */
sl_status sli_heights_find(sli_heights *heights, const sli_height_shape *shape, int64_t rows,
                           sli_height_trial trial, void *context, int64_t *out);

#endif
