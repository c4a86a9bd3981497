#include "core/sum_tree.h"

bool sli_sum_tree_has_node(int first, int end, int terms)
{
    long width = 1;
    while (width < end - first)
        width *= 2;
    return first % width == 0 && (end - first == width || end == terms);
}

/* The stack's nodes after terms first … end - 1; *height: the most that it had. */
static int push_terms(int first, int end, int terms, int ends[SLI_SUM_TREE_MOST_NODES], int *height)
{
    int count = 0;
    *height = 0;
    for (int term = first; term < end; term++) {
        count++;
        *height = count > *height ? count : *height;
        while (count > 1 &&
               sli_sum_tree_has_node(count > 2 ? ends[count - 3] : first, term + 1, terms))
            count--;
        ends[count - 1] = term + 1;
    }
    return count;
}

int sli_sum_tree_nodes(int first, int end, int terms, int ends[SLI_SUM_TREE_MOST_NODES])
{
    int height;
    return push_terms(first, end, terms, ends, &height);
}

int sli_sum_tree_height(int first, int end, int terms)
{
    int ends[SLI_SUM_TREE_MOST_NODES], height;
    (void)push_terms(first, end, terms, ends, &height);
    return height;
}

int sli_sum_tree_first(int terms, int index, int holders)
{
    int each = terms / holders, rest = terms % holders;
    return index * each + (index < rest ? index : rest);
}

double sli_sum_tree_add(const double *values, int terms)
{
    double sums[SLI_SUM_TREE_DEPTH] = {0};
    int first[SLI_SUM_TREE_DEPTH], count = 0;
    for (int term = 0; term < terms; term++) {
        sums[count] = values[term];
        first[count++] = term;
        for (; count > 1 && sli_sum_tree_has_node(first[count - 2], term + 1, terms); count--)
            sums[count - 2] += sums[count - 1];
    }
    return sums[0];
}
