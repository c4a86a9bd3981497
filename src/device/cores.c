#define _GNU_SOURCE /* sched_getaffinity */

#include "device/cores.h"

#include "core/cgroup.h"
#include "core/error.h"
#include "core/host.h"

#include <hwloc.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* The hardware threads that the process may run on: what the machine allows (cpusets) and
 * what it was bound to (taskset, mpirun, Slurm). */
static hwloc_bitmap_t allowed_set(hwloc_topology_t topology)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return NULL;
    if (hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) < 0 || hwloc_bitmap_iszero(set))
        hwloc_bitmap_copy(set, hwloc_topology_get_allowed_cpuset(topology));
    hwloc_bitmap_and(set, set, hwloc_topology_get_allowed_cpuset(topology));
    return set;
}

static void add_once(int *list, int *count, int number)
{
    for (int i = 0; i < *count; i++)
        if (list[i] == number)
            return;
    list[(*count)++] = number;
}

/* Walks the hardware threads in topology order; the first allowed one of each core stands for the
 * core. A thread that hwloc sees outside any core counts as a core. */
static sl_status list_cores(hwloc_topology_t topology, hwloc_const_bitmap_t set, sli_cores *out)
{
    int total = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    out->cores = calloc((size_t)total + 1, sizeof *out->cores);
    out->allowed = calloc((size_t)total + 1, sizeof *out->allowed);
    if (!out->cores || !out->allowed)
        return sli_no_memory(NULL, "%d cores", total);
    for (int i = 0; i < total; i++) {
        hwloc_obj_t unit = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, (unsigned)i);
        int number = (int)unit->os_index;
        if (!hwloc_bitmap_isset(set, unit->os_index))
            continue;
        add_once(out->allowed, &out->allowed_count, number);
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, unit);
        hwloc_bitmap_t mine = core ? hwloc_bitmap_dup(core->cpuset) : NULL;
        if (mine) {
            hwloc_bitmap_and(mine, mine, set);
            number = hwloc_bitmap_first(mine);
            hwloc_bitmap_free(mine);
        }
        add_once(out->cores, &out->core_count, number);
    }
    if (out->core_count == 0)
        return sl_error(SL_ERR_NOT_FOUND, "this process may use no core");
    return SL_OK;
}

static void find_socket(hwloc_topology_t topology, hwloc_const_bitmap_t set, sli_cores *out)
{
    int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
    out->socket_count = count > 0 ? count : 0;
    for (int i = 0; i < count; i++) {
        hwloc_obj_t socket = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, (unsigned)i);
        if (hwloc_bitmap_isincluded(set, socket->cpuset))
            out->socket = i;
    }
}

sl_status sli_cores_find(sli_cores *out)
{
    *out = (sli_cores){.quota = INT_MAX, .socket = -1};
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) < 0)
        return sl_error(SL_ERR_MEMORY, "hwloc could not start");
    sl_status status;
    hwloc_bitmap_t set = NULL;
    if (hwloc_topology_load(topology) < 0)
        SL_TRY_OR_FAIL(sl_error(SL_ERR_NOT_FOUND, "hwloc cannot read the topology"));
    set = allowed_set(topology);
    SL_TRY_OR_FAIL(set ? list_cores(topology, set, out) : sli_no_memory(NULL, "a set of cores"));
    find_socket(topology, set, out);
    sli_cores_limit(out, sli_cgroup_limits_read("").cores);
fail:
    if (status != SL_OK)
        sli_cores_clear(out);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(topology);
    return status;
}

void sli_cores_limit(sli_cores *cores, int quota)
{
    if (quota < cores->quota)
        cores->quota = quota;
    if (quota < cores->core_count) {
        cores->core_count = quota;
        cores->limited = true;
    }
}

void sli_cores_clear(sli_cores *cores)
{
    free(cores->cores);
    free(cores->allowed);
    *cores = (sli_cores){.quota = INT_MAX};
}

/* How many threads of this process can run at once: the calling thread's allowed cores, hardware
 * threads of one core included, or fewer where control groups give less time. 0: unknown. */
static int count_threads_at_once(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return 0;
    int quota = sli_cgroup_limits_read("").cores;
    return quota < CPU_COUNT(&allowed) ? quota : CPU_COUNT(&allowed);
}

bool sli_cores_allow(const sli_cores *cores, int number)
{
    for (int i = 0; i < cores->allowed_count; i++)
        if (cores->allowed[i] == number)
            return true;
    return false;
}

bool sli_cores_suffice(sl_device *const *devices, int count)
{
    int64_t threads = 0;
    for (int i = 0; i < count; i++)
        threads += sl_device_thread_count(devices[i]);
    return threads <= count_threads_at_once();
}

/* ---- Other processes' cores ------------------------------------------------------------- */

/* words[0] is the host; then comes a bit for each core. */
sl_status sli_cores_describe(int64_t words[SLI_CORE_WORDS])
{
    sli_cores found;
    SL_TRY(sli_cores_find(&found));
    memset(words, 0, SLI_CORE_WORDS * sizeof *words);
    words[0] = sli_host_number();
    for (int i = 0; i < found.allowed_count; i++)
        if (found.allowed[i] < SLI_MAX_CORES)
            words[1 + found.allowed[i] / 64] |= (int64_t)(UINT64_C(1) << found.allowed[i] % 64);
    sli_cores_clear(&found);
    return SL_OK;
}

bool sli_cores_are_own(const int64_t *words, int processes, int own)
{
    const int64_t *mine = words + (size_t)own * SLI_CORE_WORDS;
    bool has_neighbours = false;
    for (int p = 0; p < processes; p++) {
        const int64_t *others = words + (size_t)p * SLI_CORE_WORDS;
        if (p == own || others[0] != mine[0])
            continue;
        has_neighbours = true;
        for (int w = 1; w < SLI_CORE_WORDS; w++)
            if (mine[w] & others[w])
                return false;
    }
    return has_neighbours;
}
