/* The sources of a mixture in a run log. */
#ifndef SLI_REPORT_HISTORY_SOURCES_H
#define SLI_REPORT_HISTORY_SOURCES_H

#include "report/history.h"

/* Reads what a `run`, a `step` and an `eval` record say of sources; one that says nothing is left
 * out. Errors: SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_history_sources_begin(sli_run_history *history, const json_t *record);
sl_status sli_history_sources_add_step(sli_run_history *history, const json_t *record,
                                       int64_t step);
sl_status sli_history_sources_add_eval(sli_run_history *history, const json_t *record,
                                       bool is_test);

/* The mean loss of the last steps that had the source; NaN: there is none. */
double sli_history_source_loss(const sli_run_history *history, const sli_history_source *source);

#endif
