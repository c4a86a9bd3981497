#include "sluice/optim.h"

#include <math.h>

/* torch.optim.lr_scheduler.StepLR's closed form. */
static double step_factor(const sl_lr_schedule *schedule, int64_t epoch)
{
    int64_t period = schedule->step_epochs > 0 ? schedule->step_epochs : 1;
    int64_t decays = epoch / period;
    return pow(schedule->gamma, (double)decays);
}

/* From 1 at the end of the warm-up to 0 at total_steps. */
static double cosine_factor(const sl_lr_schedule *schedule, int64_t step)
{
    const double pi = 3.14159265358979323846;
    int64_t length = schedule->total_steps - schedule->warmup_steps;
    int64_t done = step - schedule->warmup_steps;
    if (length <= 0 || done >= length)
        return 0;
    return 0.5 * (1 + cos(pi * (double)done / (double)length));
}

double sl_lr_at(const sl_lr_schedule *schedule, int64_t step, int64_t epoch)
{
    if (step < schedule->warmup_steps)
        return schedule->lr * (double)(step + 1) / (double)schedule->warmup_steps;
    return schedule->lr * (schedule->kind == SL_LR_STEP ? step_factor(schedule, epoch)
                                                        : cosine_factor(schedule, step));
}
