#include "io/checkpoint_state.h"

#include "io/safetensors_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT_VERSION = 1 };

static const char *const format_name = "sluice checkpoint";
static const char *const checksum_key = "xxh128";

/* Of the object without its checksum. */
static sl_status checksum_of(json_t *json, char *text)
{
    json_t *rest = json_copy(json);
    if (rest)
        json_object_del(rest, checksum_key);
    char *printed = rest ? json_dumps(rest, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(rest);
    if (!printed)
        return sl_error(SL_ERR_MEMORY, "no memory for its checksum");
    sli_checksum_of(printed, strlen(printed), text);
    free(printed);
    return SL_OK;
}

/* ---- Printing --------------------------------------------------------------------------- */

static json_t *describe_files(const sl_checkpoint_file_info *files, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{ss ss* sI ss}", "name", files[i].name, "part",
                                              files[i].part, "bytes", (json_int_t)files[i].bytes,
                                              checksum_key, files[i].checksum));
    if (json_array_size(list) == count)
        return list;
    json_decref(list);
    return NULL;
}

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

sl_status sli_checkpoint_state_print(const char *id, const char *run,
                                     const sl_checkpoint_file_info *files, size_t count,
                                     char **text)
{
    json_error_t error;
    *text = NULL;
    json_t *run_json = json_loads(run ? run : "{}", JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(run_json)) {
        json_decref(run_json);
        return sl_error(SL_ERR_INVALID, "the state must be the text of a JSON object");
    }
    json_t *json = json_pack("{ss si ss ss so so}", "format", format_name, "format_version",
                             FORMAT_VERSION, "version", SLUICE_VERSION, "id", id, "files",
                             describe_files(files, count), "run", run_json);
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

static sl_status parse_file(json_t *value, sl_checkpoint_file_info *out)
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
    *out = (sl_checkpoint_file_info){name, json_string_value(part),
                                     (uint64_t)json_integer_value(bytes), checksum};
    return SL_OK;
}

static sl_status parse_files(sli_checkpoint_state *state)
{
    char quoted[SLI_QUOTE_BYTES];
    const json_t *list = json_object_get(state->json, "files");
    if (!json_is_array(list))
        return sl_error(SL_ERR_FORMAT, "\"files\" must be an array");
    state->files = calloc(json_array_size(list) + 1, sizeof *state->files);
    if (!state->files)
        return sl_error(SL_ERR_MEMORY, "no memory for its list of files");
    for (size_t i = 0; i < json_array_size(list); i++) {
        SL_TRY(parse_file(json_array_get(list, i), &state->files[i]));
        for (size_t k = 0; k < i; k++)
            if (strcmp(state->files[k].name, state->files[i].name) == 0)
                return sl_error(SL_ERR_FORMAT, "file %s is there twice",
                                sli_safetensors_quote(state->files[i].name, quoted));
    }
    state->count = json_array_size(list);
    return SL_OK;
}

static sl_status check_checksum(json_t *json)
{
    char found[SLI_CHECKSUM_BYTES];
    const char *expected = json_string_value(json_object_get(json, checksum_key));
    if (!expected)
        return sl_error(SL_ERR_FORMAT, "it does not say its checksum");
    SL_TRY(checksum_of(json, found));
    if (strcmp(found, expected) != 0)
        return sl_error(SL_ERR_FORMAT,
                        "it was changed: its content has the checksum %s, not the "
                        "one that it says",
                        found);
    return SL_OK;
}

static sl_status check_format(const json_t *json)
{
    const char *format = json_string_value(json_object_get(json, "format"));
    const json_t *version = json_object_get(json, "format_version");
    if (!format || strcmp(format, format_name) != 0)
        return sl_error(SL_ERR_FORMAT, "\"format\" must be \"%s\"", format_name);
    if (!json_is_integer(version) || json_integer_value(version) != FORMAT_VERSION)
        return sl_error(SL_ERR_FORMAT, "\"format_version\" must be %d, got %" PRId64,
                        FORMAT_VERSION, (int64_t)json_integer_value(version));
    return SL_OK;
}

static sl_status parse_json(const char *text, size_t length, json_t **out)
{
    json_error_t error;
    *out = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!*out && json_error_code(&error) == json_error_out_of_memory)
        return sl_error(SL_ERR_MEMORY, "no memory for its content");
    if (!*out)
        return sl_error(SL_ERR_FORMAT, "it is not valid JSON at its byte %d: %s", error.position,
                        error.text);
    if (!json_is_object(*out))
        return sl_error(SL_ERR_FORMAT, "it must be a JSON object");
    return SL_OK;
}

static sl_status parse(const char *text, size_t length, sli_checkpoint_state *out)
{
    SL_TRY(parse_json(text, length, &out->json));
    SL_TRY(check_format(out->json));
    SL_TRY(check_checksum(out->json));
    SL_TRY(parse_files(out));
    const json_t *run = json_object_get(out->json, "run");
    out->id = json_string_value(json_object_get(out->json, "id"));
    out->version = json_string_value(json_object_get(out->json, "version"));
    if (!out->id || !out->version || !json_is_object(run))
        return sl_error(SL_ERR_FORMAT,
                        "\"id\" and \"version\" must be strings and \"run\" an object");
    out->run = json_dumps(run, JSON_COMPACT | JSON_REAL_PRECISION(17));
    return out->run ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for the run's state");
}

sl_status sli_checkpoint_state_parse(const char *text, size_t length, sli_checkpoint_state *out)
{
    *out = (sli_checkpoint_state){0};
    sl_status status = parse(text, length, out);
    if (status != SL_OK)
        sli_checkpoint_state_clear(out);
    return status;
}

void sli_checkpoint_state_clear(sli_checkpoint_state *state)
{
    free(state->files);
    free(state->run);
    json_decref(state->json);
    *state = (sli_checkpoint_state){0};
}
