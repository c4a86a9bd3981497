#include "core/clock.h"

#include <stdlib.h>
#include <time.h>

double sli_clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int sli_compare_seconds(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double sli_median_seconds(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, sli_compare_seconds);
    return (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
}

double sli_running_clock_read(sli_running_clock *clock, double most)
{
    double now = sli_clock_seconds();
    double pause = clock->read > 0 ? now - clock->read : 0;
    clock->read = now;
    clock->seconds += pause < most ? pause : most;
    return clock->seconds;
}
