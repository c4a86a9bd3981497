/* state.json: printed by jansson; read value by value, since it may be large and hostile. */
#include "core/error.h"
#include "io/checkpoint/format.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT_VERSION = 1 };

static const char *const format_name = "sluice checkpoint";
static const char checksum_key[] = "xxh128";

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
    return *text ? SL_OK : sli_no_memory(NULL, "its text");
}

/* ---- Reading ---------------------------------------------------------------------------- */

bool sli_checkpoint_is_plain_name(const char *name)
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
enum { FORMAT, FORMAT_NUMBER, VERSION, ID, FILES, RUN, KEYS };

static const char *const keys[KEYS] = {"format", "format_version", "version", "id", "files", "run"};

static sl_status must_be(int key, const char *what)
{
    return sl_error(SL_ERR_FORMAT, "\"%s\" must be %s", keys[key], what);
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
    if (json_unpack(value, "{s:s}", "name", &name) != 0 || !sli_checkpoint_is_plain_name(name))
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

static sl_status parse_files(parsing *run, sli_json_value list)
{
    enum { LEAST_BYTES = 60, MOST_BYTES = 4096 }; /* of a file's name, bytes and checksum */
    sli_checkpoint_state *state = run->state;
    sli_json_walk walk;
    json_t *value;
    if (!sli_json_is(list, '['))
        return must_be(FILES, "an array");
    state->files = calloc((size_t)(list.end - list.begin) / LEAST_BYTES + 1, sizeof *state->files);
    if (!state->files)
        return sli_no_memory(NULL, "its list of files");
    SL_TRY(sli_json_walk_begin(&run->json, list, &walk));
    for (; sli_json_walk_next(&walk); state->count++) {
        SL_TRY(sli_json_parse(&run->json, walk.value, MOST_BYTES, &value));
        sl_status status = parse_file(run, value, &state->files[state->count]);
        json_decref(value);
        SL_TRY(status);
    }
    SL_TRY(walk.status);
    return sli_names_check(state->files, state->count, sizeof *state->files, "file");
}

/* The text without blanks outside of strings, behind `to`; the text begins outside of one. */
static char *copy_packed(sli_json_value value, char *to)
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

/* The last member says the checksum of the object without it. */
static sl_status check_checksum(const sli_json *json, sli_json_value root)
{
    static const char last[] = ",\"xxh128\":\"00000000000000000000000000000000\"}";
    enum { LAST = sizeof last - 1, SAID = sizeof ",\"xxh128\":\"" - 1 };
    char found[SLI_CHECKSUM_BYTES], *packed = malloc(json->length);
    if (!packed)
        return sli_no_memory(NULL, "its content");
    char *end = copy_packed(root, packed), *member = end - LAST;
    bool says = end - packed > LAST && memcmp(member, last, SAID) == 0;
    bool same = false;
    if (says) {
        *member = '}';
        sli_checksum_of(packed, (uint64_t)(member + 1 - packed), found);
        same = memcmp(member + SAID, found, sizeof found - 1) == 0;
    }
    free(packed);
    if (!says)
        return sl_error(SL_ERR_FORMAT, "it does not end with its checksum");
    if (!same)
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
        return must_be(key, "a string");
    return sli_json_decode(&run->json, of[key], &run->strings, out);
}

sl_status sli_checkpoint_state_parse(const char *text, size_t length, sli_checkpoint_state *out)
{
    parsing run = {.json = {"it", text, length}, .state = out};
    const sli_json *json = &run.json;
    sli_json_value root, of[KEYS] = {{NULL, NULL}};
    *out = (sli_checkpoint_state){0};
    SL_TRY(sli_json_root(json, &root));
    SL_TRY(sli_json_find_members(json, root, keys, KEYS, of));
    SL_TRY(check_format(json, of));
    SL_TRY(check_checksum(json, root));
    if (!sli_json_is(of[RUN], '{'))
        return must_be(RUN, "an object");
    SL_TRY(sli_json_check(json, of[RUN]));
    out->strings = run.strings = malloc(length);
    out->run = malloc((size_t)(of[RUN].end - of[RUN].begin) + 1);
    if (!out->strings || !out->run)
        return sli_no_memory(NULL, "its content");
    *copy_packed(of[RUN], out->run) = '\0';
    SL_TRY(parse_text(&run, of, ID, &out->id));
    SL_TRY(parse_text(&run, of, VERSION, &out->version));
    return parse_files(&run, of[FILES]);
}

void sli_checkpoint_state_clear(sli_checkpoint_state *state)
{
    free(state->files);
    free(state->run);
    free(state->strings);
    *state = (sli_checkpoint_state){0};
}
