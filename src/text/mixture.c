/* Mixing by halves. The sources are the leaves of a binary tree. At each node, of its first n
 * samples the nearest whole number to n * (weight of the left half) / (weight of both) go left, and
 * the others right:
 *
 *     samples of all       0 1 2 3 4 5 6 7 8 9        weights a 0.5, b 0.2, c 0.3
 *     left (a, b)          0 . 1 2 3 . 4 5 . 6        round(0.7 n) come before sample n
 *     right (c)            . 0 . . . 1 . . 2 .        the others
 *
 * so that a sample's number at a node gives its number at the next one, and at last within its
 * source. The nearest number is wrong by half a sample at most, at each node.
 *
 * Megatron's blended data sets choose the source that is furthest behind its share, which keeps the
 * shares as well but must be replayed from the first sample on. */
#include "text/mixture.h"

static const double WHOLE = 0x1p31; /* products of two numbers up to it stay within 63 bits */

void sli_mixture_create(const double *weights, int count, sli_mixture *out)
{
    double sum = 0, largest = 0; /* by which all are divided: no sum is infinite, or 0 */
    *out = (sli_mixture){.count = count};
    for (int i = 0; i < count; i++)
        largest = weights[i] > largest ? weights[i] : largest;
    for (int i = 0; i < count; i++)
        sum += weights[i] / largest;
    for (int i = 0; i < count; i++) {
        out->shares[i] = weights[i] / largest / sum;
        uint64_t share = (uint64_t)(out->shares[i] * WHOLE + 0.5);
        out->ends[i + 1] = out->ends[i] + (share > 0 ? share : 1);
    }
}

/* How many of a node's first `samples` go left, of sources first … middle - 1 and middle … end - 1.
 */
static int64_t count_left(const sli_mixture *mixture, int first, int middle, int end,
                          int64_t samples)
{
    const uint64_t *ends = mixture->ends, all = ends[end] - ends[first];
    uint64_t left = ends[middle] - ends[first], count = (uint64_t)samples;
    return (int64_t)(count / all * left + (count % all * left + all / 2) / all);
}

void sli_mixture_find(const sli_mixture *mixture, int64_t sample, int *source, int64_t *number)
{
    int first = 0, end = mixture->count;
    while (end - first > 1) {
        int middle = (first + end) / 2;
        int64_t left = count_left(mixture, first, middle, end, sample);
        if (count_left(mixture, first, middle, end, sample + 1) > left) {
            sample = left;
            end = middle;
        } else {
            sample -= left;
            first = middle;
        }
    }
    *source = first;
    *number = sample;
}

int64_t sli_mixture_count(const sli_mixture *mixture, int source, int64_t samples)
{
    int first = 0, end = mixture->count;
    while (end - first > 1) {
        int middle = (first + end) / 2;
        int64_t left = count_left(mixture, first, middle, end, samples);
        samples = source < middle ? left : samples - left;
        if (source < middle)
            end = middle;
        else
            first = middle;
    }
    return samples;
}
