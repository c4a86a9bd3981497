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
        sli_printable(text, shown, room);
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

/* ---- Options ------------------------------------------------------------------------------ */

void cli_parse(const struct argp *parser, int argc, char **argv, void *input)
{
    if (argp_parse(parser, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, input) != 0)
        cli_refuse("the options could not be read", NULL);
}

/* The option of `parser` or of its children whose name is the first `length` bytes of `name`. */
static const struct argp_option *find_option(const struct argp *parser, const char *name,
                                             size_t length)
{
    const struct argp_option *found = NULL;
    for (const struct argp_option *at = parser->options; at && (at->name || at->doc); at++)
        if (at->name && strlen(at->name) == length && strncmp(at->name, name, length) == 0)
            return at;
    for (const struct argp_child *child = parser->children; child && child->argp && !found; child++)
        found = find_option(child->argp, name, length);
    return found;
}

static void consider_options(const struct argp *parser, cli_near *near)
{
    for (const struct argp_option *at = parser->options; at && (at->name || at->doc); at++)
        if (at->name)
            cli_near_consider(near, at->name);
    for (const struct argp_child *child = parser->children; child && child->argp; child++)
        consider_options(child->argp, near);
}

_Noreturn void cli_end_at_option(const struct argp_state *state)
{
    char sentence[SENTENCE_BYTES];
    const char *word = state->argv[state->next - 1];
    if (word[0] != '-' && state->next < state->argc)
        word = state->argv[state->next]; /* of "-xyz", argp stops at x */
    if (strcmp(word, "--help") == 0) {   /* argp's own is off: it comes with two-line errors */
        argp_help(state->root_argp, stdout, ARGP_HELP_STD_HELP, state->argv[0]);
        exit(cli_finish(SL_OK));
    }
    size_t length = strcspn(word, "=");
    const struct argp_option *option =
        length > 2 ? find_option(state->root_argp, word + 2, length - 2) : NULL;
    if (option) {
        snprintf(sentence, sizeof sentence,
                 option->arg ? "--%s needs a value" : "--%s takes no value", option->name);
        cli_refuse(sentence, option->arg ? NULL : word + length + (word[length] == '='));
    }
    char name[NEAR_LETTERS + 2];
    snprintf(name, sizeof name, "%.*s", length > 2 ? (int)length - 2 : 0, word + 2);
    cli_near near = {.word = name};
    consider_options(state->root_argp, &near);
    snprintf(sentence, sizeof sentence, "there is no such option (see %s --help)", state->argv[0]);
    cli_refuse_near(sentence, word, &near, "--");
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

/* ---- Values ------------------------------------------------------------------------------- */

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

int64_t cli_parse_integer(const char *name, const char *text, int64_t lowest, int64_t highest)
{
    char *end, sentence[SENTENCE_BYTES];
    errno = 0;
    long long value = strtoll(text, &end, 10);
    /* strtoll takes blanks and a plus, which no number here has. */
    bool plain = is_digit(text[0]) || (text[0] == '-' && is_digit(text[1]));
    if (plain && *end == '\0' && errno == 0 && value >= lowest && value <= highest)
        return value;
    bool limited = highest != INT64_MAX && highest != INT32_MAX; /* by more than our types */
    if (!limited && plain && *end == '\0' && value > lowest)
        snprintf(sentence, sizeof sentence, "--%s must be at most %" PRId64, name, highest);
    else if (!limited)
        snprintf(sentence, sizeof sentence, "--%s must be a whole number from %" PRId64, name,
                 lowest);
    else
        snprintf(sentence, sizeof sentence,
                 "--%s must be a whole number from %" PRId64 " to %" PRId64, name, lowest, highest);
    cli_refuse(sentence, text);
}

uint64_t cli_parse_bytes(const char *name, const char *text)
{
    static const char units[] = "KMG";
    char *end, sentence[SENTENCE_BYTES];
    errno = 0;
    uint64_t value = strtoumax(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (is_digit(text[0]) && end[unit != NULL] == '\0' && errno == 0 && value > 0 &&
        value <= (uint64_t)INT64_MAX >> shift)
        return value << shift;
    snprintf(sentence, sizeof sentence, "--%s must be a number of bytes such as 500M", name);
    cli_refuse(sentence, text);
}

uint64_t cli_parse_seed(const char *name, const char *text)
{
    char *end, sentence[SENTENCE_BYTES];
    errno = 0;
    uint64_t value = strtoumax(text, &end, 10);
    if (is_digit(text[0]) && *end == '\0' && errno == 0)
        return value;
    snprintf(sentence, sizeof sentence, "--%s must be a whole number from 0 to 2^64 - 1", name);
    cli_refuse(sentence, text);
}

double cli_parse_real(const char *name, const char *text)
{
    return cli_parse_real_to(name, text, INFINITY);
}

double cli_parse_real_to(const char *name, const char *text, double highest)
{
    char *end, sentence[SENTENCE_BYTES];
    errno = 0;
    double value = strtod(text, &end);
    bool plain = is_digit(text[0]) || text[0] == '.';
    if (plain && *end == '\0' && errno == 0 && value >= 0 && isfinite(value) && value <= highest)
        return value;
    if (isfinite(highest))
        snprintf(sentence, sizeof sentence, "--%s must be a number from 0 to %.0f", name, highest);
    else
        snprintf(sentence, sizeof sentence, "--%s must be a number from 0", name);
    cli_refuse(sentence, text);
}

const char *cli_parse_path(const char *name, const char *text)
{
    char sentence[SENTENCE_BYTES];
    if (*text)
        return text;
    snprintf(sentence, sizeof sentence, "--%s must not be empty", name);
    cli_refuse(sentence, NULL);
}

int cli_parse_choice(const char *name, const char *text, const char *const *choices)
{
    char sentence[SENTENCE_BYTES];
    cli_near near = {.word = text};
    size_t used = (size_t)snprintf(sentence, sizeof sentence, "--%s must be ", name);
    for (int i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0)
            return i;
        cli_near_consider(&near, choices[i]);
        const char *between = i == 0 ? "" : choices[i + 1] ? ", " : " or ";
        used +=
            (size_t)snprintf(sentence + used, sizeof sentence - used, "%s%s", between, choices[i]);
    }
    cli_refuse_near(sentence, text, &near, "");
}

/* ---- Numbers shown ------------------------------------------------------------------------ */

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
