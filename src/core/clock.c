#include "core/clock.h"

#include <time.h>

double sli_clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double sli_running_clock_read(sli_running_clock *clock, double most)
{
    double now = sli_clock_seconds();
    double pause = clock->read > 0 ? now - clock->read : 0;
    clock->read = now;
    clock->seconds += pause < most ? pause : most;
    return clock->seconds;
}
