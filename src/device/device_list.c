/* Device lists: from names to devices with their cores. */
#include "device/device_list.h"

#include "device/cpu/cpu_cores.h"
#include "device/cpu/cpu_device.h"
#include "device/device_base.h"

#include <limits.h>
#include <stdlib.h>

struct sl_device_list {
    sli_memory_bound bound; /* the devices' */
    int count;
    sl_device *devices[];
};

/* A list is either shares (cpu:0, cpu:1, …, each once), or names of cores, or `cpu` again and
 * again.
 */
static sl_status check_names(const sli_device_name *names, int count)
{
    for (int i = 0; i < count; i++) {
        if (names[i].kind != names[0].kind)
            return sl_error(SL_ERR_INVALID,
                            "the devices \"%s\" and \"%s\" do not mix: cpu:NUMBER "
                            "divides the cores evenly, cpu:FIRST-LAST names them",
                            names[0].text, names[i].text);
        if (names[i].kind == SLI_CPU_SHARE && names[i].first >= count)
            return sl_error(
                SL_ERR_INVALID,
                "cpu:NUMBER is an even share of the cores: of %d in the list, the last is "
                "cpu:%d, got \"%s\"",
                count, count - 1, names[i].text);
    }
    return SL_OK;
}

/* Reads a list's names, which the caller frees. */
static sl_status read_names(const char *names, sli_device_name **out, int *count)
{
    SL_TRY(sli_device_names_parse(names, out, count));
    sl_status status = check_names(*out, *count);
    if (status != SL_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

sl_status sli_device_list_check(const char *names)
{
    sli_device_name *parsed;
    int count;
    SL_TRY(read_names(names, &parsed, &count));
    free(parsed);
    return SL_OK;
}

/* The part of `found` that is share `share` of `shares`; one core, shared, where there are more
 * shares than cores. */
static void divide(const sli_cpu_cores *found, int share, int shares, sli_cpu_options *out)
{
    int64_t cores = found->core_count;
    int first = (int)(cores * share / shares), end = (int)(cores * (share + 1) / shares);
    out->cores = found->limited ? NULL : found->cores + first;
    out->threads = end > first ? end - first : 1;
    out->shared = cores < shares;
}

static sl_status create_named(const sli_device_name *name, const sli_cpu_cores *found,
                              sli_cpu_options *options, sl_device **out)
{
    int wanted = name->last - name->first + 1;
    int *cores = malloc((size_t)wanted * sizeof *cores);
    if (!cores)
        return sl_error(SL_ERR_MEMORY, "sl_device_list_create: no memory for %d cores", wanted);
    sl_status status = SL_OK;
    for (int i = 0; i < wanted && status == SL_OK; i++) {
        cores[i] = name->first + i;
        if (!sli_cpu_cores_allow(found, cores[i]))
            status = sl_error(SL_ERR_NOT_FOUND,
                              "%s: the machine has no core %d, or this "
                              "process may not use it (it may use %d)",
                              name->text, cores[i], found->allowed_count);
    }
    options->cores = cores;
    options->threads = wanted;
    if (status == SL_OK)
        status = sli_cpu_device_create(options, out);
    free(cores);
    return status;
}

/* Whether another name of the list stands for some of the same cores. */
static bool overlaps(const sli_device_name *names, int count, int index)
{
    for (int i = 0; i < count; i++)
        if (i != index && names[i].first <= names[index].last &&
            names[index].first <= names[i].last)
            return true;
    return false;
}

/* Whether all named cores together have more threads than the process gets time for. */
static bool exceed_quota(const sli_device_name *names, int count, const sli_cpu_cores *found)
{
    int64_t threads = 0;
    for (int i = 0; i < count; i++)
        threads += names[i].last - names[i].first + 1;
    return threads > found->quota;
}

static sl_status create_device(const sli_device_name *names, int count, int index,
                               const sli_cpu_cores *found, sli_memory_bound *bound, bool *shared,
                               sl_device **out)
{
    const sli_device_name *name = &names[index];
    sli_cpu_options options = {.name = name->text, .bound = bound};
    sl_status status;
    if (name->kind == SLI_CPU_CORES) {
        options.shared = overlaps(names, count, index) || exceed_quota(names, count, found);
        status = create_named(name, found, &options, out);
    } else {
        bool all = name->kind == SLI_CPU_ALL;
        divide(found, name->first, all ? 1 : count, &options);
        options.shared |= all && count > 1;
        status = sli_cpu_device_create(&options, out);
    }
    *shared |= options.shared;
    return status;
}

/* What is left of the quota where other processes have other parts of a list of `all`. */
static void divide_quota(sli_cpu_cores *found, int part, int all)
{
    if (found->quota < INT_MAX)
        sli_cpu_cores_limit(found, (int)(((int64_t)found->quota * part + all - 1) / all));
}

/* Devices first … end - 1 of the `count` that are named, in a process with as many of the `all`
 * that processes with the same quota have. */
static sl_status create_list(const sli_device_name *names, int count, int all, int first, int end,
                             sl_device_list **out, bool *shared)
{
    sli_cpu_cores found;
    SL_TRY(sli_cpu_cores_find(&found));
    divide_quota(&found, count, all);
    sl_status status = SL_OK;
    size_t size = (size_t)(end - first);
    sl_device_list *list = calloc(1, sizeof *list + size * sizeof *list->devices);
    if (!list)
        status = sl_error(SL_ERR_MEMORY, "sl_device_list_create: no memory for %d devices", count);
    else
        sli_memory_bound_init(&list->bound);
    for (int i = first; i < end && status == SL_OK; i++) {
        status =
            create_device(names, count, i, &found, &list->bound, shared, &list->devices[i - first]);
        if (status == SL_OK)
            list->count++;
    }
    if (status != SL_OK)
        sl_device_list_destroy(&list);
    sli_cpu_cores_clear(&found);
    *out = list;
    return status;
}

/* Makes a part of a list a list of its own, whose names are kept: its shares are counted anew. */
static void count_shares(sli_device_name *names, int count)
{
    for (int i = 0; i < count; i++)
        if (names[i].kind == SLI_CPU_SHARE)
            names[i].first = names[i].last = i;
}

sl_status sli_device_list_create_part(const char *names, int first, int most, bool bound,
                                      sl_device_list **out, bool *oversubscribed)
{
    *out = NULL;
    sli_device_name *parsed;
    int count;
    bool shared = false;
    if (oversubscribed)
        *oversubscribed = false;
    SL_TRY(read_names(names, &parsed, &count));
    int begin = first < count ? first : count;
    int end = most < count - begin ? begin + most : count;
    if (bound)
        count_shares(parsed + begin, end - begin);
    sl_status status =
        bound ? create_list(parsed + begin, end - begin, count, 0, end - begin, out, &shared)
              : create_list(parsed, count, count, begin, end, out, &shared);
    free(parsed);
    if (oversubscribed)
        *oversubscribed = status == SL_OK && shared;
    return status;
}

sl_status sl_device_list_create(const char *names, sl_device_list **out, bool *oversubscribed)
{
    return sli_device_list_create_part(names, 0, INT_MAX, false, out, oversubscribed);
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

int sl_device_list_count(const sl_device_list *list)
{
    return list->count;
}

sl_device *sl_device_list_get(const sl_device_list *list, int index)
{
    return list->devices[index];
}
