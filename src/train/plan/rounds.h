/* Measurements of the same numbers at different times: what a machine that does other work
 * meanwhile takes is known by the middle of several rounds, and how well by how far these are
 * apart. */
#ifndef SLI_TRAIN_PLAN_ROUNDS_H
#define SLI_TRAIN_PLAN_ROUNDS_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stddef.h>

/* More say no more. */
enum { SLI_MOST_ROUNDS = 64 };

/* Begins with zeros. */
typedef struct sli_rounds {
    size_t width;   /* numbers of a round */
    int count;      /* of rounds, at most SLI_MOST_ROUNDS */
    double *values; /* [count][width] */
} sli_rounds;

/* Adds a round of values[width]; all rounds have the same width. There is room for it. */
sl_status sli_rounds_add(sli_rounds *rounds, const double *values, size_t width);
void sli_rounds_clear(sli_rounds *rounds);

/* The median of number `index`; of an even count the mean of the middle two. There is a round. */
double sli_rounds_median(const sli_rounds *rounds, size_t index);

/* How far the middle half of the rounds is apart, each the sum of its numbers, as a fraction of
 * their median: of 4n ... 4n + 3 rounds without the n lowest and the n highest. 0 for one round. */
double sli_rounds_spread(const sli_rounds *rounds);

/* Whether there are enough rounds, whose middle half is close together. */
bool sli_rounds_agree(const sli_rounds *rounds);

#endif
