/* A report as it is written. */
#ifndef SLI_REPORT_PAGE_H
#define SLI_REPORT_PAGE_H

#include "report/history.h"

enum { SLI_PAGE_COLOURS = 8 }; /* classes c0 ... of the style */

typedef struct sli_page {
    FILE *to;
    const sl_run_history *const *runs; /* [count] */
    int count;
} sli_page;

/* The path of the run's log, without the directories that all runs' logs have in common. */
const char *sli_page_short_name(const sli_page *page, const sl_run_history *run);

/* Writes the curves of all runs, and each run's memory and pipeline (page_pictures.c). */
void sli_page_draw_pictures(const sli_page *page);

#endif
