#include "parallel/step.h"

#include <time.h>

double sli_clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void sli_step_fail(sli_step *step, sl_status status)
{
    sli_failure_raise(step->failure, status);
    for (int i = 0; i < step->channel_count; i++)
        sli_channel_cancel(step->channels[i]);
}
