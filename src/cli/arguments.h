/* What the subcommands share: numbers from arguments, and how they fail. */
#ifndef SLI_CLI_ARGUMENTS_H
#define SLI_CLI_ARGUMENTS_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { CLI_EXIT_ERROR = 1, CLI_EXIT_USAGE = 2 };

/* Prints "sluice: " and one line on standard error, with control characters and bytes that are no
 * UTF-8 escaped, as in sl_error_text. */
void cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints text that comes from a file on standard output, escaped in the same way, with blanks up to
 * `width` bytes. */
void cli_print_text(const char *text, int width);

/* Prints "sluice: SENTENCE, got "GOT"" (without the end where got is NULL) and ends the program
 * with CLI_EXIT_USAGE. */
_Noreturn void cli_refuse(const char *sentence, const char *got);

/* The word of those considered that is nearest to `word`, and how far it is; NULL: none is near. */
typedef struct cli_near {
    const char *word, *best;
    int distance;
} cli_near;

void cli_near_consider(cli_near *near, const char *candidate);

/* cli_refuse, with `: did you mean BEFOREBEST?` where one is near. */
_Noreturn void cli_refuse_near(const char *sentence, const char *got, const cli_near *near,
                               const char *before);

/* Prints the error text of a failed call, and gives the program's exit status; 0 for SL_OK. What
 * standard output could not take is an error as well. */
int cli_finish(sl_status status);

/* Takes a number from 0 and the blank after it off the beginning of *text; false if there is none.
 */
bool cli_take_number(char **text, int *out);

enum { CLI_NUMBER_BYTES = 32 };
/* Writes 2,049,990 for 2049990 and returns `text`. */
const char *cli_with_commas(int64_t number, char text[CLI_NUMBER_BYTES]);

/* Writes "1.25 GiB" and returns `text`. */
const char *cli_bytes_text(int64_t bytes, char text[CLI_NUMBER_BYTES]);

/* Writes a loss, a perplexity or the like with `decimals`, or from a million on as 1.23e+09; "inf",
 * "nan". Returns `text`. */
const char *cli_real_text(double value, int decimals, char text[CLI_NUMBER_BYTES]);

#endif
