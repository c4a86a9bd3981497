/* What a run measures of itself: by its reporters, or by its log. */
#include "sluice/app/plan.h"

#include <math.h>
#include <string.h>

void sl_run_meter_add_step(sl_run_meter *meter, const sl_run_step_times *times)
{
    meter->steps++;
    meter->step_seconds += times->seconds - times->data_seconds;
    meter->exchange_seconds += times->exchange_seconds;
    meter->update_seconds += times->update_seconds;
}

/* Ranks share all cores where each has those of the first. */
void sl_run_meter_set_stages(sl_run_meter *meter, const sl_utilization *utilization)
{
    size_t bytes = (size_t)utilization->stages * sizeof *meter->forward;
    bool share_all = utilization->cores != NULL;
    for (int rank = 0; utilization->cores && rank < utilization->ranks; rank++)
        share_all &= utilization->cores[rank] == utilization->cores[0];
    memcpy(meter->forward, utilization->forward, bytes);
    memcpy(meter->backward, utilization->backward, bytes);
    meter->has_stages = true;
    meter->shares_cores = share_all;
    meter->is_mixed = utilization->cores && !share_all;
}

void sl_run_meter_add_memory(sl_run_meter *meter, double total, double parameters, double gradients,
                             double optimizer)
{
    meter->activation_bytes += fmax(0, total - parameters - gradients - optimizer);
}

sl_run_measures sl_run_meter_measures(const sl_run_meter *meter, double one_stage)
{
    double steps = meter->steps > 0 ? (double)meter->steps : 1;
    return (sl_run_measures){.step_seconds = meter->step_seconds / steps,
                             .exchange_seconds = meter->exchange_seconds / steps,
                             .update_seconds = meter->update_seconds / steps,
                             .forward = meter->has_stages ? meter->forward : NULL,
                             .backward = meter->has_stages ? meter->backward : NULL,
                             .activation_bytes = llround(fmin(meter->activation_bytes, 0x1p62)),
                             .shares_cores = meter->shares_cores,
                             .one_stage = one_stage};
}
