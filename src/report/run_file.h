/* A file for another program, which a reporter writes while the run goes on. */
#ifndef SLI_REPORT_RUN_FILE_H
#define SLI_REPORT_RUN_FILE_H

#include "sluice/app/report.h"

struct sl_run_file {
    char *path;                 /* of the file, or of the directory that it is in */
    FILE *file;                 /* NULL: before the run, or after a failure */
    sl_reporter_failed *failed; /* NULL: a failure ends the run */
    void *context;
    sl_reporter reporter;
    double end; /* of a trace: of its last event, in microseconds */
};

/* With a reporter whose context becomes the file. */
sl_status sli_run_file_create(const char *path, sl_reporter_failed *failed, void *context,
                              sl_reporter reporter, sl_run_file **out);

/* Opens and empties the file at `path`. Errors: SL_ERR_IO. */
sl_status sli_run_file_open(sl_run_file *file, const char *path);

/* Ends a record: what was written is in the file then. After a failure the file is closed; `failed`
 * is told, or without it the status is SL_ERR_IO. */
sl_status sli_run_file_flush(sl_run_file *file);

#endif
