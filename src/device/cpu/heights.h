/* How many rows a panel is multiplied with, so that a row's bits do not depend on the others.
 *
 * A library's kernels may add in another order where a panel has another number of rows, or in its
 * last rows. So each height is tried before it is used: rows that are all alike must give in each
 * place the bits that a dense panel of SLI_REFERENCE_ROWS gives. Which instructions work on an
 * element depends on its place and on the shape, not on values. A panel gets the next height that
 * passes, and its rows beyond the last are zeros. The answer is kept for each shape of product and
 * number of rows, of the last SLI_HEIGHT_ENTRIES. */
#ifndef SLI_DEVICE_CPU_HEIGHTS_H
#define SLI_DEVICE_CPU_HEIGHTS_H

#include "core/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { SLI_REFERENCE_ROWS = 24, SLI_HEIGHT_ENTRIES = 512 };

/* All that a library may choose its kernel by, beside the height. */
typedef struct sli_height_shape {
    int64_t n, k, lda, ldb, ldc;
    int64_t kind; /* the caller's, for all else */
} sli_height_shape;

typedef struct sli_height {
    int64_t rows;   /* that are multiplied */
    bool is_copied; /* to dense memory, and so is the panel of c: in any case if there are rows of
                       zeros; else they are multiplied where they are */
} sli_height;

typedef struct sli_height_entry {
    sli_height_shape shape;
    int64_t rows; /* 0: a free entry */
    sli_height height;
} sli_height_entry;

typedef struct sli_heights {
    pthread_mutex_t lock; /* guards all, also during trials */
    int next;             /* the entry that is replaced next */
    sli_height_entry entries[SLI_HEIGHT_ENTRIES];
} sli_heights;

/* Whether all rows have the bits of the reference: SLI_REFERENCE_ROWS that are copied. A search
 * begins with the trial of this one, which tells whether its rows are alike. */
typedef sl_status (*sli_height_trial)(void *context, sli_height height, bool *passes);

void sli_heights_init(sli_heights *heights);
void sli_heights_clear(sli_heights *heights);

/* The lowest height from `rows` on that passes. Where none of the next does, *out is the reference,
 * and 1 row where not even that passes: a panel of more rows than *out has is to be cut. Errors:
 * those of the trial. Any thread may call. */
sl_status sli_heights_find(sli_heights *heights, const sli_height_shape *shape, int64_t rows,
                           sli_height_trial trial, void *context, sli_height *out);

#endif
