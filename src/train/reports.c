#include "train/reports.h"

/* The replica's next reporter from *index on, and *index behind it; NULL: there is none. */
static const sl_reporter *next(const sli_reports *to, int *index)
{
    while (*index < to->count) {
        const sl_reporter *reporter = &to->reporters[(*index)++];
        if (reporter->replica == to->replica)
            return reporter;
    }
    return NULL;
}

sl_status sli_report_started(const sli_reports *to, const sl_run_info *info)
{
    int index = 0;
    for (const sl_reporter *each; (each = next(to, &index));)
        if (each->started)
            SL_TRY(each->started(each->context, info));
    return SL_OK;
}

sl_status sli_report_step(const sli_reports *to, const sl_step_info *step)
{
    int index = 0;
    for (const sl_reporter *each; (each = next(to, &index));)
        if (each->step)
            SL_TRY(each->step(each->context, step));
    return SL_OK;
}

sl_status sli_report_evaluating(const sli_reports *to, const sl_evaluating_info *info)
{
    int index = 0;
    for (const sl_reporter *each; (each = next(to, &index));)
        if (each->evaluating)
            SL_TRY(each->evaluating(each->context, info));
    return SL_OK;
}

sl_status sli_report_evaluated(const sli_reports *to, const sl_eval_info *eval)
{
    int index = 0;
    for (const sl_reporter *each; (each = next(to, &index));)
        if (each->evaluated)
            SL_TRY(each->evaluated(each->context, eval));
    return SL_OK;
}

sl_status sli_report_finished(const sli_reports *to, const sl_run_info *info,
                              const sl_run_result *result)
{
    int index = 0;
    for (const sl_reporter *each; (each = next(to, &index));)
        if (each->finished)
            SL_TRY(each->finished(each->context, info, result));
    return SL_OK;
}

sl_status sli_report_checkpoint(const sli_reports *to, const sl_checkpoint_event *event)
{
    int index = 0;
    for (const sl_reporter *each; (each = next(to, &index));)
        if (each->checkpoint)
            SL_TRY(each->checkpoint(each->context, event));
    return SL_OK;
}
