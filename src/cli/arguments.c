#define _GNU_SOURCE /* vasprintf */
#include "cli/arguments.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_BYTES = 256 };

/* ---- Sentences ---------------------------------------------------------------------------- */

void cli_complain(const char *format, ...)
{
    char *text;
    va_list values;
    va_start(values, format);
    int length = vasprintf(&text, format, values);
    va_end(values);
    if (length < 0) {
        fputs("sluice: no memory for an error's text\n", stderr);
        return;
    }
    for (char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c))
            *c = '?';
    fprintf(stderr, "sluice: %s\n", text);
    free(text);
}

_Noreturn void cli_refuse(const char *sentence, const char *got)
{
    if (got)
        cli_complain("%s, got \"%s\"", sentence, got);
    else
        cli_complain("%s", sentence);
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
    snprintf(sentence, sizeof sentence, "there is no such option (see %s --help)", state->argv[0]);
    cli_refuse(sentence, word);
}

int cli_finish(sl_status status)
{
    if (status == SL_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = sl_error(SL_ERR_IO, "standard output cannot be written: %s", strerror(errno));
    if (status == SL_OK)
        return 0;
    cli_complain("%s", sl_error_text());
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
    size_t used = (size_t)snprintf(sentence, sizeof sentence, "--%s must be ", name);
    for (int i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0)
            return i;
        const char *between = i == 0 ? "" : choices[i + 1] ? ", " : " or ";
        used +=
            (size_t)snprintf(sentence + used, sizeof sentence - used, "%s%s", between, choices[i]);
    }
    cli_refuse(sentence, text);
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

double cli_shown(double value)
{
    return isnan(value) ? fabs(value) : value;
}
