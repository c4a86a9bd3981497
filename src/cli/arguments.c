#define _GNU_SOURCE /* vasprintf */
#include "cli/arguments.h"

#include "cli/supervisor.h"
#include "core/printable.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_BYTES = 256 };

/* ---- Sentences ---------------------------------------------------------------------------- */

/* Of a file's text what a terminal may be given; malloc'ed. NULL: there is no memory. */
static char *shown_text(const char *text)
{
    size_t room = SLI_PRINTABLE_GROWTH * strlen(text) + 1;
    char *shown = malloc(room);
    if (shown)
        sli_printable(text, "", shown, room);
    return shown;
}

/* What ends the program is for the launcher to show, where there is one. */
static void complain(bool is_end, const char *format, va_list values)
{
    char *text, *shown;
    int length = vasprintf(&text, format, values);
    shown = length < 0 ? NULL : shown_text(text);
    /* One write, as other processes may have the same standard error. */
    if (!is_end || !shown || !cli_supervisor_error(shown))
        fprintf(stderr, "sluice: %s\n", shown ? shown : "no memory for an error's text");
    free(shown);
    if (length >= 0)
        free(text);
}

void cli_complain(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    complain(false, format, values);
    va_end(values);
}

__attribute__((format(printf, 1, 2))) static void say_error(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    complain(true, format, values);
    va_end(values);
}

_Noreturn void cli_refuse(const char *sentence, const char *got)
{
    if (got)
        say_error("%s, got \"%s\"", sentence, got);
    else
        say_error("%s", sentence);
    exit(CLI_EXIT_USAGE);
}

void cli_print_text(const char *text, int width)
{
    char *shown = shown_text(text);
    printf("%-*s", width, shown ? shown : "?");
    free(shown);
}

/* ---- Near misses -------------------------------------------------------------------------- */

enum { NEAR_LETTERS = 32 }; /* longer words are not compared */

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Letters inserted, left out, changed or exchanged with their neighbour (Damerau); capitals are
 * letters like others. */
static int distance(const char *a, const char *b)
{
    int row[NEAR_LETTERS + 1][NEAR_LETTERS + 1], a_length = (int)strlen(a),
                                                 b_length = (int)strlen(b);
    if (a_length > NEAR_LETTERS || b_length > NEAR_LETTERS)
        return INT_MAX;
    for (int i = 0; i <= a_length; i++)
        for (int k = 0; k <= b_length; k++) {
            if (i == 0 || k == 0) {
                row[i][k] = i + k;
                continue;
            }
            int changed = tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[k - 1]);
            row[i][k] = least(row[i - 1][k - 1] + changed, 1 + least(row[i - 1][k], row[i][k - 1]));
            if (i > 1 && k > 1 &&
                tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[k - 2]) &&
                tolower((unsigned char)a[i - 2]) == tolower((unsigned char)b[k - 1]))
                row[i][k] = least(row[i][k], row[i - 2][k - 2] + 1);
        }
    return row[a_length][b_length];
}

void cli_near_consider(cli_near *near, const char *candidate)
{
    int found = distance(near->word, candidate), length = (int)strlen(near->word);
    int most = 1 + length / 6; /* more is another word */
    if (found > most || found >= length || (near->best && found >= near->distance))
        return;
    near->best = candidate;
    near->distance = found;
}

_Noreturn void cli_refuse_near(const char *sentence, const char *got, const cli_near *near,
                               const char *before)
{
    if (near->best)
        say_error("%s, got \"%s\": did you mean %s%s?", sentence, got, before, near->best);
    else
        cli_refuse(sentence, got);
    exit(CLI_EXIT_USAGE);
}

int cli_finish(sl_status status)
{
    if (status == SL_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = sl_error(SL_ERR_IO, "standard output cannot be written: %s", strerror(errno));
    if (status == SL_OK)
        return 0;
    say_error("%s", sl_error_text());
    return CLI_EXIT_ERROR;
}

/* ---- Numbers shown ------------------------------------------------------------------------ */

bool cli_take_number(char **text, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(*text, &end, 10);
    if (**text < '0' || **text > '9' || errno != 0 || value > INT_MAX)
        return false;
    *out = (int)value;
    *text = end + (*end == ' ');
    return true;
}

const char *cli_with_commas(int64_t number, char text[CLI_NUMBER_BYTES])
{
    char digits[CLI_NUMBER_BYTES], *to = text;
    int length = snprintf(digits, sizeof digits, "%" PRId64, number);
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return text;
}

const char *cli_bytes_text(int64_t bytes, char text[CLI_NUMBER_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(text, CLI_NUMBER_BYTES, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}

const char *cli_real_text(double value, int decimals, char text[CLI_NUMBER_BYTES])
{
    const double many_digits = 1e6;
    if (isnan(value))
        snprintf(text, CLI_NUMBER_BYTES, "nan"); /* printf may have it "-nan" */
    else if (fabs(value) < many_digits)
        snprintf(text, CLI_NUMBER_BYTES, "%.*f", decimals, value);
    else
        snprintf(text, CLI_NUMBER_BYTES, "%.3g", value);
    return text;
}
