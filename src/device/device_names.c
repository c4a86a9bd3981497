/* Reads the names in a device list; which cores they stand for is the list's business. */
#include "device/device_base.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NUMBER = 65535 };

/* Reads the digits at *text, 0 to MAX_NUMBER, and moves *text behind them. */
static bool read_number(const char **text, int *out)
{
    int value = 0;
    const char *digit = *text;
    for (; isdigit((unsigned char)*digit); digit++) {
        value = 10 * value + (*digit - '0');
        if (value > MAX_NUMBER)
            return false;
    }
    if (digit == *text)
        return false;
    *text = digit;
    *out = value;
    return true;
}

static sl_status parse_name(const char *text, sli_device_name *out)
{
    snprintf(out->text, sizeof out->text, "%s", text);
    out->kind = SLI_CPU_ALL;
    out->first = out->last = 0;
    if (strcmp(text, "cpu") == 0)
        return SL_OK;
    const char *rest = text + strlen("cpu:");
    if (strncmp(text, "cpu:", strlen("cpu:")) == 0 && read_number(&rest, &out->first)) {
        out->kind = SLI_CPU_SHARE;
        out->last = out->first;
        if (*rest == '-') {
            rest++;
            out->kind = SLI_CPU_CORES;
            if (!read_number(&rest, &out->last))
                rest = "?";
        }
        if (*rest == '\0' && out->first <= out->last)
            return SL_OK;
    }
    return sl_error(SL_ERR_INVALID,
                    "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST, got \"%s\"", text);
}

/* Copies the name that starts at `start` and ends before a comma or the end, without blanks. */
static sl_status take_name(const char *start, size_t length, sli_device_name *out)
{
    while (length && isspace((unsigned char)*start)) {
        start++;
        length--;
    }
    while (length && isspace((unsigned char)start[length - 1]))
        length--;
    char text[SLI_DEVICE_NAME_BYTES];
    if (length == 0)
        return sl_error(SL_ERR_INVALID, "a name in the list of devices is empty");
    if (length >= sizeof text)
        return sl_error(SL_ERR_INVALID, "\"%.40s…\" is no device's name", start);
    memcpy(text, start, length);
    text[length] = '\0';
    return parse_name(text, out);
}

/* Also "cpu:1" and "cpu:01". */
static bool same_share(const sli_device_name *a, const sli_device_name *b)
{
    return a->kind == b->kind && a->kind == SLI_CPU_SHARE && a->first == b->first;
}

sl_status sli_device_names_parse(const char *names, sli_device_name **out, int *count)
{
    *out = NULL;
    *count = 0;
    size_t commas = 0;
    for (const char *c = names; *c; c++)
        commas += *c == ',';
    if (commas + 1 > SLI_MAX_DEVICES)
        return sl_error(SL_ERR_INVALID, "there can be at most %d devices, got %zu", SLI_MAX_DEVICES,
                        commas + 1);
    sli_device_name *list = calloc(commas + 1, sizeof *list);
    if (!list)
        return sl_error(SL_ERR_MEMORY, "sl_device_list_create: no memory for the names");
    for (size_t i = 0; i <= commas; i++) {
        size_t length = strcspn(names, ",");
        sl_status status = take_name(names, length, &list[i]);
        for (size_t j = 0; j < i && status == SL_OK; j++)
            if (same_share(&list[i], &list[j]))
                status = sl_error(SL_ERR_INVALID, "the device \"%s\" is named twice", list[i].text);
        if (status != SL_OK) {
            free(list);
            return status;
        }
        names += length + 1;
    }
    *out = list;
    *count = (int)(commas + 1);
    return SL_OK;
}
