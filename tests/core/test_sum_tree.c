#include "core/sum_tree.h"

#include "support/check.h"

enum { MOST = 70 };

/* The definition: split at the largest power of two below the number of terms. */
static double add_by_definition(const double *values, int terms)
{
    int left = 1;
    if (terms == 1)
        return values[0];
    while (2 * left < terms)
        left *= 2;
    return add_by_definition(values, left) + add_by_definition(values + left, terms - left);
}

static bool has_by_definition(int first, int end, int terms)
{
    int left = 1;
    if (first == 0 && end == terms)
        return true;
    while (2 * left < terms)
        left *= 2;
    if (terms == 1 || (first < left && end > left))
        return false;
    return first < left ? has_by_definition(first, end, left)
                        : has_by_definition(first - left, end - left, terms - left);
}

static void sums_have_the_bits_of_the_definition(void **state)
{
    double values[MOST];
    for (int i = 0; i < MOST; i++)
        values[i] = 1.0 / (i + 3);
    for (int terms = 1; terms <= MOST; terms++) {
        double got = sli_sum_tree_add(values, terms), expected = add_by_definition(values, terms);
        assert_memory_equal(&got, &expected, sizeof got);
    }
    assert_true(sli_sum_tree_add(values, 0) == 0);
}

static void nodes_are_those_of_the_definition(void **state)
{
    for (int terms = 1; terms <= MOST; terms++)
        for (int first = 0; first < terms; first++)
            for (int end = first + 1; end <= terms; end++)
                assert_int_equal(sli_sum_tree_has_node(first, end, terms),
                                 has_by_definition(first, end, terms));
}

/* The fewest: no two nodes of a range, nor more, are together another node. */
static void ranges_are_cut_into_the_fewest_nodes(void **state)
{
    for (int terms = 1; terms <= MOST; terms++)
        for (int first = 0; first < terms; first++)
            for (int end = first + 1; end <= terms; end++) {
                int ends[SLI_SUM_TREE_MOST_NODES];
                int count = sli_sum_tree_nodes(first, end, terms, ends);
                assert_int_equal(ends[count - 1], end);
                for (int i = 0; i < count; i++)
                    for (int j = i; j < count; j++)
                        assert_int_equal(sli_sum_tree_has_node(i > 0 ? ends[i - 1] : first, ends[j],
                                                               terms),
                                         i == j);
                assert_true(count <= sli_sum_tree_height(first, end, terms));
            }
}

static void height_from_the_first_term_is_logarithmic(void **state)
{
    assert_int_equal(sli_sum_tree_height(0, 1, 1), 1);
    assert_int_equal(sli_sum_tree_height(0, 2, 2), 2);
    assert_int_equal(sli_sum_tree_height(0, 4, 4), 3);
    assert_int_equal(sli_sum_tree_height(0, 5, 5), 3);
    assert_int_equal(sli_sum_tree_height(0, 1024, 1024), 11);
    assert_int_equal(sli_sum_tree_height(3, 5, 5), 2);
}

static void holders_have_neighbouring_terms(void **state)
{
    static const int firsts[] = {0, 3, 5, 7};
    for (int holder = 0; holder <= 3; holder++)
        assert_int_equal(sli_sum_tree_first(7, holder, 3), firsts[holder]);
    for (int holder = 0; holder <= 4; holder++)
        assert_int_equal(sli_sum_tree_first(4, holder, 4), holder);
}

int sum_tree_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_the_bits_of_the_definition),
        cmocka_unit_test(nodes_are_those_of_the_definition),
        cmocka_unit_test(ranges_are_cut_into_the_fewest_nodes),
        cmocka_unit_test(height_from_the_first_term_is_logarithmic),
        cmocka_unit_test(holders_have_neighbouring_terms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
