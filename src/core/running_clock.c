#include "core/clock.h"

#include "core/clock.h"

double sli_running_clock_read(sli_running_clock *clock, double most)
{
    double now = sli_clock_seconds();
    double pause = clock->read > 0 ? now - clock->read : 0;
    clock->read = now;
    clock->seconds += pause < most ? pause : most;
    return clock->seconds;
}
