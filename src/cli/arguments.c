#include "cli/arguments.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_BYTES = 256 };

_Noreturn void cli_refuse(const char *sentence, const char *got)
{
    if (got)
        fprintf(stderr, "sluice: %s, got \"%s\"\n", sentence, got);
    else
        fprintf(stderr, "sluice: %s\n", sentence);
    exit(CLI_EXIT_USAGE);
}

int cli_finish(sl_status status)
{
    if (status == SL_OK)
        return 0;
    fprintf(stderr, "sluice: %s\n", sl_error_text());
    return CLI_EXIT_ERROR;
}

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
    if (highest == INT64_MAX || highest == INT32_MAX)
        snprintf(sentence, sizeof sentence, "--%s must be a whole number from %" PRId64, name,
                 lowest);
    else
        snprintf(sentence, sizeof sentence,
                 "--%s must be a whole number from %" PRId64 " to %" PRId64, name, lowest, highest);
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
    char *end, sentence[SENTENCE_BYTES];
    errno = 0;
    double value = strtod(text, &end);
    bool plain = is_digit(text[0]) || text[0] == '.';
    if (plain && *end == '\0' && errno == 0 && value >= 0 && isfinite(value))
        return value;
    snprintf(sentence, sizeof sentence, "--%s must be a number from 0", name);
    cli_refuse(sentence, text);
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
