#include "parallel/step.h"

void sli_step_fail(sli_step *step, sl_status status)
{
    sli_failure_raise(step->failure, status);
    for (int i = 0; i < step->channel_count; i++)
        sli_channel_cancel(step->channels[i]);
}
