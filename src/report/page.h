/* Reports of runs by their logs, and how a page is written. */
#ifndef SLI_REPORT_PAGE_H
#define SLI_REPORT_PAGE_H

#include "report/history.h"

enum { SLI_PAGE_COLOURS = 8 }; /* classes c0 ... of the style */

/* Writes runs [count], from 1 on, as one HTML page without scripts or references to other files:
 * results, curves, memory, the last pipeline timeline of each, predicted over measured, and the
 * options in which they differ (of one run: all). The caller checks `to` for errors of writing. */
void sli_report_html(const sli_run_history *const *runs, int count, FILE *file);

/* Writes runs [count] as CSV: a line for each step and each evaluation. The caller checks `to`. */
void sli_report_csv(const sli_run_history *const *runs, int count, FILE *file);

typedef struct sli_page {
    FILE *file;
    const sli_run_history *const *runs; /* [count] */
    int count;
    bool is_live; /* its head says whether the run goes on */
} sli_page;

/* Writes what stands before a page's content, whose title is untrusted, with a
 * Content-Security-Policy where `policy` is not NULL. */
void sli_page_write_head(FILE *file, const char *title, const char *policy);

/* The path of the run's log, without the directories that all runs' logs have in common. */
const char *sli_page_short_name(const sli_page *page, const sli_run_history *run);

/* Writes the table of results, what a reader must know about the logs, and the options. */
void sli_page_write_results(const sli_page *page);
void sli_page_write_options(const sli_page *page);

/* Writes the curves of all runs, and each run's memory and pipeline (page_pictures.c). */
void sli_page_draw_pictures(const sli_page *page);

/* page_live.c: the page that a server shows, and what it is to show inside: the page's first run.
 * `grows`: records have come since it was opened; `error`: why no more can be read, or NULL. */
void sli_page_write_live(FILE *file, const char *name, const char *nonce);
void sli_page_write_live_content(const sli_page *page, bool grows, const char *error);

#endif
