/* Where the files are:
 *
 *   /proc/self/mountinfo   which hierarchy of groups is mounted where, and which group its top is
 *   /proc/self/cgroup      the process's group in each hierarchy, as seen from the same namespace
 *
 * A group's folder is the mount point, and then the path from the mounted top to the group:
 *
 *   mounted top   group          folder                       the process is
 *   /             /a/b           /sys/fs/cgroup/a/b           on the host
 *   /             /              /sys/fs/cgroup               in a cgroup namespace
 *   /docker/x     /docker/x/b    /sys/fs/cgroup/memory/b      in a container without one
 *
 * The limits of all folders from there up to the mount point apply. */
#include "core/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reading {
    const char *root;
    uint64_t memory, swap, total; /* the smallest so far; UINT64_MAX: none */
    int cores;                    /* likewise; INT_MAX */
} reading;

static uint64_t smaller_limit(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t saturating_sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* ---- A group's files -------------------------------------------------------------------- */

/* Reads up to two whole numbers and returns how many there are: "max", -1 and text are not numbers.
 */
static int read_numbers(const char *folder, const char *name, uint64_t numbers[2])
{
    char path[PATH_MAX], line[64] = "";
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (!fgets(line, sizeof line, file))
        line[0] = '\0';
    fclose(file);
    int count = 0;
    for (char *at = line, *end; count < 2 && *at >= '0' && *at <= '9'; at = end + (*end == ' ')) {
        numbers[count] = strtoull(at, &end, 10);
        if (*end != '\0' && *end != ' ' && *end != '\n')
            break;
        count++;
    }
    return count;
}

static void lower_bytes(uint64_t *limit, const char *folder, const char *name)
{
    uint64_t numbers[2];
    if (read_numbers(folder, name, numbers) > 0)
        *limit = smaller_limit(*limit, numbers[0]);
}

static void lower_cores(reading *lowest, uint64_t quota, uint64_t period)
{
    if (quota == 0 || period == 0)
        return;
    uint64_t cores = quota / period + (quota % period != 0);
    if (cores < (uint64_t)lowest->cores)
        lowest->cores = (int)cores;
}

static void read_v2(reading *lowest, const char *folder)
{
    uint64_t numbers[2];
    lower_bytes(&lowest->memory, folder, "memory.max");
    lower_bytes(&lowest->swap, folder, "memory.swap.max");
    if (read_numbers(folder, "cpu.max", numbers) == 2)
        lower_cores(lowest, numbers[0], numbers[1]);
}

static void read_v1_memory(reading *lowest, const char *folder)
{
    lower_bytes(&lowest->memory, folder, "memory.limit_in_bytes");
    lower_bytes(&lowest->total, folder, "memory.memsw.limit_in_bytes");
}

static void read_v1_cpu(reading *lowest, const char *folder)
{
    uint64_t quota[2], period[2];
    if (read_numbers(folder, "cpu.cfs_quota_us", quota) > 0 &&
        read_numbers(folder, "cpu.cfs_period_us", period) > 0)
        lower_cores(lowest, quota[0], period[0]);
}

/* ---- Which groups ----------------------------------------------------------------------- */

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; *at; at += *at == ',') {
        size_t here = strcspn(at, ",");
        if (here == length && strncmp(at, word, length) == 0)
            return true;
        at += here;
    }
    return false;
}

/* Opens a file of /proc/self. */
static FILE *open_process_file(const char *root, const char *name)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/proc/self/%s", root, name) >= (int)sizeof path)
        return NULL;
    return fopen(path, "re");
}

/* The process's group in the hierarchy of version 1 with that controller, or of version 2
 * (controller ""), from lines "NUMBER:CONTROLLERS:GROUP"; "" where no line tells. */
static void find_group(const char *root, const char *controller, char group[PATH_MAX])
{
    char *line = NULL;
    size_t room = 0;
    FILE *file = open_process_file(root, "cgroup");
    group[0] = '\0';
    while (file && getline(&line, &room, file) >= 0) {
        char *controllers = strchr(line, ':'), *name;
        if (!controllers || !(name = strchr(++controllers, ':')))
            continue;
        *name++ = '\0';
        name[strcspn(name, "\n")] = '\0';
        if (*controller ? has_word(controllers, controller) : *controllers == '\0') {
            snprintf(group, PATH_MAX, "%s", name);
            break;
        }
    }
    free(line);
    if (file)
        fclose(file);
}

/* The path from the mounted top to `group`; "" where it is the top, or is not below it. */
static const char *path_below(const char *group, const char *top)
{
    size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);
    bool inside = strncmp(group, top, length) == 0 && (group[length] == '/' || !group[length]);
    return inside && !strstr(group, "/..") ? group + length : "";
}

/* Reads the limits in the group's folder and in all above it, up to the mount point. */
static void read_groups(reading *lowest, const char *mount, const char *top, const char *controller,
                        void (*read_limits)(reading *lowest, const char *folder))
{
    char group[PATH_MAX], folder[PATH_MAX];
    find_group(lowest->root, controller, group);
    int fixed = snprintf(folder, sizeof folder, "%s%s", lowest->root, mount);
    if (fixed < 0 || fixed >= (int)sizeof folder)
        return;
    snprintf(folder + fixed, sizeof folder - (size_t)fixed, "%s", path_below(group, top));
    for (char *last = folder + strlen(folder);; *last = '\0') {
        read_limits(lowest, folder);
        if (last == folder + fixed || !(last = strrchr(folder + fixed, '/')))
            return;
    }
}

/* ---- What is mounted -------------------------------------------------------------------- */

/* Blanks, tabs, line ends and backslashes in names are written as \040 and so on. */
static void unescape_path(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++, to++) {
        *to = *at;
        if (*at == '\\' && strspn(at + 1, "01234567") >= 3) {
            *to = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 3;
        }
    }
    *to = '\0';
}

/* "ID PARENT DEVICE TOP POINT OPTIONS … - TYPE SOURCE SUPER_OPTIONS" */
static void read_mount(reading *to, char *line)
{
    char *words[5], *save = NULL, *rest = strstr(line, " - ");
    if (!rest)
        return;
    *rest = '\0';
    for (int i = 0; i < 5; i++)
        if (!(words[i] = strtok_r(i ? NULL : line, " ", &save)))
            return;
    char *type = strtok_r(rest + 3, " \n", &save), *source = strtok_r(NULL, " \n", &save);
    const char *options = strtok_r(NULL, " \n", &save);
    if (!type || !source || !options)
        return;
    unescape_path(words[3]);
    unescape_path(words[4]);
    if (strcmp(type, "cgroup2") == 0)
        read_groups(to, words[4], words[3], "", read_v2);
    if (strcmp(type, "cgroup") == 0 && has_word(options, "memory"))
        read_groups(to, words[4], words[3], "memory", read_v1_memory);
    if (strcmp(type, "cgroup") == 0 && has_word(options, "cpu"))
        read_groups(to, words[4], words[3], "cpu", read_v1_cpu);
}

sli_cgroup_limits sli_cgroup_limits_read(const char *root)
{
    reading to = {root, UINT64_MAX, UINT64_MAX, UINT64_MAX, INT_MAX};
    char *line = NULL;
    size_t room = 0;
    FILE *mounts = open_process_file(root, "mountinfo");
    while (mounts && getline(&line, &room, mounts) >= 0)
        read_mount(&to, line);
    free(line);
    if (mounts)
        fclose(mounts);
    uint64_t sum = saturating_sum(to.memory, to.swap);
    return (sli_cgroup_limits){to.memory, smaller_limit(to.total, sum), to.cores};
}
