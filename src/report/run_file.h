/* A file for another program, made of the records of a run log: a trace, or TensorBoard's events.
 * It is opened before a run begins, so that a wrong path is known then, and emptied when the log's
 * record `run` comes. One that was made for a run that never began is removed. */
#ifndef SLI_REPORT_RUN_FILE_H
#define SLI_REPORT_RUN_FILE_H

#include "report/history.h"

typedef struct sli_run_file {
    char *path;
    FILE *file;     /* NULL: none, or it could not be written */
    bool is_new;    /* it was not there before, */
    bool made_home; /* nor was its directory */
    bool has_begun; /* the record `run` has come */
    double end;     /* of a trace: of its last event, in microseconds, */
    int ranks;      /* and how many have a name in it */
} sli_run_file;

/* Opens the file without emptying it. Errors: SL_ERR_IO. */
sl_status sli_run_file_open(const char *path, sli_run_file *out);

/* Ends a record: what was written is in the file then. Errors: SL_ERR_IO. */
sl_status sli_run_file_flush(sli_run_file *run_file);

/* Also for one that is all zeros. */
void sli_run_file_close(sli_run_file *run_file);

/* The timelines of the first replica's `pipeline` records that end an epoch, predicted and
 * measured, as Chrome's trace events in JSON, for Perfetto: one complete event for each action.
 * Between records the file is whole. A pipe is refused (SL_ERR_INVALID), as each record overwrites
 * the file's end. */
sl_status sli_trace_open(const char *path, sli_run_file *out);
sl_status sli_trace_add(sli_run_file *trace, sli_record_kind kind, const void *record);

/* Steps, evaluations and the first replica's bubbles as scalars in an event file of TensorBoard, a
 * new one in the directory, which is made if it does not exist. */
sl_status sli_tensorboard_open(const char *directory, sli_run_file *out);
sl_status sli_tensorboard_add(sli_run_file *events, const sli_run_history *history,
                              sli_record_kind kind, const void *record);

#endif
