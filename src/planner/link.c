/* What a message takes by its size. */
#include "planner/layout.h"

/* The least squares of relative errors: a message of 16 MiB counts as much as one of 1 GiB. With
 * weights 1 / seconds^2, those of the line seconds + bytes * seconds_per_byte. */
sl_link_cost sli_link_fit(const double *bytes, const double *seconds, int count)
{
    double weights = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (int i = 0; i < count; i++) {
        double weight = 1 / (seconds[i] * seconds[i]);
        weights += weight;
        x += weight * bytes[i];
        y += weight * seconds[i];
        xx += weight * bytes[i] * bytes[i];
        xy += weight * bytes[i] * seconds[i];
    }
    double determinant = weights * xx - x * x;
    double slope = determinant > 0 ? (weights * xy - x * y) / determinant : 0;
    slope = slope > 0 ? slope : 0;
    double start = (y - slope * x) / weights;
    if (start >= 0)
        return (sl_link_cost){start, slope};
    return (sl_link_cost){0, xy / xx}; /* no message takes less than none */
}
