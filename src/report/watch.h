/* A reader of a run log that grows: it serves the live page, and writes a trace and TensorBoard's
 * events. It runs on the thread that calls it, in a process of its own: the run only writes. */
#ifndef SLI_REPORT_WATCH_H
#define SLI_REPORT_WATCH_H

#include "sluice/app/report.h"

typedef struct sli_watch sli_watch;

typedef struct sli_watch_options {
    const char *log;   /* its path: a regular file; borrowed */
    const char *name;  /* of the run, on the page; borrowed */
    const char *serve; /* "[ADDRESS:]PORT" of a page, without an address on the loopback 127.0.0.1,
                          with port 0 at any free port. At an address that is not of the loopback,
                          the page asks for a random token. NULL: none */
    const char *trace, *tensorboard; /* see report/run_file.h; NULL: none */
    bool child; /* of the process that writes the log: these two get records that come after opening
                   alone */
    sl_reporter_failed *failed; /* told once of each file that cannot be written, and where
                                   there is no page, of lines of the log that are no records */
    void *context;
} sli_watch_options;

/* Reads what the log has. Errors begin with the option of the program that is wrong, as in
 * "--trace: ": those of opening the log and the files; SL_ERR_INVALID for the address or where the
 * trace is the log, SL_ERR_UNSUPPORTED where sluice was built without libmicrohttpd. */
sl_status sli_watch_open(const sli_watch_options *options, sli_watch **out);

/* "http://127.0.0.1:8080/", with the token; NULL: there is no page. */
const char *sli_watch_url(const sli_watch *watch);

/* Follows the log and serves the page for at most a tenth of a second. The log is read once a
 * second, or more rarely where that, and drawing, would take more than 0.5% of a core. */
void sli_watch_turn(sli_watch *watch);

/* The log says that the run has ended. */
bool sli_watch_has_ended(const sli_watch *watch);

/* Brings the log's end to the files, and for at most a second to the browsers. */
void sli_watch_close(sli_watch **watch);

#endif
