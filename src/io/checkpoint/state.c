#include "io/checkpoint/format.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT_VERSION = 1 };

static const char *const format_name = "sluice checkpoint";
static const char checksum_key[] = SLI_CHECKPOINT_CHECKSUM_KEY;

/* ---- Printing --------------------------------------------------------------------------- */

sl_status sli_checkpoint_state_print(const char *id, const char *run, json_t *files, char **text)
{
    json_error_t error;
    char checksum[SLI_CHECKSUM_BYTES];
    *text = NULL;
    json_t *run_json = json_loads(run ? run : "{}", JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(run_json)) {
        json_decref(run_json);
        return sl_error(SL_ERR_INVALID, "the state must be the text of a JSON object");
    }
    json_t *json =
        json_pack("{ss si ss ss sO so}", "format", format_name, "format_version", FORMAT_VERSION,
                  "version", sl_version(), "id", id, "files", files, "run", run_json);
    char *content = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    if (content) {
        sli_checksum_of(content, strlen(content), checksum);
        if (json_object_set_new(json, checksum_key, json_string(checksum)) == 0)
            *text = json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    }
    free(content);
    json_decref(json);
    return *text ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for its text");
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

static const char *copy_text(parsing *run, const char *text)
{
    if (!text)
        return NULL;
    size_t bytes = strlen(text) + 1;
    char *copy = memcpy(run->strings, text, bytes);
    run->strings += bytes;
    return copy;
}

static sl_status parse_file(parsing *run, json_t *value, sl_checkpoint_file_info *out)
{
    char quoted[SLI_QUOTE_BYTES];
    const char *name, *part = NULL, *checksum;
    json_int_t bytes;
    if (json_unpack(value, "{s:s}", "name", &name) != 0 || !is_plain_name(name))
        return sl_error(SL_ERR_FORMAT, "each of \"files\" must have the \"name\" of a file");
    if (json_unpack(value, "{s?s, s:I, s:s}", "part", &part, "bytes", &bytes, checksum_key,
                    &checksum) != 0 ||
        bytes < 0 || !is_checksum(checksum))
        return sl_error(SL_ERR_FORMAT,
                        "file %s must have \"bytes\" from 0 and an \"xxh128\" of 32 hexadecimal "
                        "digits",
                        sli_safetensors_quote(name, quoted));
    *out = (sl_checkpoint_file_info){copy_text(run, name), copy_text(run, part), (uint64_t)bytes,
                                     copy_text(run, checksum)};
    return SL_OK;
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
    enum { LEAST_BYTES = 60, MOST_BYTES = 4096 }; /* of a file's name, bytes and checksum */
    sli_checkpoint_state *state = run->state;
    sli_json_walk walk;
    json_t *value;
    if (!sli_json_is(list, '['))
        return missing(keys[FILES], "an array");
    state->files = calloc((size_t)(list.end - list.begin) / LEAST_BYTES + 1, sizeof *state->files);
    if (!state->files)
        return sl_error(SL_ERR_MEMORY, "no memory for its list of files");
    SL_TRY(sli_json_walk_begin(&run->json, list, &walk));
    for (; sli_json_walk_next(&walk); state->count++) {
        SL_TRY(sli_json_parse(&run->json, walk.value, MOST_BYTES, &value));
        sl_status status = parse_file(run, value, &state->files[state->count]);
        json_decref(value);
        SL_TRY(status);
    }
    SL_TRY(walk.status);
    SL_TRY(sli_names_check(state->files, state->count, sizeof *state->files, "file"));
    return list_parts(state);
}

/* The text without blanks outside of strings, behind `to`; the text begins outside of one. */
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

/* Where each member's value is, and all of the member that says the checksum. */
static sl_status find_members(const sli_json *json, sli_json_value root, sli_json_value *of,
                              sli_json_value *said)
{
    sli_json_walk walk;
    if (!sli_json_is(root, '{'))
        return sl_error(SL_ERR_FORMAT, "it must be a JSON object");
    SL_TRY(sli_json_walk_begin(json, root, &walk));
    while (sli_json_walk_next(&walk)) {
        int key = 0;
        while (key < KEYS && !sli_json_equals(walk.key, keys[key]))
            key++;
        if (key == KEYS)
            SL_TRY(sli_json_check(json, walk.value));
        else if (of[key].begin)
            return sl_error(SL_ERR_FORMAT, "\"%s\" is listed twice", keys[key]);
        else
            of[key] = walk.value;
        if (key == CHECKSUM)
            *said = (sli_json_value){walk.key.begin, walk.value.end};
    }
    return walk.status;
}

/* Compares the checksum with that of the text without the member that says it. */
static sl_status check_checksum(const sli_json *json, sli_json_value root, sli_json_value said,
                                sli_json_value value)
{
    char found[SLI_CHECKSUM_BYTES];
    if (!sli_json_is(value, '"'))
        return sl_error(SL_ERR_FORMAT, "it does not say its checksum");
    char *packed = malloc(json->length), *begin = packed;
    if (!packed)
        return sl_error(SL_ERR_MEMORY, "no memory for its content");
    char *end = pack((sli_json_value){root.begin, said.begin}, packed);
    end -= end[-1] == ','; /* a comma goes with the member: the one before it, ... */
    end = pack((sli_json_value){said.end, root.end}, end);
    if (packed[1] == ',') /* ... or, of the first member, the one behind it */
        *++begin = '{';
    sli_checksum_of(begin, (uint64_t)(end - begin), found);
    free(packed);
    if (!sli_json_equals(value, found))
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
    sli_json_value root, said = {NULL, NULL}, of[KEYS] = {{NULL, NULL}};
    sli_checkpoint_state *state = run->state;
    SL_TRY(sli_json_root(&run->json, &root));
    SL_TRY(find_members(&run->json, root, of, &said));
    SL_TRY(check_format(&run->json, of));
    SL_TRY(check_checksum(&run->json, root, said, of[CHECKSUM]));
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
