#define _GNU_SOURCE /* asprintf */
#include "sluice/app/option.h"

#include "core/error.h"
#include "core/json.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_BYTES = 256 };

static const void *field_in(const sl_option *option, const void *object)
{
    return (const char *)object + option->offset;
}

static int64_t highest_of(const sl_option *option)
{
    int64_t of_type = option->type == SL_OPTION_INT ? INT32_MAX : INT64_MAX;
    return option->highest ? option->highest : of_type;
}

/* ---- Setting ------------------------------------------------------------------------------ */

/* strtoll and strtod take blanks, signs, hexadecimal digits and names, which no number here has. */
static bool is_plain(const char *text)
{
    return isdigit((unsigned char)text[0]) || (text[0] == '.' && isdigit((unsigned char)text[1]));
}

static sl_status set_whole(const sl_option *option, const char *text, void *field)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool whole = is_plain(text) && *text != '.' && *end == '\0';
    if (whole && errno == 0 && value >= option->lowest && value <= highest_of(option)) {
        if (option->type == SL_OPTION_INT)
            *(int *)field = (int)value;
        else
            *(int64_t *)field = value;
        return SL_OK;
    }
    if (option->highest != 0)
        return sl_error(SL_ERR_INVALID,
                        "%s must be a whole number from %" PRId64 " to %" PRId64 ", got \"%s\"",
                        option->name, option->lowest, option->highest, text);
    if (whole && value > option->lowest)
        return sl_error(SL_ERR_INVALID, "%s must be at most %" PRId64 ", got \"%s\"", option->name,
                        highest_of(option), text);
    return sl_error(SL_ERR_INVALID, "%s must be a whole number from %" PRId64 ", got \"%s\"",
                    option->name, option->lowest, text);
}

static void real_range(const sl_option *option, char *sentence)
{
    if (option->less_than > 0)
        snprintf(sentence, SENTENCE_BYTES, "at least 0 and below %g", option->less_than);
    else if (option->highest > 0)
        snprintf(sentence, SENTENCE_BYTES, "a number from 0 to %" PRId64, option->highest);
    else
        snprintf(sentence, SENTENCE_BYTES, "a number %s 0",
                 option->default_value > 0 ? "above" : "from"); /* 0 itself stands for another */
}

static bool is_in_range(const sl_option *option, double value)
{
    return value >= 0 && isfinite(value) && (option->less_than == 0 || value < option->less_than) &&
           (option->highest == 0 || value <= (double)option->highest);
}

static sl_status set_real(const sl_option *option, const char *text, void *field)
{
    char *end, range[SENTENCE_BYTES];
    sli_c_numbers scope = sli_c_numbers_begin();
    double value = strtod(text, &end);
    sli_c_numbers_end(scope);
    bool plain = is_plain(text) && text[1] != 'x' && text[1] != 'X' && *end == '\0';
    if (option->type == SL_OPTION_FLOAT)
        value = (double)(float)value;
    if (!plain || !is_in_range(option, value) || (value == 0 && option->default_value != 0)) {
        real_range(option, range);
        return sl_error(SL_ERR_INVALID, "%s must be %s, got \"%s\"", option->name, range, text);
    }
    if (option->type == SL_OPTION_FLOAT)
        *(float *)field = (float)value;
    else
        *(double *)field = value;
    return SL_OK;
}

/* One of a pair's two numbers as an option of its own. */
static sl_option number_of_pair(const sl_option *pair, int index)
{
    sl_option number = *pair;
    number.type = SL_OPTION_FLOAT;
    if (index == 1) {
        number.offset += sizeof(float);
        number.default_value = pair->second_default;
    }
    return number;
}

static sl_status set_pair(const sl_option *option, const char *text, void *object)
{
    char first[SLI_NUMBER_BYTES];
    size_t length = strcspn(text, ",");
    sl_option one = number_of_pair(option, 0), two = number_of_pair(option, 1);
    if (length < sizeof first && text[length] == ',') {
        snprintf(first, sizeof first, "%.*s", (int)length, text);
        if (sl_option_set(&one, object, first) == SL_OK &&
            sl_option_set(&two, object, text + length + 1) == SL_OK)
            return SL_OK;
    }
    return sl_error(SL_ERR_INVALID,
                    "%s must be two numbers above 0 and below %g, such as %g,%g, got \"%s\"",
                    option->name, option->less_than, option->default_value, option->second_default,
                    text);
}

static sl_status set_seed(const sl_option *option, const char *text, uint64_t *field)
{
    char *end;
    errno = 0;
    uint64_t value = strtoumax(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0)
        return sl_error(SL_ERR_INVALID, "%s must be a whole number from 0 to 2^64 - 1, got \"%s\"",
                        option->name, text);
    *field = value;
    return SL_OK;
}

static sl_status set_bytes(const sl_option *option, const char *text, uint64_t *field)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    uint64_t value = strtoumax(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (!isdigit((unsigned char)text[0]) || end[unit != NULL] != '\0' || errno != 0 || value == 0 ||
        value > (uint64_t)INT64_MAX >> shift)
        return sl_error(SL_ERR_INVALID, "%s must be a number of bytes such as 500M, got \"%s\"",
                        option->name, text);
    *field = value << shift;
    return SL_OK;
}

static sl_status find_choice(const sl_option *option, const char *text, int *index)
{
    char names[SENTENCE_BYTES] = "";
    size_t used = 0;
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(text, option->choices[i]) == 0) {
            *index = i;
            return SL_OK;
        }
        const char *between = i == 0 ? "" : option->choices[i + 1] ? ", " : " or ";
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", between,
                                     option->choices[i]);
    }
    return sl_error(SL_ERR_INVALID, "%s must be %s, got \"%s\"", option->name, names, text);
}

static sl_status set_text(const sl_option *option, const char *text, const char **field)
{
    int index;
    if (!*text)
        return sl_error(SL_ERR_INVALID, "%s must not be empty", option->name);
    if (option->choices)
        SL_TRY(find_choice(option, text, &index));
    *field = text;
    return SL_OK;
}

static sl_status set_flag(const sl_option *option, const char *text, bool *field)
{
    bool on = !text || strcmp(text, "true") == 0;
    if (!on && strcmp(text, "false") != 0)
        return sl_error(SL_ERR_INVALID, "%s must be true or false, got \"%s\"", option->name, text);
    *field = on;
    return SL_OK;
}

sl_status sl_option_set(const sl_option *option, void *object, const char *text)
{
    void *field = (char *)object + option->offset;
    switch (option->type) {
    case SL_OPTION_FLAG:
        return set_flag(option, text, field);
    case SL_OPTION_INT:
    case SL_OPTION_INT64:
        return set_whole(option, text, field);
    case SL_OPTION_FLOAT:
    case SL_OPTION_DOUBLE:
        return set_real(option, text, field);
    case SL_OPTION_PAIR:
        return set_pair(option, text, object);
    case SL_OPTION_SEED:
        return set_seed(option, text, field);
    case SL_OPTION_BYTES:
        return set_bytes(option, text, field);
    case SL_OPTION_CHOICE:
        return find_choice(option, text, field);
    case SL_OPTION_TEXT:
        return set_text(option, text, field);
    case SL_OPTION_CUSTOM:
        break;
    }
    return option->parse(text, object);
}

/* ---- Checking ----------------------------------------------------------------------------- */

static sl_status check_whole(const sl_option *option, int64_t value)
{
    if (value == 0 && option->optional)
        return SL_OK;
    if (value < option->lowest)
        return sl_error(SL_ERR_INVALID, "%s must be at least %" PRId64 ", got %" PRId64,
                        option->name, option->lowest, value);
    if (value > highest_of(option))
        return sl_error(SL_ERR_INVALID, "%s must be at most %" PRId64 ", got %" PRId64,
                        option->name, highest_of(option), value);
    return SL_OK;
}

static sl_status check_real(const sl_option *option, double value)
{
    char range[SENTENCE_BYTES];
    if (is_in_range(option, value))
        return SL_OK;
    real_range(option, range);
    return sl_error(SL_ERR_INVALID, "%s must be %s, got %g", option->name, range, value);
}

static sl_status check_choice(const sl_option *option, int value)
{
    int count = 0;
    while (option->choices[count])
        count++;
    if (value >= 0 && value < count)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s must be one of its %d choices, got number %d", option->name,
                    count, value);
}

static sl_status check_pair(const sl_option *option, const void *object)
{
    sl_option one = number_of_pair(option, 0), two = number_of_pair(option, 1);
    SL_TRY(sl_option_check(&one, object));
    return sl_option_check(&two, object);
}

sl_status sl_option_check(const sl_option *option, const void *object)
{
    const void *field = field_in(option, object);
    switch (option->type) {
    case SL_OPTION_INT:
        return check_whole(option, *(const int *)field);
    case SL_OPTION_INT64:
        return check_whole(option, *(const int64_t *)field);
    case SL_OPTION_FLOAT:
        return check_real(option, (double)*(const float *)field);
    case SL_OPTION_DOUBLE:
        return check_real(option, *(const double *)field);
    case SL_OPTION_PAIR:
        return check_pair(option, object);
    case SL_OPTION_CHOICE:
        return check_choice(option, *(const int *)field);
    default:
        return SL_OK; /* any value of the field is one of the option */
    }
}

/* ---- Printing ----------------------------------------------------------------------------- */

static int print_real(const sl_option *option, double value, char **text)
{
    bool is_float = option->type == SL_OPTION_FLOAT;
    if (value < 0)
        return 0;
    if (value == 0)
        value = is_float ? (double)(float)option->default_value : option->default_value;
    return asprintf(text, "%s", sli_number_print(value, is_float).text);
}

static int print_pair(const sl_option *option, const float *field, char **text)
{
    char *one = NULL, *two = NULL;
    sl_option first = number_of_pair(option, 0), second = number_of_pair(option, 1);
    int length = print_real(&first, (double)field[0], &one);
    if (length > 0)
        length = print_real(&second, (double)field[1], &two);
    if (length > 0)
        length = asprintf(text, "%s,%s", one, two);
    free(one);
    free(two);
    return length;
}

static int print_whole(const sl_option *option, int64_t value, char **text)
{
    if (value == 0 && option->optional && option->default_value == 0)
        return 0;
    return asprintf(text, "%" PRId64,
                    value == 0 && option->optional ? (int64_t)option->default_value : value);
}

static int print_field(const sl_option *option, const void *field, char **text)
{
    switch (option->type) {
    case SL_OPTION_FLAG:
        return asprintf(text, "%s", *(const bool *)field ? "true" : "false");
    case SL_OPTION_INT:
        return print_whole(option, *(const int *)field, text);
    case SL_OPTION_INT64:
        return print_whole(option, *(const int64_t *)field, text);
    case SL_OPTION_FLOAT:
        return print_real(option, (double)*(const float *)field, text);
    case SL_OPTION_DOUBLE:
        return print_real(option, *(const double *)field, text);
    case SL_OPTION_PAIR:
        return print_pair(option, field, text);
    case SL_OPTION_SEED:
        return asprintf(text, "%" PRIu64, *(const uint64_t *)field);
    case SL_OPTION_BYTES:
        return *(const uint64_t *)field ? asprintf(text, "%" PRIu64, *(const uint64_t *)field) : 0;
    case SL_OPTION_CHOICE:
        return asprintf(text, "%s", option->choices[*(const int *)field]);
    case SL_OPTION_TEXT:
        return *(const char *const *)field ? asprintf(text, "%s", *(const char *const *)field) : 0;
    case SL_OPTION_CUSTOM:
        break;
    }
    return 0;
}

sl_status sl_option_text(const sl_option *option, const void *object, char **text)
{
    *text = NULL;
    if (option->type == SL_OPTION_CUSTOM)
        *text = option->print(object);
    else if (print_field(option, field_in(option, object), text) < 0)
        return sli_no_memory(NULL, "the value of %s", option->name);
    return SL_OK;
}

const sl_option *sl_option_find(const sl_option *rows, const char *name)
{
    for (; rows->name; rows++)
        if (strcmp(rows->name, name) == 0)
            return rows;
    return NULL;
}
