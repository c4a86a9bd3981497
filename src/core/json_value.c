#include "core/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

json_t *sli_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *sli_json_text(const char *text)
{
    json_t *value = json_string(text);
    if (value || !text)
        return value;
    size_t left = strlen(text), used = 0;
    uint8_t *clean = malloc(3 * left + 1);
    if (!clean)
        return NULL;
    for (const uint8_t *at = (const uint8_t *)text; left > 0;) {
        ucs4_t character;
        int length = u8_mbtouc(&character, at, left);
        used += (size_t)u8_uctomb(clean + used, character, 4);
        at += length;
        left -= (size_t)length;
    }
    value = json_stringn((const char *)clean, used);
    free(clean);
    return value;
}

/* 0.9, not the 0.89999997615814209 that a float of 0.9 is as a double. */
static json_t *shortest_float(float value)
{
    char digits[32];
    int precision = 6;
    do
        snprintf(digits, sizeof digits, "%.*g", precision++, (double)value);
    while (precision <= 9 && strtof(digits, NULL) != value);
    return sli_json_number(strtod(digits, NULL));
}

/* JSON's readers hold integers in 64 signed bits. */
static json_t *seed(uint64_t value, bool exact)
{
    char digits[24];
    if (!exact && value <= INT64_MAX)
        return json_integer((json_int_t)value);
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return json_string(digits);
}

static json_t *custom(const sl_option *option, const void *object)
{
    char *text = option->print(object);
    json_t *value = sli_json_text(text);
    free(text);
    return value;
}

json_t *sli_json_option(const sl_option *option, const void *object, bool exact)
{
    const void *field = (const char *)object + option->offset;
    switch (option->type) {
    case SL_OPTION_FLAG:
        return json_boolean(*(const bool *)field);
    case SL_OPTION_INT:
        return json_integer(*(const int *)field);
    case SL_OPTION_INT64:
        return json_integer(*(const int64_t *)field);
    case SL_OPTION_FLOAT:
        return exact ? json_real((double)*(const float *)field)
                     : shortest_float(*(const float *)field);
    case SL_OPTION_DOUBLE:
        return sli_json_number(*(const double *)field);
    case SL_OPTION_SEED:
        return seed(*(const uint64_t *)field, exact);
    case SL_OPTION_BYTES:
        return json_integer((json_int_t) * (const uint64_t *)field);
    case SL_OPTION_CHOICE:
        return json_string(option->choices[*(const int *)field]);
    case SL_OPTION_TEXT:
        return sli_json_text(*(const char *const *)field);
    case SL_OPTION_CUSTOM:
        break;
    }
    return custom(option, object);
}
