/* The objects of a cluster file, and errors that name a member, its line and its range. */
#include "planner/cluster_reader.h"

#include "core/error.h"
#include "core/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_INPUTS = 1024, MOST_NUMBER_BYTES = 64 };

/* ---- Errors ------------------------------------------------------------------------------- */

int sli_cluster_line(const sli_cluster_reader *reader, const char *at)
{
    int line = 1;
    for (const char *c = reader->json.text; c < at; c++)
        line += *c == '\n';
    return line;
}

/* Enough of a value to recognize it. */
static int shown_length(sli_json_value value)
{
    ptrdiff_t length = value.end - value.begin;
    return (int)(length < MOST_NUMBER_BYTES ? length : MOST_NUMBER_BYTES);
}

sl_status sli_cluster_refuse(const sli_cluster_reader *reader, const sli_cluster_object *object,
                             const char *member, sli_json_value value, const char *expected)
{
    return sl_error(SL_ERR_FORMAT, "%s:%d: %s%s%s must be %s, got %.*s", reader->name,
                    sli_cluster_line(reader, value.begin), object->path, *object->path ? "." : "",
                    member, expected, shown_length(value), value.begin);
}

sl_status sli_cluster_refuse_missing(const sli_cluster_reader *reader,
                                     const sli_cluster_object *object, const char *member)
{
    return sl_error(SL_ERR_FORMAT, "%s:%d: %s has no member \"%s\"", reader->name, object->line,
                    *object->path ? object->path : "the cluster", member);
}

/* ---- Objects ------------------------------------------------------------------------------- */

static int find_name(const char *const *names, sli_json_value key)
{
    for (int i = 0; names[i]; i++)
        if (sli_json_equals(key, names[i]))
            return i;
    return -1;
}

static sl_status refuse_member(const sli_cluster_reader *reader, const sli_cluster_object *object,
                               sli_json_value key, const char *what)
{
    return sl_error(SL_ERR_FORMAT, "%s:%d: %s has a member %.*s%s", reader->name,
                    sli_cluster_line(reader, key.begin),
                    *object->path ? object->path : "the cluster", shown_length(key), key.begin,
                    what);
}

sl_status sli_cluster_open_object(const sli_cluster_reader *reader, sli_json_value value,
                                  sli_cluster_object *out)
{
    sli_json_walk walk;
    out->line = sli_cluster_line(reader, value.begin);
    memset(out->values, 0, sizeof out->values);
    if (!sli_json_is(value, '{'))
        return sl_error(SL_ERR_FORMAT, "%s:%d: %s must be an object, got %.*s", reader->name,
                        out->line, *out->path ? out->path : "the cluster", shown_length(value),
                        value.begin);
    SL_TRY(sli_json_walk_begin(&reader->json, value, &walk));
    while (sli_json_walk_next(&walk)) {
        int i = find_name(out->names, walk.key);
        if (i < 0)
            return refuse_member(reader, out, walk.key, ", which is not known");
        if (out->values[i].begin)
            return refuse_member(reader, out, walk.key, " twice");
        out->values[i] = walk.value;
    }
    return walk.status;
}

sli_json_value sli_cluster_member(const sli_cluster_object *object, const char *name)
{
    for (int i = 0; object->names && object->names[i]; i++)
        if (strcmp(object->names[i], name) == 0)
            return object->values[i];
    return (sli_json_value){0};
}

sl_status sli_cluster_walk_list(const sli_cluster_reader *reader, const sli_cluster_object *object,
                                const char *name, const char *expected, sli_json_walk *out)
{
    sli_json_value list = sli_cluster_member(object, name);
    if (!list.begin)
        return sli_cluster_refuse_missing(reader, object, name);
    if (!sli_json_is(list, '['))
        return sli_cluster_refuse(reader, object, name, list, expected);
    return sli_json_walk_begin(&reader->json, list, out);
}

/* ---- Texts and numbers
 * ------------------------------------------------------------------------------- */

sl_status sli_cluster_read_text(const sli_cluster_reader *reader, const sli_cluster_object *object,
                                const char *name, char *out, size_t bytes)
{
    sli_json_value value = sli_cluster_member(object, name);
    char expected[48], *decoded = malloc((size_t)(value.end - value.begin) + 1), *room = decoded;
    const char *text;
    if (!decoded)
        return sli_no_memory(reader->name, "a text");
    bool is_text = sli_json_is(value, '"') &&
                   sli_json_decode(&reader->json, value, &room, &text) == SL_OK &&
                   strlen(text) < bytes;
    if (is_text)
        snprintf(out, bytes, "%s", text);
    free(decoded);
    snprintf(expected, sizeof expected, "a text of at most %zu bytes", bytes - 1);
    return is_text ? SL_OK : sli_cluster_refuse(reader, object, name, value, expected);
}

sl_status sli_cluster_list_input(const sli_cluster_reader *reader, const sli_cluster_object *object,
                                 const char *name, double value, int line)
{
    sli_cluster *cluster = reader->cluster;
    SL_TRY(sli_array_reserve(&cluster->inputs, &cluster->input_capacity, cluster->input_count + 1,
                             sizeof *cluster->inputs, MOST_INPUTS, "numbers"));
    sl_cluster_input *input = &cluster->inputs[cluster->input_count++];
    *input = (sl_cluster_input){.value = value, .line = line};
    snprintf(input->name, sizeof input->name, "%s%s%s", object->path, *object->path ? "." : "",
             name);
    if (line == 0 || !sli_cluster_member(object, "measured").begin)
        return SL_OK;
    return sli_cluster_read_text(reader, object, "measured", input->measured,
                                 sizeof input->measured);
}

bool sli_cluster_parse_number(const sli_cluster_reader *reader, sli_json_value value, double *out)
{
    json_t *json;
    bool may_be = value.begin < value.end && strchr("-0123456789", *value.begin);
    if (!may_be || sli_json_parse(&reader->json, value, MOST_NUMBER_BYTES, &json) != SL_OK)
        return false;
    *out = json_number_value(json);
    json_decref(json);
    return isfinite(*out);
}

static sl_status refuse_number(const sli_cluster_reader *reader, const sli_cluster_object *object,
                               const sli_number_field *field, sli_json_value value)
{
    char expected[96];
    snprintf(expected, sizeof expected, "a %s from %g to %g",
             field->is_count ? "whole number" : "number", field->least, field->most);
    return sli_cluster_refuse(reader, object, field->name, value, expected);
}

sl_status sli_cluster_read_number(const sli_cluster_reader *reader,
                                  const sli_cluster_object *object, const sli_number_field *field,
                                  void *into)
{
    sli_json_value value = sli_cluster_member(object, field->name);
    double number = field->initial;
    if (!value.begin && field->is_required)
        return sli_cluster_refuse_missing(reader, object, field->name);
    if (value.begin &&
        (!sli_cluster_parse_number(reader, value, &number) || number < field->least ||
         number > field->most || (field->is_count && number != floor(number))))
        return refuse_number(reader, object, field, value);
    char *place = (char *)into + field->offset;
    if (field->is_count)
        *(int *)(void *)place = (int)number;
    else
        *(double *)(void *)place = number;
    return sli_cluster_list_input(reader, object, field->name, number,
                                  value.begin ? sli_cluster_line(reader, value.begin) : 0);
}

sl_status sli_cluster_read_numbers(const sli_cluster_reader *reader,
                                   const sli_cluster_object *object, const sli_number_field *fields,
                                   size_t count, void *into)
{
    for (size_t i = 0; i < count; i++)
        SL_TRY(sli_cluster_read_number(reader, object, &fields[i], into));
    return SL_OK;
}
