#include "core/json.h"
#include "core/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

static sl_status refuse_text(const sli_json *json, const char *at, const char *why)
{
    return sl_error(SL_ERR_FORMAT, "%s is not valid JSON at its byte %zu: %s", json->what,
                    (size_t)(at - json->text) + 1, why);
}

/* ---- Where values end --------------------------------------------------------------------- */

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* `*at` is the first quote, and then behind the last. */
static sl_status skip_string(const sli_json *json, const char **at, const char *end)
{
    const char *next = *at + 1;
    while (next < end && *next != '"')
        next += *next == '\\' ? 2 : 1;
    if (next >= end)
        return refuse_text(json, *at, "the string does not end");
    *at = next + 1;
    return SL_OK;
}

/* Up to the bracket that closes the first one; of which kind they are is not looked at. */
static sl_status skip_brackets(const sli_json *json, const char **at, const char *end)
{
    size_t open = 0;
    const char *next = *at;
    while (next < end) {
        if (*next == '"') {
            SL_TRY(skip_string(json, &next, end));
            continue;
        }
        char c = *next++;
        open += c == '{' || c == '[';
        open -= c == '}' || c == ']';
        if (open == 0) {
            *at = next;
            return SL_OK;
        }
    }
    return refuse_text(json, *at, "the bracket is not closed");
}

static sl_status next_value(const sli_json *json, const char **at, const char *end,
                            sli_json_value *out)
{
    out->begin = *at;
    if (*at < end && (**at == '{' || **at == '['))
        SL_TRY(skip_brackets(json, at, end));
    else if (*at < end && **at == '"')
        SL_TRY(skip_string(json, at, end));
    else
        while (*at < end && !strchr(" \t\n\r,:{}[]\"", **at)) /* a 0 ends it too */
            ++*at;
    out->end = *at;
    return out->end > out->begin ? SL_OK : refuse_text(json, *at, "a value is missing");
}

sl_status sli_json_root(const sli_json *json, sli_json_value *out)
{
    const char *end = json->text + json->length, *at = skip_blanks(json->text, end);
    SL_TRY(next_value(json, &at, end, out));
    at = skip_blanks(at, end);
    return at == end ? SL_OK : refuse_text(json, at, "the end was expected");
}

/* ---- Walking ------------------------------------------------------------------------------ */

bool sli_json_is(sli_json_value value, char first)
{
    return value.begin < value.end && *value.begin == first;
}

sl_status sli_json_walk_begin(const sli_json *json, sli_json_value of, sli_json_walk *out)
{
    bool is_object = sli_json_is(of, '{');
    *out = (sli_json_walk){.json = json,
                           .at = of.begin + 1,
                           .end = of.end - 1,
                           .is_object = is_object};
    if (!is_object && !sli_json_is(of, '['))
        return refuse_text(json, of.begin, "an object or an array was expected");
    if (*out->end != (is_object ? '}' : ']'))
        return refuse_text(json, out->end, "another bracket was expected");
    return SL_OK;
}

static sl_status next_key(sli_json_walk *walk)
{
    if (walk->at == walk->end || *walk->at != '"')
        return refuse_text(walk->json, walk->at, "a name in quotes was expected");
    walk->key.begin = walk->at;
    SL_TRY(skip_string(walk->json, &walk->at, walk->end));
    walk->key.end = walk->at;
    walk->at = skip_blanks(walk->at, walk->end);
    if (walk->at == walk->end || *walk->at != ':')
        return refuse_text(walk->json, walk->at, "\":\" was expected");
    walk->at = skip_blanks(walk->at + 1, walk->end);
    return SL_OK;
}

static sl_status next_member(sli_json_walk *walk)
{
    if (walk->begun) {
        if (*walk->at != ',')
            return refuse_text(walk->json, walk->at, "\",\" was expected");
        walk->at = skip_blanks(walk->at + 1, walk->end);
    }
    walk->begun = true;
    if (walk->is_object)
        SL_TRY(next_key(walk));
    return next_value(walk->json, &walk->at, walk->end, &walk->value);
}

bool sli_json_walk_next(sli_json_walk *walk)
{
    walk->at = skip_blanks(walk->at, walk->end);
    if (walk->at == walk->end)
        return false;
    walk->status = next_member(walk);
    return walk->status == SL_OK;
}

/* ---- Decoding ----------------------------------------------------------------------------- */

static sl_status decode_value(const sli_json *json, sli_json_value value, json_t **out)
{
    json_error_t error;
    *out = json_loadb(value.begin, (size_t)(value.end - value.begin),
                      JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (*out)
        return SL_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return sli_no_memory(NULL, "the JSON of %s", json->what);
    return refuse_text(json, value.begin + error.position - (error.position > 0), error.text);
}

sl_status sli_json_parse(const sli_json *json, sli_json_value value, size_t most, json_t **out)
{
    *out = NULL;
    if ((size_t)(value.end - value.begin) > most)
        return sl_error(SL_ERR_FORMAT,
                        "%s has %zu bytes for a value at its byte %zu, where at "
                        "most %zu are allowed",
                        json->what, (size_t)(value.end - value.begin),
                        (size_t)(value.begin - json->text) + 1, most);
    return decode_value(json, value, out);
}

/* Most strings have no escapes: their characters can be taken as they stand. */
static bool is_plain(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == '\\')
            return false;
    return u8_check((const uint8_t *)text, length) == NULL;
}

sl_status sli_json_decode(const sli_json *json, sli_json_value value, char **room, const char **out)
{
    json_t *decoded = NULL;
    const char *text = value.begin + 1;
    size_t length = (size_t)(value.end - value.begin) - 2;
    if (!is_plain(text, length)) {
        SL_TRY(decode_value(json, value, &decoded));
        text = json_string_value(decoded);
        length = json_string_length(decoded);
    }
    memcpy(*room, text, length);
    (*room)[length] = '\0';
    *out = *room;
    *room += length + 1;
    json_decref(decoded);
    return SL_OK;
}

/* Strings without escapes and short whole numbers, of which a vocabulary has hundreds of thousands,
 * are known to be valid without jansson. */
static bool is_simple(sli_json_value value)
{
    enum { MOST_DIGITS = 18 }; /* that fit 64 bits */
    size_t length = (size_t)(value.end - value.begin);
    if (sli_json_is(value, '"'))
        return is_plain(value.begin + 1, length - 2);
    for (size_t i = 0; i < length; i++)
        if (value.begin[i] < '0' || value.begin[i] > '9')
            return false;
    return length <= MOST_DIGITS && (length == 1 || value.begin[0] != '0');
}

/* Walks through each level of arrays and of long objects, so that only short values are parsed. */
static sl_status check_below(const sli_json *json, sli_json_value value, int depth)
{
    enum { SHORT = 4096, MOST_DEPTH = 16 };
    json_t *decoded;
    sli_json_walk walk;
    bool is_short = value.end - value.begin <= SHORT;
    bool is_array = sli_json_is(value, '[') && depth < MOST_DEPTH;
    if (is_simple(value))
        return SL_OK;
    if ((is_short && !is_array) || sli_json_is(value, '"')) {
        SL_TRY(decode_value(json, value, &decoded));
        json_decref(decoded);
        return SL_OK;
    }
    if (depth == MOST_DEPTH)
        return refuse_text(json, value.begin, "too many brackets within brackets");
    SL_TRY(sli_json_walk_begin(json, value, &walk));
    while (sli_json_walk_next(&walk)) {
        if (walk.is_object)
            SL_TRY(check_below(json, walk.key, depth + 1));
        SL_TRY(check_below(json, walk.value, depth + 1));
    }
    return walk.status;
}

sl_status sli_json_check(const sli_json *json, sli_json_value value)
{
    return check_below(json, value, 0);
}

bool sli_json_equals(sli_json_value value, const char *text)
{
    size_t length = strlen(text);
    return (size_t)(value.end - value.begin) == length + 2 &&
           memcmp(value.begin + 1, text, length) == 0;
}

sl_status sli_json_find_members(const sli_json *json, sli_json_value of, const char *const *keys,
                                size_t count, sli_json_value *values)
{
    sli_json_walk walk;
    if (!sli_json_is(of, '{'))
        return sl_error(SL_ERR_FORMAT, "%s must be a JSON object", json->what);
    SL_TRY(sli_json_walk_begin(json, of, &walk));
    while (sli_json_walk_next(&walk)) {
        size_t key = 0;
        while (key < count && !sli_json_equals(walk.key, keys[key]))
            key++;
        if (key == count)
            SL_TRY(sli_json_check(json, walk.value));
        else if (values[key].begin)
            return sl_error(SL_ERR_FORMAT, "\"%s\" is listed twice", keys[key]);
        else
            values[key] = walk.value;
    }
    return walk.status;
}

/* ---- Values for writing ------------------------------------------------------------------- */

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

static json_t *float_value(float value, bool exact)
{
    return exact ? json_real((double)value)
                 : sli_json_number(sli_number_print((double)value, true).value);
}

/* JSON's readers hold integers in 64 signed bits. */
static json_t *seed_json(uint64_t value, bool exact)
{
    char digits[24];
    if (!exact && value <= INT64_MAX)
        return json_integer((json_int_t)value);
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return json_string(digits);
}

static json_t *pair_json(const float *values, bool exact)
{
    return json_pack("[o,o]", float_value(values[0], exact), float_value(values[1], exact));
}

static json_t *custom_json(const sl_option *option, const void *object)
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
        return float_value(*(const float *)field, exact);
    case SL_OPTION_DOUBLE:
        return sli_json_number(*(const double *)field);
    case SL_OPTION_PAIR:
        return pair_json(field, exact);
    case SL_OPTION_SEED:
        return seed_json(*(const uint64_t *)field, exact);
    case SL_OPTION_BYTES:
        return json_integer((json_int_t) * (const uint64_t *)field);
    case SL_OPTION_CHOICE:
        return json_string(option->choices[*(const int *)field]);
    case SL_OPTION_TEXT:
        return sli_json_text(*(const char *const *)field);
    case SL_OPTION_CUSTOM:
        break;
    }
    return custom_json(option, object);
}

/* ---- Numbers in files ----------------------------------------------------------------- */

sli_c_numbers sli_c_numbers_begin(void)
{
    locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* static: there is always one */
    return (sli_c_numbers){own, uselocale(own)};
}

void sli_c_numbers_end(sli_c_numbers scope)
{
    uselocale(scope.before);
    freelocale(scope.own);
}

sli_number_text sli_number_print(double value, bool is_float)
{
    int precision = 6, most = is_float ? 9 : 17;
    sli_number_text printed;
    sli_c_numbers scope = sli_c_numbers_begin();
    do {
        snprintf(printed.text, sizeof printed.text, "%.*g", precision++, value);
        printed.value = strtod(printed.text, NULL);
    } while (precision <= most &&
             (is_float ? (double)strtof(printed.text, NULL) : printed.value) != value);
    sli_c_numbers_end(scope);
    return printed;
}
