/* The `pipeline` record of a run log, and the checked fields of any record. */
#ifndef SLI_REPORT_HISTORY_PIPELINE_H
#define SLI_REPORT_HISTORY_PIPELINE_H

#include "report/history.h"

/* *out is cleared after an error. */
sl_status sli_history_pipeline_read(const json_t *record, sli_history_pipeline *out);
void sli_history_pipeline_clear(sli_history_pipeline *pipeline);

/* A number that may be missing or null (then NaN), of at least `lowest` (0 or -INFINITY). */
sl_status sli_record_real(const json_t *record, const char *key, double lowest, double *out);

/* A number that must be there. */
sl_status sli_record_integer(const json_t *record, const char *key, int64_t lowest, int64_t highest,
                             int64_t *out);

#endif
