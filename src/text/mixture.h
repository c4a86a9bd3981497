/* Which source each sample of a mixture comes from. */
#ifndef SLI_TEXT_MIXTURE_H
#define SLI_TEXT_MIXTURE_H

#include "sluice/app/text.h"

/* A function of the sample's number alone: nothing is stored, and nothing is replayed. Of the first
 * n samples a source with the share w of the weights has w * n, to within half the height of a
 * binary tree over the sources: half a sample of two sources, one of four. So any window of samples
 * has the shares to within twice that. */
typedef struct sli_mixture {
    int count;
    double shares[SL_MAX_SOURCES];     /* [count] whose sum is 1 */
    uint64_t ends[SL_MAX_SOURCES + 1]; /* [count + 1] sums of the weights, in whole numbers */
} sli_mixture;

/* `weights` [count] are above 0. A share below 2^-31 is taken as 2^-31. */
void sli_mixture_create(const double *weights, int count, sli_mixture *out);

/* The source of sample number `sample`, and how many samples of that source come before it. */
void sli_mixture_find(const sli_mixture *mixture, int64_t sample, int *source, int64_t *number);

/* How many of the first `samples` come from a source. */
int64_t sli_mixture_count(const sli_mixture *mixture, int source, int64_t samples);

#endif
