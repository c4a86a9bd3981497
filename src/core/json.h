/* JSON: reading it from files that may be hostile, and values to write. Numbers in any file.
 *
 * jansson parses a text as a whole, into a tree that takes up to a hundred times the text's memory
 * ("[{},{},…"). A safetensors header may have 100 MB, so files are read with both: the text is
 * walked through here, value by value, and jansson decodes only what is short, or a string. Time
 * and memory are proportional to the text's length. */
#ifndef SLI_CORE_JSON_H
#define SLI_CORE_JSON_H

#include "sluice/app/option.h"

#include <jansson.h>
#include <locale.h>
#include <stdbool.h>

/* A text, called `what` in errors ("the header"). Borrowed. */
typedef struct sli_json {
    const char *what, *text;
    size_t length;
} sli_json;

/* The characters of a value within the text. Strings have their quotes. */
typedef struct sli_json_value {
    const char *begin, *end;
} sli_json_value;

/* The members of an object, or the elements of an array, one after the other. */
typedef struct sli_json_walk {
    const sli_json *json;
    const char *at, *end;
    bool is_object, begun;
    sli_json_value key; /* of objects */
    sli_json_value value;
    sl_status status;
} sli_json_walk;

/* All functions fail with SL_ERR_FORMAT, "WHAT is not valid JSON at its byte N: …", or with
 * SL_ERR_MEMORY. What is between brackets is checked when it is walked through or decoded. */

/* The only value of the text. */
sl_status sli_json_root(const sli_json *json, sli_json_value *out);

bool sli_json_is(sli_json_value value, char first); /* its first character: { [ " */

/* Starts with an object or an array. */
sl_status sli_json_walk_begin(const sli_json *json, sli_json_value of, sli_json_walk *out);
/* The next one is in `key` and `value`; false after the last, and after an error, which is then in
 * `status`. Objects may have a key twice. */
bool sli_json_walk_next(sli_json_walk *walk);

/* The values of the object's members by their keys [count], of those that are there; all NULL
 * before. Other members are checked. Errors: SL_ERR_FORMAT too where `of` is no object, or has one
 * of the keys twice. */
sl_status sli_json_find_members(const sli_json *json, sli_json_value of, const char *const *keys,
                                size_t count, sli_json_value *values);

/* Decodes a string to *room, and moves *room behind its 0. It takes less room than the value. */
sl_status sli_json_decode(const sli_json *json, sli_json_value value, char **room,
                          const char **out);

/* Parses any value of at most `most` characters: jansson's tree, to be released by json_decref. */
sl_status sli_json_parse(const sli_json *json, sli_json_value value, size_t most, json_t **out);

/* Parses the whole value, and gives no result. */
sl_status sli_json_check(const sli_json *json, sli_json_value value);

/* Whether a string is `text`, which has nothing to escape. */
bool sli_json_equals(sli_json_value value, const char *text);

/* ---- Values for writing ---- */

/* null for NaN and infinity. */
json_t *sli_json_number(double value);

/* A text as a string: bytes that are not UTF-8, as in names of files, become U+FFFD. NULL for NULL.
 */
json_t *sli_json_text(const char *text);

/* An option's value; NULL where it is not set or there is no memory. `exact`, as in a run's state:
 * floats with all digits of their value as a double, seeds as strings. Otherwise floats with the
 * fewest digits that read as the same float, and seeds as numbers up to 2^63 - 1. */
json_t *sli_json_option(const sl_option *option, const void *object, bool exact);

/* ---- Numbers in files ----------------------------------------------------------------- */

/* Numbers with a decimal point in every locale, as files have them: printf and strtod follow the
 * thread's locale. (jansson does this by itself.) */
typedef struct sli_c_numbers {
    locale_t own, before;
} sli_c_numbers;

/* Gives this thread the locale "C" until sli_c_numbers_end; one pair may lie within another. */
sli_c_numbers sli_c_numbers_begin(void);
void sli_c_numbers_end(sli_c_numbers scope);

enum { SLI_NUMBER_BYTES = 32 };

typedef struct sli_number_text {
    char text[SLI_NUMBER_BYTES];
    double value; /* of the digits as a double: for a float, 0.9 instead of 0.89999997615814209 */
} sli_number_text;

/* Prints a number with the fewest digits, at least 6, that read as the same double, or as the same
 * float. */
sli_number_text sli_number_print(double value, bool is_float);

#endif
