/* Device lists: which kind each name belongs to. What a name stands for, its kind knows. */
#include "device/device.h"

#include "device/device_base.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A new kind of devices is a new line. */
static const sli_device_kind *const all_kinds[] = {&sli_cpu_kind, &sli_cuda_kind, NULL};

struct sl_device_list {
    sli_memory_bound memory; /* of the host, for all its devices */
    int count;
    sl_device *devices[];
};

/* ---- Names ------------------------------------------------------------------------------ */

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

/* The kind of a name; NULL: no kind has this prefix. */
static const sli_device_kind *kind_of(const sli_device_kind *const *kinds, const char *name)
{
    for (; *kinds; kinds++) {
        size_t length = strlen((*kinds)->prefix);
        if (strncmp(name, (*kinds)->prefix, length) == 0 &&
            (name[length] == '\0' || name[length] == ':'))
            return *kinds;
    }
    return NULL;
}

/* The error for a name: it says how names of this kind look, else those of all kinds. */
static sl_status refuse_name(const sli_device_kind *const *kinds, const char *name)
{
    const sli_device_kind *kind = kind_of(kinds, name);
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

/* A list's names, those of each kind together. */
typedef struct name_list {
    const sli_device_kind *const *kinds;
    sli_device_name *names; /* [count] in the list's order */
    sli_device_name *own;   /* [count] room for one kind's */
    int count;
} name_list;

static void clear_names(name_list *list)
{
    free(list->names);
    free(list->own);
    *list = (name_list){0};
}

/* Fills list->own with the kind's names, and counts them and those before `begin` and `end`. */
static int select_names(const name_list *list, const sli_device_kind *kind, int begin, int end,
                        int *own_begin, int *own_end)
{
    int count = 0;
    *own_begin = *own_end = 0;
    for (int i = 0; i < list->count; i++) {
        if (kind_of(list->kinds, list->names[i].text) != kind)
            continue;
        *own_begin += i < begin;
        *own_end += i < end;
        list->own[count++] = list->names[i];
    }
    return count;
}

/* Reads and checks a list's names; clear_names frees them, also after an error. */
static sl_status read_names(const sli_device_kind *const *kinds, const char *text, name_list *out)
{
    size_t count = 1;
    for (const char *c = text; *c; c++)
        count += *c == ',';
    *out = (name_list){.kinds = kinds};
    if (count > SLI_MAX_DEVICES)
        return sl_error(SL_ERR_INVALID, "there can be at most %d devices, got %zu", SLI_MAX_DEVICES,
                        count);
    out->names = calloc(count, sizeof *out->names);
    out->own = calloc(count, sizeof *out->own);
    out->count = (int)count;
    if (!out->names || !out->own)
        return sli_no_memory("sl_device_list_create", "the names");
    for (size_t i = 0; i < count; i++) {
        size_t length = strcspn(text, ",");
        SL_TRY(copy_name(text, length, out->names[i].text));
        const sli_device_kind *kind = kind_of(kinds, out->names[i].text);
        if (!kind || !kind->parse(&out->names[i]))
            return refuse_name(kinds, out->names[i].text);
        text += length + 1;
    }
    for (const sli_device_kind *const *kind = kinds; *kind; kind++) {
        int begin, end, own = select_names(out, *kind, 0, out->count, &begin, &end);
        if (own > 0)
            SL_TRY((*kind)->check(out->own, own));
    }
    return SL_OK;
}

/* ---- Lists ------------------------------------------------------------------------------ */

/* Creates the devices of this kind among begin … end - 1. */
static sl_status create_kind(const name_list *names, const sli_device_kind *kind, int begin,
                             int end, bool bound, sl_device_list *list, bool *shared)
{
    sli_device_request request = {.names = names->own, .bound = bound, .memory = &list->memory};
    request.count = select_names(names, kind, begin, end, &request.first, &request.end);
    if (request.first == request.end)
        return SL_OK;
    sl_device **made = calloc((size_t)(request.end - request.first), sizeof(sl_device *));
    if (!made)
        return sli_no_memory("sl_device_list_create", "%d devices", request.end - request.first);
    sl_status status = kind->create(&request, made, shared);
    for (int i = begin, next = 0; i < end && status == SL_OK; i++)
        if (kind_of(names->kinds, names->names[i].text) == kind)
            list->devices[i - begin] = made[next++];
    free(made);
    return status;
}

static sl_status create_list(const name_list *names, int begin, int end, bool bound,
                             sl_device_list **out, bool *shared)
{
    size_t size = (size_t)(end - begin);
    sl_device_list *list = calloc(1, sizeof *list + size * sizeof *list->devices);
    if (!list)
        return sli_no_memory("sl_device_list_create", "%zu devices", size);
    list->count = (int)size;
    sli_memory_bound_init(&list->memory);
    sl_status status;
    for (const sli_device_kind *const *kind = names->kinds; *kind; kind++)
        SL_TRY_OR_FAIL(create_kind(names, *kind, begin, end, bound, list, shared));
    *out = list;
    return SL_OK;

fail:
    sl_device_list_destroy(&list);
    return status;
}

sl_status sli_device_list_create_of(const sli_device_kind *const *kinds, const char *names,
                                    int first, int most, bool bound, sl_device_list **out,
                                    bool *oversubscribed)
{
    name_list list;
    bool shared = false;
    *out = NULL;
    if (oversubscribed)
        *oversubscribed = false;
    sl_status status;
    SL_TRY_OR_FAIL(read_names(kinds, names, &list));
    int begin = first < list.count ? first : list.count;
    int end = most < list.count - begin ? begin + most : list.count;
    SL_TRY_OR_FAIL(create_list(&list, begin, end, bound, out, &shared));
    if (oversubscribed)
        *oversubscribed = shared;
fail:
    clear_names(&list);
    return status;
}

sl_status sli_device_list_create_range(const char *names, int first, int most, bool bound,
                                       sl_device_list **out, bool *oversubscribed)
{
    return sli_device_list_create_of(all_kinds, names, first, most, bound, out, oversubscribed);
}

sl_status sl_device_list_create(const char *names, sl_device_list **out, bool *oversubscribed)
{
    return sli_device_list_create_range(names, 0, INT_MAX, false, out, oversubscribed);
}

sl_status sli_device_list_check(const char *names)
{
    name_list list;
    sl_status status = read_names(all_kinds, names, &list);
    clear_names(&list);
    return status;
}

sl_status sli_device_list_name_cpus(int count, bool shared, char **out)
{
    enum { NAME_BYTES = sizeof "cpu:2147483647," };
    size_t bytes = (size_t)count * NAME_BYTES + 1, used = 0;
    *out = calloc(bytes, 1);
    if (!*out)
        return sli_no_memory(NULL, "the names of %d devices", count);
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(*out + used, bytes - used, shared ? "%scpu" : "%scpu:%d",
                                 i ? "," : "", i);
    return SL_OK;
}

const char *sli_device_list_kind(const char *names)
{
    const sli_device_kind *kind = NULL;
    for (const char *at = names; *at; at += strspn(at, ", ")) {
        char name[SLI_DEVICE_NAME_BYTES];
        int length = (int)strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", length, at);
        const sli_device_kind *next = kind_of(all_kinds, name);
        if (!next || (kind && next != kind))
            return NULL;
        kind = next;
        at += length;
    }
    return kind ? kind->prefix : NULL;
}

bool sli_device_list_shares_cores(const char *names)
{
    name_list list;
    bool shares = read_names(all_kinds, names, &list) == SL_OK && list.count > 1 &&
                  kind_of(all_kinds, list.names[0].text) == &sli_cpu_kind;
    for (int i = 1; i < list.count && shares; i++)
        shares = strcmp(list.names[i].text, list.names[0].text) == 0;
    clear_names(&list);
    return shares;
}

bool sli_device_name_has_host_memory(const char *name)
{
    const sli_device_kind *kind = kind_of(all_kinds, name);
    return !kind || !kind->has_own_memory;
}

sl_status sli_device_count(const char *prefix, int *out)
{
    *out = 0;
    const sli_device_kind *kind = kind_of(all_kinds, prefix);
    return kind ? kind->count(out)
                : sl_error(SL_ERR_INVALID, "there is no kind of devices \"%s\"", prefix);
}

void sl_device_list_destroy(sl_device_list **list)
{
    if (!list || !*list)
        return;
    for (int i = 0; i < (*list)->count; i++)
        sl_device_destroy(&(*list)->devices[i]);
    free(*list);
    *list = NULL;
}

sl_status sl_device_list_set_batch_invariant(sl_device_list *list, bool invariant)
{
    for (int i = 0; i < list->count; i++)
        if (!list->devices[i]->has_batch_invariance)
            SL_TRY(sl_device_set_batch_invariant(list->devices[i], invariant));
    for (int i = 0; i < list->count; i++)
        SL_TRY(sl_device_set_batch_invariant(list->devices[i], invariant));
    return SL_OK;
}

int sl_device_list_count(const sl_device_list *list)
{
    return list->count;
}

sl_device *sl_device_list_get(const sl_device_list *list, int index)
{
    return list->devices[index];
}
