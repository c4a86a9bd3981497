/* Errors inside the library, beyond sluice/status.h. */
#ifndef SLI_CORE_ERROR_H
#define SLI_CORE_ERROR_H

#include "sluice/status.h"

enum { SLI_ERROR_BYTES = 1024 }; /* of an error text, with the 0 at its end */
enum { SLI_NO_RANK = -1 };

/* An error that one thread leaves for another one, or that is kept while others may follow. The
 * text is never cut: it holds the longest that sl_error leaves. All zeros: no error. */
typedef struct sli_error_copy {
    sl_status status;
    int rank; /* of the job, which the text names by its number alone; SLI_NO_RANK: none */
    char text[SLI_ERROR_BYTES];
} sli_error_copy;

/* Copies the calling thread's error, which has this status; SL_OK: there is none. Returns `status`.
 */
sl_status sli_error_save(sli_error_copy *copy, sl_status status);

/* Makes the copy the calling thread's error and returns its status. SL_OK: does nothing. */
sl_status sli_error_restore(const sli_error_copy *copy);

/* Says which rank of the job the calling thread's error is about, for a caller that knows where it
 * runs. Another error of the thread is about none. Returns `status`. */
sl_status sli_error_set_rank(sl_status status, int rank);

/* The rank that the calling thread's error is about, or SLI_NO_RANK. */
int sli_error_rank(void);

/* Adds a colon and `lines` to the calling thread's error text. `lines` must quote no names: their
 * line ends stay (except one after the last line), where other arguments of an error are escaped.
 * Returns `status`. */
sl_status sli_error_add_lines(sl_status status, const char *lines);

/* The error after a system call on a file: "PATH: WHAT: " and errno's text, where `what` is "cannot
 * be opened" or the like. Returns SL_ERR_NOT_FOUND where the path does not exist, else SL_ERR_IO.
 */
sl_status sli_io_error(const char *path, const char *what);

/* SL_ERR_MEMORY: "WHO: no memory for WHAT", where `what` and its arguments are printf's. `who`: the
 * function or the file; NULL: a caller says it. */
sl_status sli_no_memory(const char *who, const char *what, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* For public functions: refuses a required pointer that is NULL, with a sentence that names it. */
#define SLI_CHECK_NOT_NULL(pointer)                                                                \
    do {                                                                                           \
        if (!(pointer))                                                                            \
            return sl_error(SL_ERR_INVALID, "%s: %s is NULL", __func__, #pointer);                 \
    } while (0)

#endif
