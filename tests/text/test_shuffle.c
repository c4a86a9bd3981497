#include "sluice/app/text.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

enum { LARGE = 1 << 20 };

/* `seen` has room for LARGE. */
static void check_permuted(int64_t count, uint64_t seed, int64_t epoch, bool *seen)
{
    memset(seen, 0, (size_t)count);
    for (int64_t place = 0; place < count; place++) {
        int64_t sample = sl_shuffled(place, count, seed, epoch);
        if (sample < 0 || sample >= count || seen[sample])
            fail_msg("place %lld of %lld, seed %llu, epoch %lld: sample %lld", (long long)place,
                     (long long)count, (unsigned long long)seed, (long long)epoch,
                     (long long)sample);
        seen[sample] = true;
    }
}

static void every_count_is_permuted(void **state)
{
    FREED bool *seen = malloc(LARGE);
    assert_non_null(seen);
    for (int64_t count = 1; count <= LARGE; count = count < 300 ? count + 1 : count * 7 + 1)
        check_permuted(count, 5, 2, seen);
}

/* A cipher of pairs of bits has sizes of powers of four, so that most places walk just above one
 * and none just below. */
static void counts_beside_powers_of_four_are_permuted(void **state)
{
    FREED bool *seen = malloc(LARGE);
    assert_non_null(seen);
    for (int64_t power = 4; power <= LARGE; power *= 4)
        for (int64_t count = power - 1; count <= power + 1 && count <= LARGE; count++)
            check_permuted(count, 3, power, seen);
}

static void drawn_counts_are_permuted(void **state)
{
    unsigned seed = test_seed(11);
    FREED bool *seen = malloc(LARGE);
    assert_non_null(seen);
    for (int round = 0; round < 12; round++) {
        int count = test_draw(&seed, 1, test_draw(&seed, 1, LARGE));
        check_permuted(count, (uint64_t)test_draw(&seed, 0, INT32_MAX - 1),
                       test_draw(&seed, 0, INT32_MAX - 1), seen);
    }
}

static void largest_count_is_permuted(void **state)
{
    int64_t first = sl_shuffled(0, SL_MAX_SHUFFLED, 1, 0);
    int64_t last = sl_shuffled(SL_MAX_SHUFFLED - 1, SL_MAX_SHUFFLED, 1, 0);
    assert_true(first >= 0 && first < SL_MAX_SHUFFLED && last >= 0 && last < SL_MAX_SHUFFLED);
    assert_true(first != last);
}

static int places_in_common(uint64_t seed, int64_t epoch, uint64_t other_seed, int64_t other_epoch)
{
    enum { COUNT = 10000 };
    int common = 0;
    for (int64_t place = 0; place < COUNT; place++)
        common += sl_shuffled(place, COUNT, seed, epoch) ==
                  sl_shuffled(place, COUNT, other_seed, other_epoch);
    return common;
}

/* Of two random orders one place is the same on average; more than 12 are in 1 of 10^9 pairs. */
static void seeds_and_epochs_have_orders_of_their_own(void **state)
{
    assert_int_equal(places_in_common(1, 0, 1, 0), 10000);
    assert_true(places_in_common(1, 0, 1, 1) < 13);
    assert_true(places_in_common(1, 0, 2, 0) < 13);
    assert_true(places_in_common(1, 1, 2, 0) < 13);
    assert_true(places_in_common(1, 0, UINT64_C(1) << 32 | 1, 0) < 13);
    assert_true(places_in_common(1, 0, 1, INT64_C(1) << 32) < 13);
}

/* Each sample is equally often at each place: chi squared of 36 degrees of freedom, which random
 * orders exceed 87 in 1 of 200,000 cases. */
static void samples_stand_anywhere(void **state)
{
    enum { COUNT = 7, ORDERS = 14000 };
    int times[COUNT][COUNT] = {{0}};
    double expected = (double)ORDERS / COUNT, squares = 0;
    for (int epoch = 0; epoch < ORDERS; epoch++)
        for (int place = 0; place < COUNT; place++)
            times[place][sl_shuffled(place, COUNT, 1, epoch)]++;
    for (int place = 0; place < COUNT; place++)
        for (int sample = 0; sample < COUNT; sample++)
            squares += (times[place][sample] - expected) * (times[place][sample] - expected);
    assert_true(squares / expected < 87);
}

/* A run that resumes with another version goes on in the same order. */
static void order_is_kept(void **state)
{
    static const int64_t first[] = {2, 5, 1, 9, 8, 4, 7, 3, 0, 6};
    for (int place = 0; place < 10; place++)
        assert_int_equal(sl_shuffled(place, 10, 1, 0), first[place]);
    assert_int_equal(sl_shuffled(0, INT64_C(1000000007), 123456789012345, 3), 153835482);
}

int shuffle_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_count_is_permuted),
        cmocka_unit_test(counts_beside_powers_of_four_are_permuted),
        cmocka_unit_test(drawn_counts_are_permuted),
        cmocka_unit_test(largest_count_is_permuted),
        cmocka_unit_test(seeds_and_epochs_have_orders_of_their_own),
        cmocka_unit_test(samples_stand_anywhere),
        cmocka_unit_test(order_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
