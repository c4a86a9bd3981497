#include "train/plan/rounds.h"

#include "core/clock.h"
#include "core/error.h"

#include <stdlib.h>
#include <string.h>

/* Of rounds that agree. */
enum { FEWEST = 5 };
static const double closest = 0.03;

sl_status sli_rounds_add(sli_rounds *rounds, const double *values, size_t width)
{
    size_t used = (size_t)rounds->count * width;
    double *grown = realloc(rounds->values, (used + width) * sizeof *grown);
    if (!grown)
        return sli_no_memory(NULL, "%zu measurements", used + width);
    rounds->values = grown;
    rounds->width = width;
    memcpy(grown + used, values, width * sizeof *grown);
    rounds->count++;
    return SL_OK;
}

void sli_rounds_clear(sli_rounds *rounds)
{
    free(rounds->values);
    *rounds = (sli_rounds){0};
}

double sli_rounds_median(const sli_rounds *rounds, size_t index)
{
    double values[SLI_MOST_ROUNDS] = {0};
    for (int i = 0; i < rounds->count; i++)
        values[i] = rounds->values[(size_t)i * rounds->width + index];
    return sli_median_seconds(values, rounds->count);
}

double sli_rounds_spread(const sli_rounds *rounds)
{
    double sums[SLI_MOST_ROUNDS];
    int count = rounds->count, left_out = count / 4;
    for (int i = 0; i < count; i++) {
        sums[i] = 0;
        for (size_t k = 0; k < rounds->width; k++)
            sums[i] += rounds->values[(size_t)i * rounds->width + k];
    }
    if (count == 0)
        return 0;
    double median = sli_median_seconds(sums, count); /* which sorts them */
    return median > 0 ? (sums[count - 1 - left_out] - sums[left_out]) / median : 0;
}

bool sli_rounds_agree(const sli_rounds *rounds)
{
    return rounds->count == SLI_MOST_ROUNDS ||
           (rounds->count >= FEWEST && sli_rounds_spread(rounds) <= closest);
}
