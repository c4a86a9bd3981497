/* Mixtures of sources: each sample's source and number against counting from the first sample on.
 */
#include "support/check.h"
#include "text/mixture.h"

#include <math.h>
#include <stdlib.h>

/* Halves of a binary tree over so many sources. */
static double most_wrong(int count)
{
    int height = 0;
    while (1 << height < count)
        height++;
    return 0.5 * height;
}

/* Of all first samples each source has its share to within the bound; so any window has to within
 * twice that. */
static void check_shares(const double *weights, int count, int64_t samples)
{
    sli_mixture mixture;
    int64_t counts[SL_MAX_SOURCES] = {0};
    double sum = 0;
    sli_mixture_create(weights, count, &mixture);
    for (int i = 0; i < count; i++)
        sum += weights[i];
    for (int64_t sample = 0; sample < samples; sample++) {
        int source;
        int64_t number;
        sli_mixture_find(&mixture, sample, &source, &number);
        assert_in_range(source, 0, count - 1);
        assert_int_equal(number, counts[source]);
        counts[source]++;
        for (int i = 0; i < count; i++) {
            double wrong = (double)counts[i] - weights[i] / sum * (double)(sample + 1);
            if (fabs(wrong) > most_wrong(count) + 1e-4)
                fail_msg("source %d of %d has %lld of %lld samples, wrong by %g", i, count,
                         (long long)counts[i], (long long)sample + 1, wrong);
            assert_int_equal(sli_mixture_count(&mixture, i, sample + 1), counts[i]);
        }
    }
}

static void shares_are_exact_to_within_the_bound(void **state)
{
    const double two[] = {0.7, 0.3}, even[] = {1, 1, 1}, far[] = {1000, 1, 3, 0.5};
    check_shares(two, 1, 100);
    check_shares(two, 2, 20000);
    check_shares(even, 3, 20000);
    check_shares(far, 4, 40000);
}

static void drawn_weights_keep_their_shares(void **state)
{
    unsigned seed = 20261128;
    print_message("seed %u\n", seed);
    for (int round = 0; round < 60; round++) {
        double weights[SL_MAX_SOURCES];
        seed = seed * 1103515245u + 12345u;
        int count = 1 + (int)(seed >> 16) % SL_MAX_SOURCES;
        for (int i = 0; i < count; i++) {
            seed = seed * 1103515245u + 12345u;
            weights[i] = exp((double)(seed >> 16 & 1023) / 100);
        }
        check_shares(weights, count, 700);
    }
}

/* Tens of samples have whole shares, wherever the ten begins at a multiple of it. */
static void decimal_weights_are_exact_in_each_ten(void **state)
{
    const double weights[] = {0.7, 0.3};
    sli_mixture mixture;
    sli_mixture_create(weights, 2, &mixture);
    for (int64_t samples = 0; samples < 100000; samples += 10)
        assert_int_equal(sli_mixture_count(&mixture, 0, samples), samples / 10 * 7);
}

/* Numbers go on where sums of products would not fit. */
static void late_samples_are_found(void **state)
{
    const double weights[] = {0.2, 0.5, 0.3};
    sli_mixture mixture;
    sli_mixture_create(weights, 3, &mixture);
    const int64_t first = INT64_C(1) << 61;
    int64_t counts[3], number;
    for (int i = 0; i < 3; i++) {
        counts[i] = sli_mixture_count(&mixture, i, first);
        assert_true(fabs((double)counts[i] / (double)first - mixture.shares[i]) < 1e-8);
    }
    assert_true(counts[0] + counts[1] + counts[2] == first);
    for (int64_t sample = first; sample < first + 1000; sample++) {
        int source;
        sli_mixture_find(&mixture, sample, &source, &number);
        assert_true(number == counts[source]++);
    }
}

static void extreme_weights_are_mixed(void **state)
{
    const double large[] = {1e308, 1e308}, small[] = {5e-324, 5e-324, 1e300};
    sli_mixture mixture;
    sli_mixture_create(large, 2, &mixture);
    assert_int_equal(sli_mixture_count(&mixture, 0, 1000), 500);
    sli_mixture_create(small, 3, &mixture);
    assert_int_equal(sli_mixture_count(&mixture, 2, 1000), 1000);
    assert_true(sli_mixture_count(&mixture, 0, INT64_C(1) << 40) > 0); /* none is left out */
}

int mixture_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_exact_to_within_the_bound),
        cmocka_unit_test(drawn_weights_keep_their_shares),
        cmocka_unit_test(decimal_weights_are_exact_in_each_ten),
        cmocka_unit_test(late_samples_are_found),
        cmocka_unit_test(extreme_weights_are_mixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
