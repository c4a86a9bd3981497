/* How functions of sluice fail: a status code, and a sentence that says what was wrong.
 *
 * Every function that can fail returns an sl_status and gives its results through pointers. On
 * an error each result pointer is NULL (or untouched where its comment says so); numbers, arrays
 * and structs that are results have values to rely on only where the function's comment says which.
 * The calling thread's error text holds one sentence: who, what was expected, what came, what to
 * do. Functions that allocate may return SL_ERR_MEMORY; their comments need not say so.
 *
 * A pointer argument must not be NULL unless its comment allows it. Where a header's first comment
 * says that NULL is refused, its functions that return an sl_status check their arguments:
 * SL_ERR_INVALID names the one that is NULL. Other functions need not check, neither for NULL nor
 * for an index that is out of range. Functions named _destroy or _close accept NULL and the address
 * of a NULL pointer, and set the pointer to NULL. */
#ifndef SLUICE_STATUS_H
#define SLUICE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* What stands between these two is C, also in C++, and the whole interface: a shared libsluice
 * exports it and nothing else. */
#ifdef __cplusplus
#define SL_API_BEGIN                                                                               \
    extern "C" {                                                                                   \
    _Pragma("GCC visibility push(default)")
#define SL_API_END                                                                                 \
    _Pragma("GCC visibility pop")                                                                  \
    }
#else
#define SL_API_BEGIN _Pragma("GCC visibility push(default)")
#define SL_API_END   _Pragma("GCC visibility pop")
#endif

SL_API_BEGIN

/* The version of the library that the program runs with: "0.1.0". */
const char *sl_version(void);

typedef enum sl_status {
    SL_OK = 0,
    SL_ERR_INVALID = -1,     /* an argument or a combination of arguments makes no sense */
    SL_ERR_MEMORY = -2,      /* there is not enough memory */
    SL_ERR_IO = -3,          /* a file or the network failed */
    SL_ERR_FORMAT = -4,      /* a file's content is not what its format asks for */
    SL_ERR_NOT_FOUND = -5,   /* a file, name or device does not exist */
    SL_ERR_UNSUPPORTED = -6, /* meaningful, but this build or device cannot do it */
    SL_ERR_NUMERIC = -7,     /* a NaN or an infinity where a number was needed */
    SL_ERR_CANCELLED = -8,   /* stopped because another stage or rank failed */
    SL_ERR_INTERNAL = -9,    /* a mistake in sluice itself */
    SL_ERR_CONFLICT = -10    /* what is there is another run's: to try again does not help */
} sl_status;

/* The code's short name, "invalid argument" for SL_ERR_INVALID; never NULL. */
const char *sl_status_name(sl_status status);

/* The sentence of this thread's last failing call; "" if none failed. It is valid until the
 * thread's next error. The text may quote names and files: control characters in them, and
 * bytes that are not UTF-8, are written as \x1b and the like. A schedule's error may go on below
 * its first line with a drawing of the table. */
const char *sl_error_text(void);

/* Sets this thread's error text, printf-style, and returns `status`, so that a failing function
 * ends with `return sl_error(SL_ERR_INVALID, "sl_x_create: ...")`. For modules written outside
 * the library as well. Text past 1,023 bytes is cut. */
sl_status sl_error(sl_status status, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Puts a context such as "[stage 1 micro 3] " before this thread's error text and returns
 * `status`; does nothing when `status` is SL_OK. */
sl_status sl_error_context(sl_status status, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Returns a copy of a text from a file or another program that is safe to print: control
 * characters, and bytes that are not UTF-8, are written as in sl_error_text. `lines`: line ends
 * stay as they are. Malloc'ed; NULL: there was no memory for it. */
char *sl_escape_text(const char *text, bool lines);

/* Passes an error up. For functions that have nothing to free. */
#define SL_TRY(expression)                                                                         \
    do {                                                                                           \
        sl_status sl_try_status_ = (expression);                                                   \
        if (sl_try_status_ != SL_OK)                                                               \
            return sl_try_status_;                                                                 \
    } while (0)

/* SL_TRY where something is to be freed: sets the caller's `sl_status status`, and after an error
 * goes to its label `fail`. */
#define SL_TRY_OR_FAIL(expression)                                                                 \
    do {                                                                                           \
        status = (expression);                                                                     \
        if (status != SL_OK)                                                                       \
            goto fail;                                                                             \
    } while (0)

SL_API_END

#endif
