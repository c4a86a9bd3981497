/* The reporters of one replica. Each function calls all of them. */
#ifndef SLI_TRAIN_REPORTS_H
#define SLI_TRAIN_REPORTS_H

#include "sluice/train.h"

typedef struct sli_reports {
    const sl_reporter *reporters; /* [count], every replica's; borrowed */
    int count;
    int replica; /* the one whose reporters are told */
} sli_reports;

/* Each stops at the first reporter's error, and returns it. */
sl_status sli_report_started(const sli_reports *to, const sl_run_info *info);
sl_status sli_report_step(const sli_reports *to, const sl_step_info *step);
sl_status sli_report_evaluating(const sli_reports *to, const sl_evaluating_info *info);
sl_status sli_report_evaluated(const sli_reports *to, const sl_eval_info *eval);
sl_status sli_report_finished(const sli_reports *to, const sl_run_info *info,
                              const sl_run_result *result);
sl_status sli_report_checkpoint(const sli_reports *to, const sl_checkpoint_event *event);

#endif
