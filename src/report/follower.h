/* A run log that is read while it grows. */
#ifndef SLI_REPORT_FOLLOWER_H
#define SLI_REPORT_FOLLOWER_H

#include "core/error.h"
#include "report/history.h"

#include <sys/types.h>

typedef struct sli_follower {
    const char *path, *name;  /* borrowed; the history has the name */
    sli_run_history *history; /* of the records so far; without any: it has no `run` */
    ino_t inode;              /* of the file that was read, */
    uint64_t offset;          /* and how far: to the end of a line; 0: begins (again) */
    char end[64];         /* the bytes before that: the last `offset` of them where it is less */
    char *room;           /* for a chunk of the file */
    sli_error_copy error; /* of a line of this log that was left out */
} sli_follower;

/* With a history without records. */
sl_status sli_follower_create(const char *path, const char *name, sli_follower *out);
void sli_follower_clear(sli_follower *follower);

/* Adds the lines that were written since, or, where another file has taken the path or another log
 * is in the file, begins again. *changed: there were some. A file that is not there any more
 * changes nothing. Errors: those of sli_file_open at the first call; SL_ERR_FORMAT for a line as
 * in sli_run_history_read, which is left out: the next call goes on after it. */
sl_status sli_follower_update(sli_follower *follower, bool *changed);

#endif
