/* CPU devices in a list: their names, and which cores each one gets.
 *
 *     cpu         all cores; several such devices use the same ones
 *     cpu:2       the third of the groups into which the list's N such names divide the cores
 *     cpu:4-7     cores by the system's numbers
 */
#include "device/cores.h"
#include "device/cpu/cpu_device.h"
#include "device/device_base.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ALL, GROUP, CORES }; /* the forms; GROUP: first and last are the group's number */

static bool parse_name(sli_device_name *name)
{
    const char *rest = name->text + strlen("cpu");
    name->form = ALL;
    name->first = name->last = 0;
    if (*rest == '\0')
        return true;
    rest++;
    if (!sli_device_number_parse(&rest, &name->first))
        return false;
    name->form = GROUP;
    name->last = name->first;
    if (*rest == '-') {
        rest++;
        name->form = CORES;
        if (!sli_device_number_parse(&rest, &name->last))
            return false;
    }
    return *rest == '\0' && name->first <= name->last;
}

/* A list has either groups (cpu:0, cpu:1, …, each once), or numbers of cores, or `cpu` once or
 * more.
 */
static sl_status check_names(const sli_device_name *names, int count)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (names[i].form == GROUP && names[j].form == GROUP &&
                names[i].first == names[j].first) /* also "cpu:1" and "cpu:01" */
                return sl_error(SL_ERR_INVALID, "the device \"%s\" is named twice", names[i].text);
    for (int i = 0; i < count; i++) {
        if (names[i].form != names[0].form)
            return sl_error(SL_ERR_INVALID,
                            "the devices \"%s\" and \"%s\" do not mix: cpu:NUMBER "
                            "divides the cores evenly, cpu:FIRST-LAST names them",
                            names[0].text, names[i].text);
        if (names[i].form == GROUP && names[i].first >= count)
            return sl_error(SL_ERR_INVALID,
                            "cpu:NUMBER divides the cores evenly: of %d in the list, the last is "
                            "cpu:%d, got \"%s\"",
                            count, count - 1, names[i].text);
    }
    return SL_OK;
}

/* Gives the cores of group `group` of `groups`, and returns the first of them: one core each,
 * several on the same, where there are more groups than cores. */
static int choose_group(const sli_cores *found, int group, int groups, sli_cpu_options *out)
{
    int64_t cores = found->core_count;
    int first = (int)(cores * group / groups), end = (int)(cores * (group + 1) / groups);
    out->cores = found->limited ? NULL : found->cores + first;
    out->threads = end > first ? end - first : 1;
    out->shared = cores < groups;
    return found->cores[first];
}

static sl_status create_named(const sli_device_name *name, const sli_cores *found,
                              sli_cpu_options *options, sl_device **out)
{
    int wanted = name->last - name->first + 1;
    for (int core = name->first; core <= name->last; core++)
        if (!sli_cores_allow(found, core))
            return sl_error(SL_ERR_NOT_FOUND,
                            "%s: the machine has no core %d, or this process may not use it (it "
                            "may use %d)",
                            name->text, core, found->allowed_count);
    int *cores = malloc((size_t)wanted * sizeof *cores);
    if (!cores)
        return sli_no_memory("sl_device_list_create", "%d cores", wanted);
    for (int i = 0; i < wanted; i++)
        cores[i] = name->first + i;
    options->cores = cores;
    options->threads = wanted;
    sl_status status = sli_cpu_device_create(options, out);
    free(cores);
    return status;
}

/* Whether another name of the list stands for some of the same cores. */
static bool cores_overlap(const sli_device_name *names, int count, int index)
{
    for (int i = 0; i < count; i++)
        if (i != index && names[i].first <= names[index].last &&
            names[index].first <= names[i].last)
            return true;
    return false;
}

/* The lowest core of the names that overlap with this one, by way of other names as well: devices
 * that have one core in common count as on the same cores. */
static int find_core_set(const sli_device_name *names, int count, int index)
{
    int first = names[index].first, last = names[index].last;
    for (int i = 0; i < count; i++) {
        const sli_device_name *other = &names[i];
        bool overlaps = other->first <= last && first <= other->last;
        if (!overlaps || (first <= other->first && other->last <= last))
            continue;
        first = other->first < first ? other->first : first;
        last = other->last > last ? other->last : last;
        i = -1; /* what has been passed may overlap with the wider range */
    }
    return first;
}

/* Whether all named cores together have more threads than the process gets time for. */
static bool exceeds_quota(const sli_device_name *names, int count, const sli_cores *found)
{
    int64_t threads = 0;
    for (int i = 0; i < count; i++)
        threads += names[i].last - names[i].first + 1;
    return threads > found->quota;
}

/* Device `index` of the names that divide the cores found; `group` is the number of its cores among
 * their groups. */
static sl_status create_device(const sli_device_name *names, int count, int index, int group,
                               const sli_cores *found, sli_memory_bound *memory, sl_device **out,
                               bool *shared)
{
    const sli_device_name *name = &names[index];
    sli_cpu_options options = {.name = name->text, .bound = memory};
    int core_set;
    if (name->form == CORES) {
        options.shared = cores_overlap(names, count, index) || exceeds_quota(names, count, found);
        core_set = find_core_set(names, count, index);
        SL_TRY(create_named(name, found, &options, out));
    } else {
        bool all = name->form == ALL;
        core_set = choose_group(found, all ? 0 : group, all ? 1 : count, &options);
        options.shared |= all && count > 1;
        SL_TRY(sli_cpu_device_create(&options, out));
    }
    (*out)->core_set = core_set;
    *shared |= options.shared;
    return SL_OK;
}

/* Reduces the quota to this process's, which has `own` of the list's `all` devices. */
static void divide_quota(sli_cores *found, int own, int all)
{
    if (found->quota < INT_MAX)
        sli_cores_limit(found, (int)(((int64_t)found->quota * own + all - 1) / all));
}

/* A bound process divides its cores among its own names alone, and its quota with the others. */
sl_status sli_cpu_devices_create(const sli_device_request *request, sli_cores *found,
                                 sl_device **out, bool *shared)
{
    const sli_device_name *names = request->names;
    int count = request->count, first = request->first, size = request->end - request->first;
    if (request->bound) {
        divide_quota(found, size, count);
        names += first;
        count = size;
        first = 0;
    }
    sl_status status = SL_OK;
    for (int i = 0; i < size && status == SL_OK; i++) {
        int group = request->bound ? i : names[first + i].first;
        status =
            create_device(names, count, first + i, group, found, request->memory, &out[i], shared);
    }
    for (int i = 0; i < size && status != SL_OK; i++)
        sl_device_destroy(&out[i]);
    return status;
}

static sl_status create_devices(const sli_device_request *request, sl_device **out, bool *shared)
{
    sli_cores found;
    SL_TRY(sli_cores_find(&found));
    sl_status status = sli_cpu_devices_create(request, &found, out, shared);
    sli_cores_clear(&found);
    return status;
}

static sl_status count_cores(int *out)
{
    sli_cores found;
    SL_TRY(sli_cores_find(&found));
    *out = found.core_count;
    sli_cores_clear(&found);
    return SL_OK;
}

const sli_device_kind sli_cpu_kind = {
    .prefix = "cpu",
    .forms = "cpu, cpu:NUMBER or cpu:FIRST-LAST",
    .parse = parse_name,
    .check = check_names,
    .create = create_devices,
    .count = count_cores,
};
