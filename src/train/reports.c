#include "train/reports.h"

#define CALL_REPORTERS(to, event, ...)                                                             \
    for (int i = 0; i < (to)->count; i++) {                                                        \
        const sl_reporter *reporter = &(to)->reporters[i];                                         \
        if (reporter->replica == (to)->replica && reporter->event)                                 \
            SL_TRY(reporter->event(reporter->context, __VA_ARGS__));                               \
    }                                                                                              \
    return SL_OK

sl_status sli_report_started(const sli_reports *to, const sl_run_info *info)
{
    CALL_REPORTERS(to, started, info);
}

sl_status sli_report_step(const sli_reports *to, const sl_step_info *step)
{
    CALL_REPORTERS(to, step, step);
}

sl_status sli_report_evaluating(const sli_reports *to, const sl_evaluating_info *info)
{
    CALL_REPORTERS(to, evaluating, info);
}

sl_status sli_report_evaluated(const sli_reports *to, const sl_eval_info *eval)
{
    CALL_REPORTERS(to, evaluated, eval);
}

sl_status sli_report_finished(const sli_reports *to, const sl_run_info *info,
                              const sl_run_result *result)
{
    CALL_REPORTERS(to, finished, info, result);
}

sl_status sli_report_checkpoint(const sli_reports *to, const sl_checkpoint_event *event)
{
    CALL_REPORTERS(to, checkpoint, event);
}
