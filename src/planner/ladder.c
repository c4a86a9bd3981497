/* How long modules take with a number of rows between or beyond those that were timed. */
#include "planner/layout.h"

/* a * low + b * high */
static sl_module_profile mix(double a, const sl_module_profile *low, double b,
                             const sl_module_profile *high)
{
    return (sl_module_profile){.forward = a * low->forward + b * high->forward,
                               .backward = a * low->backward + b * high->backward,
                               .backward_input = a * low->backward_input + b * high->backward_input,
                               .backward_weight =
                                   a * low->backward_weight + b * high->backward_weight,
                               .output_bytes = a * low->output_bytes + b * high->output_bytes};
}

int sli_ladder_rung(int rungs, int64_t rows)
{
    int rung = 0;
    while (rung + 1 < rungs && (int64_t)2 << rung <= rows)
        rung++;
    return rung;
}

void sli_ladder_times(sl_module_profile *const *ladder, int rungs, int modules, int64_t rows,
                      sl_module_profile *out)
{
    int low = sli_ladder_rung(rungs, rows), high = low + 1 < rungs ? low + 1 : low;
    double ratio = (double)rows / (double)((int64_t)1 << low), b = high > low ? ratio - 1 : 0,
           a = high > low ? 1 - b : ratio;
    for (int i = 0; i < modules; i++)
        out[i] = mix(a, &ladder[low][i], b, &ladder[high][i]);
}
