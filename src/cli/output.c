/* What the program prints besides a run's display: errors and warnings, with the word that was
 * probably meant; texts from files, escaped; numbers as people read them. */
#define _GNU_SOURCE /* vasprintf */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

sl_launch_link *cli_launcher;

/* ---- Errors and warnings ------------------------------------------------------------------ */

/* Prints the text, with `lines` its line ends as they are, and frees it (NULL: there was no memory
 * for it). An error that ends the program goes to the launcher where there is one. */
static void print_sentence(char *text, bool ends, bool lines)
{
    char *shown = text ? sl_escape_text(text, lines) : NULL;
    /* One write, as other processes may have the same standard error. */
    if (!ends || !shown || !sl_launch_link_error(cli_launcher, shown))
        fprintf(stderr, "sluice: %s\n", shown ? shown : "no memory for an error's text");
    free(shown);
    free(text);
}

/* Malloc'ed; NULL: no memory. */
__attribute__((format(printf, 1, 0))) static char *make_text(const char *format, va_list values)
{
    char *text;
    return vasprintf(&text, format, values) < 0 ? NULL : text;
}

void cli_complain(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    print_sentence(make_text(format, values), false, false);
    va_end(values);
}

sl_status cli_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return SL_OK;
    return sl_error(SL_ERR_IO, "standard output cannot be written: %s", strerror(errno));
}

bool cli_name_ends_with(const char *path, const char *end)
{
    size_t bytes = strlen(path), end_bytes = strlen(end);
    return bytes > end_bytes && strcmp(path + bytes - end_bytes, end) == 0;
}

int cli_finish(sl_status status)
{
    if (status == SL_OK && !cli_signals_output_lost())
        status = cli_flush();
    if (status == SL_OK)
        return 0;
    print_sentence(strdup(sl_error_text()), true, true); /* it may have a drawing */
    return status == SL_ERR_CONFLICT ? CLI_EXIT_CONFLICT : CLI_EXIT_ERROR;
}

void *cli_allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory)
        return memory;
    cli_complain("no memory for %zu bytes", count * bytes);
    exit(CLI_EXIT_ERROR);
}

/* ---- Near misses -------------------------------------------------------------------------- */

static int smaller_of(int a, int b)
{
    return a < b ? a : b;
}

static bool is_same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Letters inserted, left out, changed or exchanged with their neighbour (Damerau). Longer words
 * are not compared. */
static int edit_distance(const char *a, const char *b)
{
    enum { MOST_LETTERS = 32 };
    int steps[MOST_LETTERS + 1][MOST_LETTERS + 1];
    int a_length = (int)strlen(a), b_length = (int)strlen(b);
    if (a_length > MOST_LETTERS || b_length > MOST_LETTERS)
        return INT_MAX;
    for (int i = 0; i <= a_length; i++)
        for (int k = 0; k <= b_length; k++) {
            if (i == 0 || k == 0) {
                steps[i][k] = i + k;
                continue;
            }
            int change = steps[i - 1][k - 1] + !is_same_letter(a[i - 1], b[k - 1]);
            steps[i][k] = smaller_of(change, 1 + smaller_of(steps[i - 1][k], steps[i][k - 1]));
            if (i > 1 && k > 1 && is_same_letter(a[i - 1], b[k - 2]) &&
                is_same_letter(a[i - 2], b[k - 1]))
                steps[i][k] = smaller_of(steps[i][k], steps[i - 2][k - 2] + 1);
        }
    return steps[a_length][b_length];
}

/* Also of a longer word: "adamw8bit" begins with "adamw". */
static bool begins_with(const char *word, const char *beginning)
{
    enum { FEWEST_LETTERS = 4 };
    size_t length = strlen(beginning);
    return length >= FEWEST_LETTERS && strncasecmp(word, beginning, length) == 0;
}

void cli_near_add(cli_near *near, const char *candidate)
{
    int found = edit_distance(near->word, candidate), length = (int)strlen(near->word);
    int most = 1 + length / 6; /* more is another word */
    if (begins_with(near->word, candidate) || begins_with(candidate, near->word))
        found = smaller_of(found, most);
    if (found > most || found >= length || (near->best && found >= near->distance))
        return;
    near->best = candidate;
    near->distance = found;
}

void cli_refuse_near(const cli_near *near, const char *prefix, const char *format, ...)
{
    char *text, *longer;
    va_list values;
    va_start(values, format);
    text = make_text(format, values);
    va_end(values);
    if (text && near && near->best &&
        asprintf(&longer, "%s: did you mean %s%s?", text, prefix, near->best) >= 0) {
        free(text);
        text = longer;
    }
    print_sentence(text, true, false);
    exit(CLI_EXIT_USAGE);
}

/* ---- Files -------------------------------------------------------------------------------- */

bool cli_is_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return a && b && stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && S_ISREG(of_a.st_mode) &&
           of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* ---- Texts and numbers -------------------------------------------------------------------- */

void cli_print_text(const char *text, int width)
{
    char *shown = sl_escape_text(text, false);
    printf("%-*s", width, shown ? shown : "?");
    free(shown);
}

cli_text cli_duration_text(double seconds)
{
    int64_t whole = (int64_t)(seconds + 0.5);
    int minutes = (int)(whole % 3600 / 60), rest = (int)(whole % 60);
    cli_text out;
    if (whole >= 3600)
        snprintf(out.text, sizeof out.text, "%" PRId64 ":%02d:%02d", whole / 3600, minutes, rest);
    else
        snprintf(out.text, sizeof out.text, "%d:%02d", minutes, rest);
    return out;
}

/* In the largest unit of which there are two. */
cli_text cli_span_text(double seconds)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {
        {"days", SL_DAY_SECONDS}, {"hours", 3600}, {"minutes", 60}, {"s", 1}, {"ms", 1e-3}};
    cli_text out = {"never"};
    size_t i = 0;
    while (i + 1 < sizeof units / sizeof *units && seconds < 2 * units[i].seconds)
        i++;
    if (isfinite(seconds))
        snprintf(out.text, sizeof out.text, "%.4g %s", seconds / units[i].seconds, units[i].name);
    return out;
}

cli_text cli_count_text(int64_t number)
{
    cli_text digits, out = {""};
    char *end = out.text;
    int length = snprintf(digits.text, sizeof digits.text, "%" PRId64, number);
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *end++ = ',';
        *end++ = digits.text[i];
    }
    *end = '\0';
    return out;
}

cli_text cli_bytes_text(int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    cli_text out;
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(out.text, sizeof out.text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return out;
}

cli_text cli_real_text(double value, int decimals)
{
    const double many_digits = 1e6;
    cli_text out;
    if (isnan(value))
        snprintf(out.text, sizeof out.text, "nan"); /* printf may have it "-nan" */
    else if (fabs(value) < many_digits)
        snprintf(out.text, sizeof out.text, "%.*f", decimals, value);
    else
        snprintf(out.text, sizeof out.text, "%.3g", value);
    return out;
}
