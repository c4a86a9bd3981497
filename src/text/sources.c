/* Reading what data consist of: a path, or sources with weights. */
#include "sluice/app/text.h"

#include "core/error.h"
#include "core/json.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t name_length(const char *text)
{
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || (text[length] && strchr("_.-", text[length])))
        length++;
    return length;
}

bool sl_is_source(const char *text)
{
    size_t length = name_length(text);
    if (length == 0 || text[length] != '=')
        return false;
    return text[length + strcspn(text + length, ":/,")] == ':';
}

static sl_status parse_weight(const char *name, const char *text, double *out)
{
    char *end;
    sli_c_numbers scope = sli_c_numbers_begin();
    *out = strtod(text, &end);
    sli_c_numbers_end(scope);
    bool is_plain = isdigit((unsigned char)*text) || *text == '.';
    if (is_plain && *end == '\0' && text[1] != 'x' && text[1] != 'X' && isfinite(*out) && *out > 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "data: the weight of source %s must be a number above 0, got \"%s\"", name,
                    text);
}

/* Cuts a text "NAME=WEIGHT:PATH" into the three. */
static sl_status parse_source(char *text, sl_source *out)
{
    if (!sl_is_source(text))
        return sl_error(SL_ERR_INVALID,
                        "data must be a path, or sources NAME=WEIGHT:PATH with commas between "
                        "them, got \"%s\" among sources",
                        text);
    char *weight = text + name_length(text), *path = strchr(weight, ':');
    *weight++ = *path++ = '\0';
    *out = (sl_source){.name = text, .path = path};
    if (!*path)
        return sl_error(SL_ERR_INVALID, "data: source %s has no path", text);
    return parse_weight(text, weight, &out->weight);
}

static sl_status add_source(char *text, sl_sources *sources)
{
    if (sources->count == SL_MAX_SOURCES)
        return sl_error(SL_ERR_INVALID, "data: there are more than %d sources", SL_MAX_SOURCES);
    sl_source *source = &sources->source[sources->count];
    SL_TRY(parse_source(text, source));
    for (int i = 0; i < sources->count; i++)
        if (strcmp(sources->source[i].name, source->name) == 0)
            return sl_error(SL_ERR_INVALID, "data: two sources are called %s", source->name);
    sources->count++;
    return SL_OK;
}

static bool has_source(const char *data)
{
    for (const char *item = data; item; item = strchr(item, ',')) {
        item += *item == ',';
        if (sl_is_source(item))
            return true;
    }
    return false;
}

static sl_status parse_sources(const char *data, sl_sources *out)
{
    bool is_path = !has_source(data);
    out->text = strdup(data);
    out->source = calloc(is_path ? 1 : SL_MAX_SOURCES, sizeof *out->source);
    if (!out->text || !out->source)
        return sli_no_memory(NULL, "the sources of data");
    if (is_path) {
        out->source[out->count++] = (sl_source){.weight = 1, .path = out->text};
        return SL_OK;
    }
    for (char *item = out->text, *next; item; item = next) {
        next = strchr(item, ',');
        if (next)
            *next++ = '\0';
        SL_TRY(add_source(item, out));
    }
    return SL_OK;
}

sl_status sl_sources_parse(const char *data, sl_sources *out)
{
    *out = (sl_sources){NULL};
    sl_status status = parse_sources(data, out);
    if (status != SL_OK)
        sl_sources_free(out);
    return status;
}

void sl_sources_free(sl_sources *sources)
{
    free(sources->source);
    free(sources->text);
    *sources = (sl_sources){NULL};
}
