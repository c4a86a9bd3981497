#include "io/checkpoint/state.h"

#include "core/json.h"
#include "io/safetensors/format.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT_VERSION = 1 };

static const char *const format_name = "sluice checkpoint";
static const char checksum_key[] = SLI_CHECKPOINT_CHECKSUM_KEY;

/* Of the object, which has none yet. */
static sl_status checksum_of(const json_t *json, char *text)
{
    char *printed = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!printed)
        return sl_error(SL_ERR_MEMORY, "no memory for its checksum");
    sli_checksum_of(printed, strlen(printed), text);
    free(printed);
    return SL_OK;
}

/* ---- Printing --------------------------------------------------------------------------- */

static sl_status print(json_t *json, char **text)
{
    char checksum[SLI_CHECKSUM_BYTES];
    SL_TRY(checksum_of(json, checksum));
    json_object_set_new(json, checksum_key, json_string(checksum));
    *text = json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    if (!json_object_get(json, checksum_key) || !*text)
        return sl_error(SL_ERR_MEMORY, "no memory for its text");
    return SL_OK;
}

sl_status sli_checkpoint_state_print(const char *id, const char *run, json_t *files, char **text)
{
    json_error_t error;
    *text = NULL;
    json_t *run_json = json_loads(run ? run : "{}", JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(run_json)) {
        json_decref(run_json);
        return sl_error(SL_ERR_INVALID, "the state must be the text of a JSON object");
    }
    json_t *json =
        json_pack("{ss si ss ss sO so}", "format", format_name, "format_version", FORMAT_VERSION,
                  "version", SLUICE_VERSION, "id", id, "files", files, "run", run_json);
    sl_status status =
        json ? print(json, text) : sl_error(SL_ERR_MEMORY, "no memory for the state");
    json_decref(json);
    return status;
}

/* ---- Reading ---------------------------------------------------------------------------- */

static bool is_plain_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') &&
           strcmp(name, SLI_CHECKPOINT_STATE) != 0;
}

static bool is_checksum(const char *text)
{
    size_t digits = 0;
    while (isxdigit((unsigned char)text[digits]))
        digits++;
    return digits == SLI_CHECKSUM_BYTES - 1 && text[digits] == '\0';
}

/* What is read, and how much of the state's strings is used so far. */
typedef struct parsing {
    sli_json json;
    char *strings;
    sli_checkpoint_state *state;
} parsing;

/* The values of the members, in the order of `keys`. */
enum { FORMAT, FORMAT_NUMBER, VERSION, ID, FILES, RUN, CHECKSUM, KEYS };

static const char *const keys[KEYS] = {"format", "format_version", "version", "id", "files",
                                       "run",    checksum_key};

static sl_status missing(const char *key, const char *what)
{
    return sl_error(SL_ERR_FORMAT, "\"%s\" must be %s", key, what);
}

/* Of a small object the string under `key`, or NULL. */
static const char *keep_text(parsing *run, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    size_t length = json_string_length(value);
    if (!json_is_string(value))
        return NULL;
    char *kept = memcpy(run->strings, json_string_value(value), length + 1);
    run->strings += length + 1;
    return kept;
}

static sl_status parse_file(parsing *run, const json_t *value, sl_checkpoint_file_info *out)
{
    char quoted[SLI_QUOTE_BYTES];
    const json_t *bytes = json_object_get(value, "bytes"), *part = json_object_get(value, "part");
    const char *name = json_string_value(json_object_get(value, "name"));
    const char *checksum = json_string_value(json_object_get(value, checksum_key));
    if (!name || !is_plain_name(name))
        return sl_error(SL_ERR_FORMAT, "each of \"files\" must have the \"name\" of a file");
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0 || !checksum ||
        !is_checksum(checksum) || (part && !json_is_string(part)))
        return sl_error(SL_ERR_FORMAT,
                        "file %s must have \"bytes\" from 0 and an \"xxh128\" of 32 hexadecimal "
                        "digits",
                        sli_safetensors_quote(name, quoted));
    *out = (sl_checkpoint_file_info){keep_text(run, value, "name"), keep_text(run, value, "part"),
                                     (uint64_t)json_integer_value(bytes),
                                     keep_text(run, value, checksum_key)};
    return SL_OK;
}

static sl_status walk_files(parsing *run, sli_json_value list)
{
    enum { MOST_BYTES = 4096 };
    sli_checkpoint_state *state = run->state;
    sli_json_walk walk;
    bool found;
    json_t *value;
    SL_TRY(sli_json_walk_begin(&run->json, list, &walk));
    for (;; state->count++) {
        SL_TRY(sli_json_walk_next(&walk, &found));
        if (!found)
            return SL_OK;
        SL_TRY(sli_json_parse(&run->json, walk.value, MOST_BYTES, &value));
        sl_status status = parse_file(run, value, &state->files[state->count]);
        json_decref(value);
        SL_TRY(status);
    }
}

static sl_status list_parts(sli_checkpoint_state *state)
{
    for (size_t i = 0; i < state->count; i++) {
        const char *part = state->files[i].part;
        size_t p = 0;
        while (part && p < state->part_count && strcmp(state->parts[p], part) != 0)
            p++;
        if (p == SL_CHECKPOINT_MOST_PARTS)
            return sl_error(SL_ERR_FORMAT, "its files belong to more than %d parts",
                            SL_CHECKPOINT_MOST_PARTS);
        if (part && p == state->part_count)
            state->parts[state->part_count++] = part;
    }
    return SL_OK;
}

static sl_status parse_files(parsing *run, sli_json_value list)
{
    enum { LEAST_BYTES = 60 }; /* of a file's name, bytes and checksum */
    sli_checkpoint_state *state = run->state;
    if (!sli_json_is(list, '['))
        return missing(keys[FILES], "an array");
    state->files = calloc((size_t)(list.end - list.begin) / LEAST_BYTES + 1, sizeof *state->files);
    if (!state->files)
        return sl_error(SL_ERR_MEMORY, "no memory for its list of files");
    SL_TRY(walk_files(run, list));
    SL_TRY(sli_names_check(state->files, state->count, sizeof *state->files, "file"));
    return list_parts(state);
}

/* The text without blanks outside of strings, behind `to`; the text is that of a value or a key. */
static char *pack(sli_json_value value, char *to)
{
    bool quoted = false;
    for (const char *at = value.begin; at < value.end; at++) {
        if (!quoted && strchr(" \t\n\r", *at))
            continue;
        quoted ^= *at == '"';
        *to++ = *at;
        if (*at == '\\' && at + 1 < value.end) /* strings alone have these */
            *to++ = *++at;
    }
    return to;
}

static int find_key(sli_json_value key)
{
    int found = 0;
    while (found < KEYS && !sli_json_equals(key, keys[found]))
        found++;
    return found;
}

/* Where each member is; all but the one that says the checksum, packed behind `*to`. */
static sl_status pack_members(const sli_json *json, sli_json_walk *walk, sli_json_value *of,
                              char **to)
{
    for (char separator = '{';;) {
        bool found;
        SL_TRY(sli_json_walk_next(walk, &found));
        if (!found)
            break;
        int key = find_key(walk->key);
        if (key == KEYS)
            SL_TRY(sli_json_check(json, walk->value));
        else if (of[key].begin)
            return sl_error(SL_ERR_FORMAT, "\"%s\" is listed twice", keys[key]);
        else
            of[key] = walk->value;
        if (key == CHECKSUM)
            continue;
        *(*to)++ = separator;
        separator = ',';
        *to = pack(walk->key, *to);
        *(*to)++ = ':';
        *to = pack(walk->value, *to);
    }
    *(*to)++ = '}';
    return SL_OK;
}

static sl_status read_members(const sli_json *json, sli_json_value *of, char *checksum)
{
    sli_json_value root;
    sli_json_walk walk;
    SL_TRY(sli_json_root(json, &root));
    if (!sli_json_is(root, '{'))
        return sl_error(SL_ERR_FORMAT, "it must be a JSON object");
    SL_TRY(sli_json_walk_begin(json, root, &walk));
    char *packed = malloc(json->length), *to = packed;
    if (!packed)
        return sl_error(SL_ERR_MEMORY, "no memory for its content");
    sl_status status = pack_members(json, &walk, of, &to);
    if (status == SL_OK)
        sli_checksum_of(packed, (uint64_t)(to - packed), checksum);
    free(packed);
    return status;
}

static sl_status check_checksum(const sli_json_value *of, const char *found)
{
    if (!sli_json_is(of[CHECKSUM], '"'))
        return sl_error(SL_ERR_FORMAT, "it does not say its checksum");
    if (!sli_json_equals(of[CHECKSUM], found))
        return sl_error(SL_ERR_FORMAT,
                        "it was changed: its content has the checksum %s, not the "
                        "one that it says",
                        found);
    return SL_OK;
}

static sl_status check_format(const sli_json *json, const sli_json_value *of)
{
    json_t *version = NULL;
    if (!sli_json_is(of[FORMAT], '"') || !sli_json_equals(of[FORMAT], format_name))
        return sl_error(SL_ERR_FORMAT, "\"format\" must be \"%s\"", format_name);
    if (of[FORMAT_NUMBER].begin)
        SL_TRY(sli_json_parse(json, of[FORMAT_NUMBER], 32, &version));
    int64_t number = json_is_integer(version) ? json_integer_value(version) : 0;
    json_decref(version);
    if (number != FORMAT_VERSION)
        return sl_error(SL_ERR_FORMAT, "\"format_version\" must be %d, got %" PRId64,
                        FORMAT_VERSION, number);
    return SL_OK;
}

static sl_status parse_text(parsing *run, const sli_json_value *of, int key, const char **out)
{
    if (!sli_json_is(of[key], '"'))
        return missing(keys[key], "a string");
    return sli_json_decode(&run->json, of[key], &run->strings, out);
}

static sl_status parse(parsing *run)
{
    char checksum[SLI_CHECKSUM_BYTES];
    sli_json_value of[KEYS] = {{NULL, NULL}};
    sli_checkpoint_state *state = run->state;
    SL_TRY(read_members(&run->json, of, checksum));
    SL_TRY(check_format(&run->json, of));
    SL_TRY(check_checksum(of, checksum));
    if (!sli_json_is(of[RUN], '{'))
        return missing(keys[RUN], "an object");
    SL_TRY(sli_json_check(&run->json, of[RUN]));
    state->strings = run->strings = malloc(run->json.length);
    state->run = malloc((size_t)(of[RUN].end - of[RUN].begin) + 1);
    if (!state->strings || !state->run)
        return sl_error(SL_ERR_MEMORY, "no memory for its content");
    *pack(of[RUN], state->run) = '\0';
    SL_TRY(parse_text(run, of, ID, &state->id));
    SL_TRY(parse_text(run, of, VERSION, &state->version));
    return parse_files(run, of[FILES]);
}

sl_status sli_checkpoint_state_parse(const char *text, size_t length, sli_checkpoint_state *out)
{
    *out = (sli_checkpoint_state){0};
    sl_status status = parse(&(parsing){.json = {"it", text, length}, .state = out});
    if (status != SL_OK)
        sli_checkpoint_state_clear(out);
    return status;
}

void sli_checkpoint_state_clear(sli_checkpoint_state *state)
{
    free(state->files);
    free(state->run);
    free(state->strings);
    *state = (sli_checkpoint_state){0};
}
