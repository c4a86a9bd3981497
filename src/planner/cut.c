/* The cut whose slowest stage is as fast as can be. */
#include "planner/cluster.h"

#include <math.h>

/* How many stages modules first ... last - 1 need of at most `most`, when each takes what it can. A
 * module that costs more has one of its own. */
static int count_stages(const double *costs, int first, int last, double most)
{
    int stages = 0;
    while (first < last) {
        double sum = costs[first++];
        while (first < last && sum + costs[first] <= most)
            sum += costs[first++];
        stages++;
    }
    return stages;
}

/* By halving, to the last digits of a double. */
static double find_least_most(const double *costs, int modules, int stages)
{
    double low = 0, high = 0;
    for (int i = 0; i < modules; i++) {
        high += costs[i];
        low = fmax(low, costs[i]);
    }
    for (int round = 0; round < 50; round++) {
        double middle = (low + high) / 2;
        if (count_stages(costs, 0, modules, middle) <= stages)
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* A stage takes modules up to the mean of what is left for it and those behind it, or more where
 * these could not have the rest. */
void sli_cut_evenly(const double *costs, int modules, int stages, int *balance)
{
    double most = find_least_most(costs, modules, stages), left = 0;
    int next = 0;
    for (int i = 0; i < modules; i++)
        left += costs[i];
    for (int s = 0; s < stages; s++) {
        int behind = stages - s - 1, first = next;
        double mean = left / (stages - s), sum = costs[next];
        next++;
        while (modules - next > behind && sum + costs[next] <= most &&
               (sum + costs[next] / 2 <= mean || count_stages(costs, next, modules, most) > behind))
            sum += costs[next++];
        balance[s] = next - first;
        left -= sum;
    }
}
