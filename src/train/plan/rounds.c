#include "train/plan/rounds.h"

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

static int compare_numbers(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double middle_of(const double *sorted, int count)
{
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

double sli_rounds_median(const sli_rounds *rounds, size_t index)
{
    double sorted[SLI_MOST_ROUNDS] = {0};
    int count = rounds->count;
    for (int i = 0; i < count; i++)
        sorted[i] = rounds->values[(size_t)i * rounds->width + index];
    qsort(sorted, (size_t)count, sizeof *sorted, compare_numbers);
    return middle_of(sorted, count);
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
    qsort(sums, (size_t)count, sizeof *sums, compare_numbers);
    double median = middle_of(sums, count);
    return median > 0 ? (sums[count - 1 - left_out] - sums[left_out]) / median : 0;
}

bool sli_rounds_agree(const sli_rounds *rounds)
{
    return rounds->count == SLI_MOST_ROUNDS ||
           (rounds->count >= FEWEST && sli_rounds_spread(rounds) <= closest);
}
