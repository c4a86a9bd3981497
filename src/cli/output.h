/* What the program prints: errors and warnings, texts from files, numbers. */
#ifndef SLI_CLI_OUTPUT_H
#define SLI_CLI_OUTPUT_H

#include "sluice/launch.h"
#include "sluice/status.h"

#include <stdint.h>

/* ---- Errors and warnings ------------------------------------------------------------------ */

enum { CLI_EXIT_ERROR = 1, CLI_EXIT_USAGE = 2 };

/* To the launcher that has started this process and prints its last error; NULL: there is none.
 * Set by main before anything else. */
extern sl_launch_link *cli_launcher;

/* Prints "sluice: ", the text and a line end on standard error, with control characters and bytes
 * that are not UTF-8 escaped, as in sl_error_text. */
void cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The candidate that is nearest to `word`; NULL: none is near. */
typedef struct cli_near {
    const char *word, *best;
    int distance;
} cli_near;

void cli_near_add(cli_near *near, const char *candidate);

/* Prints a sentence in that form, or has the launcher print it where there is one, and ends the
 * program with CLI_EXIT_USAGE. A candidate that is near (NULL: none) is added as ": did you mean
 * PREFIXBEST?". */
_Noreturn void cli_refuse_near(const cli_near *near, const char *prefix, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define cli_refuse(...) cli_refuse_near(NULL, "", __VA_ARGS__)

/* The program's exit status: 0 for SL_OK, else CLI_EXIT_ERROR after printing the error text. It is
 * an error as well when standard output could not be written. */
int cli_finish(sl_status status);

/* ---- Texts and numbers -------------------------------------------------------------------- */

/* Prints a text from a file on standard output, escaped as above, with blanks up to `width` bytes.
 */
void cli_print_text(const char *text, int width);

/* A number as text, by value: an argument of printf is `cli_count_text(3).text`. */
typedef struct cli_text {
    char text[32];
} cli_text;

cli_text cli_count_text(int64_t number);            /* "2,049,990" */
cli_text cli_bytes_text(int64_t bytes);             /* "1.25 GiB" */
cli_text cli_real_text(double value, int decimals); /* "5.20", "inf", "nan"; from a million on
                                                       "1.23e+09" */

#endif
