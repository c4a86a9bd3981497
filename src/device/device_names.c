/* Reads the names in a device list; what they stand for is their kinds' business. */
#include "device/device_kind.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sli_device_number_parse(const char **text, int *out)
{
    int value = 0;
    const char *digit = *text;
    for (; isdigit((unsigned char)*digit); digit++) {
        value = 10 * value + (*digit - '0');
        if (value > SLI_MAX_DEVICE_NUMBER)
            return false;
    }
    if (digit == *text)
        return false;
    *text = digit;
    *out = value;
    return true;
}

const sli_device_kind *sli_device_kind_of(const sli_device_kind *const *kinds, const char *name)
{
    for (; *kinds; kinds++) {
        size_t length = strlen((*kinds)->prefix);
        if (strncmp(name, (*kinds)->prefix, length) == 0 &&
            (name[length] == '\0' || name[length] == ':'))
            return *kinds;
    }
    return NULL;
}

/* The error for a name: how those of its kind look, or of all kinds. */
static sl_status refuse_name(const sli_device_kind *const *kinds, const char *name)
{
    const sli_device_kind *kind = sli_device_kind_of(kinds, name);
    char forms[512] = "";
    for (size_t used = 0; *kinds && used < sizeof forms; kinds++)
        if (!kind || kind == *kinds)
            used += (size_t)snprintf(forms + used, sizeof forms - used, "%s%s", used ? "; " : "",
                                     (*kinds)->forms);
    return sl_error(SL_ERR_INVALID, "a device is named %s, got \"%s\"", forms, name);
}

/* Copies the name that starts at `start` and ends before a comma or the end, without blanks. */
static sl_status copy_name(const char *start, size_t length, char *text)
{
    while (length && isspace((unsigned char)*start)) {
        start++;
        length--;
    }
    while (length && isspace((unsigned char)start[length - 1]))
        length--;
    if (length == 0)
        return sl_error(SL_ERR_INVALID, "a name in the list of devices is empty");
    if (length >= SLI_DEVICE_NAME_BYTES)
        return sl_error(SL_ERR_INVALID, "\"%.40s…\" is no device's name", start);
    memcpy(text, start, length);
    text[length] = '\0';
    return SL_OK;
}

static sl_status parse_all(const sli_device_kind *const *kinds, const char *list,
                           sli_device_name *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strcspn(list, ",");
        SL_TRY(copy_name(list, length, names[i].text));
        const sli_device_kind *kind = sli_device_kind_of(kinds, names[i].text);
        if (!kind || !kind->parse(&names[i]))
            return refuse_name(kinds, names[i].text);
        list += length + 1;
    }
    return SL_OK;
}

sl_status sli_device_names_parse(const sli_device_kind *const *kinds, const char *list,
                                 sli_device_name **out, int *count)
{
    *out = NULL;
    *count = 0;
    size_t total = 1;
    for (const char *c = list; *c; c++)
        total += *c == ',';
    if (total > SLI_MAX_DEVICES)
        return sl_error(SL_ERR_INVALID, "there can be at most %d devices, got %zu", SLI_MAX_DEVICES,
                        total);
    sli_device_name *names = calloc(total, sizeof *names);
    if (!names)
        return sl_error(SL_ERR_MEMORY, "sl_device_list_create: no memory for the names");
    sl_status status = parse_all(kinds, list, names, total);
    if (status != SL_OK) {
        free(names);
        return status;
    }
    *out = names;
    *count = (int)total;
    return SL_OK;
}
