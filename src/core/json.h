/* JSON of a file that may be hostile. A tree of its nodes takes up to a hundred times the memory of
 * the text ("[{},{},…"), so that no text is parsed as a whole: it is walked through, value by
 * value, and only what is short, or a string, is decoded. Time and memory are proportional to the
 * text's length. */
#ifndef SLI_CORE_JSON_H
#define SLI_CORE_JSON_H

#include "sluice/status.h"

#include <stdbool.h>

struct json_t;

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
} sli_json_walk;

/* All functions fail with SL_ERR_FORMAT, "WHAT is not valid JSON at its byte N: …", or with
 * SL_ERR_MEMORY. What is between brackets is checked when it is walked through or decoded. */

/* The only value of the text. */
sl_status sli_json_root(const sli_json *json, sli_json_value *out);

bool sli_json_is(sli_json_value value, char first); /* its first character: { [ " */

/* Starts with an object or an array. */
sl_status sli_json_walk_begin(const sli_json *json, sli_json_value of, sli_json_walk *out);
/* The next one is in `key` and `value`; *found is false after the last. Objects may have a key
 * twice. */
sl_status sli_json_walk_next(sli_json_walk *walk, bool *found);

/* Decodes a string to *room, and moves *room behind its 0. It takes less room than the value. */
sl_status sli_json_decode(const sli_json *json, sli_json_value value, char **room, const char **out);

/* Parses any value of at most `most` characters: jansson's tree, to be released by json_decref. */
sl_status sli_json_parse(const sli_json *json, sli_json_value value, size_t most,
                         struct json_t **out);

/* Parses all of it, without result. */
sl_status sli_json_check(const sli_json *json, sli_json_value value);

/* Whether a string is `text`, which has nothing to escape. */
bool sli_json_equals(sli_json_value value, const char *text);

#endif
