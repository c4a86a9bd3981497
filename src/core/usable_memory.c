#include "core/usable_memory.h"

#include "core/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static uint64_t smaller_limit(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t sli_usable_memory(const char *root)
{
    struct sysinfo machine;
    sli_cgroup_limits limits = sli_cgroup_limits_read(root);
    if (sysinfo(&machine) != 0)
        return limits.total_bytes;
    uint64_t memory = (uint64_t)machine.totalram * machine.mem_unit;
    uint64_t swap = (uint64_t)machine.totalswap * machine.mem_unit;
    return smaller_limit(smaller_limit(memory, limits.memory_bytes) + swap, limits.total_bytes);
}

/* Adds the line's KiB, as bytes, if it has the name. */
static bool add_kib_of(const char *line, const char *name, uint64_t *bytes)
{
    size_t length = strlen(name);
    if (strncmp(line, name, length) != 0)
        return false;
    *bytes += strtoull(line + length, NULL, 10) * 1024;
    return true;
}

uint64_t sli_available_memory(const char *root)
{
    char path[PATH_MAX], line[128];
    uint64_t bytes = 0;
    bool is_known = false;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (!add_kib_of(line, "SwapFree:", &bytes))
            is_known |= add_kib_of(line, "MemAvailable:", &bytes);
    if (file)
        fclose(file);
    return is_known ? bytes : UINT64_MAX;
}

/* In pages. */
static void read_resident(uint64_t *resident, uint64_t *of_files)
{
    char line[128] = "";
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && !fgets(line, sizeof line, file))
        line[0] = '\0';
    if (file)
        fclose(file);
    char *at = line;
    strtoull(at, &at, 10); /* address space */
    *resident = strtoull(at, &at, 10);
    *of_files = strtoull(at, &at, 10);
}

uint64_t sli_resident_memory(void)
{
    uint64_t resident, of_files;
    read_resident(&resident, &of_files);
    return resident > of_files ? (resident - of_files) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

uint64_t sli_resident_files(void)
{
    uint64_t resident, of_files;
    read_resident(&resident, &of_files);
    return of_files * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t sli_resident_memory_with_files(void)
{
    uint64_t resident, of_files;
    read_resident(&resident, &of_files);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

void sli_memory_bound_init(sli_memory_bound *bound)
{
    bound->usable_bytes = sli_usable_memory("");
    atomic_init(&bound->reserved_bytes, sli_resident_memory());
}

static bool has_room(const sli_memory_bound *bound, uint64_t held, size_t bytes)
{
    return bytes <= bound->usable_bytes && held <= bound->usable_bytes - bytes;
}

bool sli_memory_bound_reserve(sli_memory_bound *bound, size_t bytes)
{
    const size_t large = 1 << 20; /* for smaller blocks the files of /proc are not read */
    uint64_t taken = atomic_fetch_add(&bound->reserved_bytes, bytes);
    if (has_room(bound, taken, bytes) &&
        (bytes < large ||
         (has_room(bound, sli_resident_memory(), bytes) && bytes <= sli_available_memory(""))))
        return true;
    atomic_fetch_sub(&bound->reserved_bytes, bytes);
    return false;
}

void sli_memory_bound_release(sli_memory_bound *bound, size_t bytes)
{
    atomic_fetch_sub(&bound->reserved_bytes, bytes);
}
