/* Memory: limits of control groups, read from recorded trees, and allocation. */
#include "core/cgroup.h"
#include "core/memory.h"
#include "core/usable_memory.h"
#include "support/check.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define NONE UINT64_MAX
#define GIB  (UINT64_C(1) << 30)

/* The files of a tree: path and text in turn, the last NULL. */
typedef const char *const tree[];

static char root[64];

/* Writes a file below the root with all folders above it. */
static void write_text(const char *path, const char *text)
{
    char full[PATH_MAX];
    int length = snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *at = full + strlen(root) + 1; at < full + length; at++)
        if (*at == '/') {
            *at = '\0';
            mkdir(full, 0700);
            *at = '/';
        }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void remove_tree(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

static sli_cgroup_limits limits_of(tree files)
{
    snprintf(root, sizeof root, "/tmp/sluice-cgroup-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (int i = 0; files[i]; i += 2)
        write_text(files[i], files[i + 1]);
    sli_cgroup_limits limits = sli_cgroup_limits_read(root);
    remove_tree();
    return limits;
}

static void check(tree files, uint64_t memory, uint64_t total, int cores)
{
    sli_cgroup_limits limits = limits_of(files);
    assert_int_equal(limits.memory_bytes, memory);
    assert_int_equal(limits.total_bytes, total);
    assert_int_equal(limits.cores, cores);
}

#define V2_MOUNT "31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNTS(top)                                                                             \
    "22 1 0:5 / /proc rw - proc proc rw\n"                                                         \
    "32 31 0:29 " top " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"            \
    "34 31 0:31 " top " /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"                      \
    "35 31 0:32 " top " /sys/fs/cgroup/memory rw master:3 - cgroup cgroup rw,memory\n"

static void version_2_gives_the_smallest_limit_up_to_the_top(void **state)
{
    check((tree){"proc/self/mountinfo",
                 V2_MOUNT,
                 "proc/self/cgroup",
                 "0::/user/job/step\n",
                 "sys/fs/cgroup/user/memory.max",
                 "8589934592\n", /* 8 GiB */
                 "sys/fs/cgroup/user/cpu.max",
                 "350000 100000\n", /* 3.5 cores */
                 "sys/fs/cgroup/user/job/memory.max",
                 "2147483648\n", /* 2 GiB */
                 "sys/fs/cgroup/user/job/memory.high",
                 "1000\n", /* slows */
                 "sys/fs/cgroup/user/job/memory.swap.max",
                 "1073741824\n", /* 1 GiB */
                 "sys/fs/cgroup/user/job/cpu.max",
                 "max 100000\n",
                 "sys/fs/cgroup/user/job/step/memory.max",
                 "max\n",
                 "sys/fs/cgroup/user/job/step/memory.swap.max",
                 "max\n",
                 "sys/fs/cgroup/user/job/step/cpu.max",
                 "800000 100000\n",
                 "sys/fs/cgroup/user/other/memory.max",
                 "4096\n",
                 NULL},
          2 * GIB, 3 * GIB, 4);
}

static void the_top_of_a_namespace_is_looked_at(void **state)
{
    check((tree){"proc/self/mountinfo", V2_MOUNT, "proc/self/cgroup", "0::/\n",
                 "sys/fs/cgroup/memory.max", "1073741824\n", "sys/fs/cgroup/memory.swap.max", "0\n",
                 "sys/fs/cgroup/cpu.max", "50000 100000\n", NULL},
          GIB, GIB, 1);
}

static void a_group_outside_of_the_namespace_leaves_its_top(void **state)
{
    check((tree){"proc/self/mountinfo", V2_MOUNT, "proc/self/cgroup", "0::/../../other\n",
                 "sys/fs/cgroup/memory.max", "1073741824\n", "sys/fs/other/memory.max", "1\n",
                 NULL},
          GIB, NONE, INT_MAX);
}

static void version_1_has_a_hierarchy_for_each_controller(void **state)
{
    check((tree){"proc/self/mountinfo",
                 V1_MOUNTS("/"),
                 "proc/self/cgroup",
                 "9:name=systemd:/x\n4:memory:/slurm/job:7\n3:cpuset:/c\n2:cpu,cpuacct:/slurm\n",
                 "sys/fs/cgroup/memory/memory.limit_in_bytes",
                 "9223372036854771712\n",
                 "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes",
                 "4294967296\n",
                 "sys/fs/cgroup/memory/slurm/memory.memsw.limit_in_bytes",
                 "5368709120\n",
                 "sys/fs/cgroup/memory/slurm/job:7/memory.limit_in_bytes",
                 "3221225472\n",
                 "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us",
                 "-1\n",
                 "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us",
                 "100000\n",
                 "sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us",
                 "200000\n",
                 "sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us",
                 "100000\n",
                 "sys/fs/cgroup/cpuset/c/memory.limit_in_bytes",
                 "1\n",
                 NULL},
          3 * GIB, 5 * GIB, 2);
}

static void a_container_without_a_namespace_mounts_its_own_group(void **state)
{
    check((tree){"proc/self/mountinfo", V1_MOUNTS("/docker/abc"), "proc/self/cgroup",
                 "4:memory:/docker/abc/sub\n2:cpu,cpuacct:/docker/abc\n",
                 "sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n",
                 "sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "1073741824\n",
                 "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n",
                 "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n", NULL},
          GIB, NONE, 3);
    /* "/docker/abcd" is not below "/docker/abc". */
    check((tree){"proc/self/mountinfo", V1_MOUNTS("/docker/abc"), "proc/self/cgroup",
                 "4:memory:/docker/abcd\n", "sys/fs/cgroup/memory/memory.limit_in_bytes",
                 "2147483648\n", "sys/fs/cgroup/memory/d/memory.limit_in_bytes", "1\n", NULL},
          2 * GIB, NONE, INT_MAX);
}

static void both_versions_may_be_mounted(void **state)
{
    check((tree){"proc/self/mountinfo",
                 V1_MOUNTS("/") "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
                 "proc/self/cgroup", "4:memory:/job\n0::/session\n",
                 "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n",
                 "sys/fs/cgroup/unified/session/cpu.max", "100000 100000\n", NULL},
          GIB, NONE, 1);
}

static void mount_points_may_have_any_name(void **state)
{
    check((tree){"proc/self/mountinfo", "31 24 0:27 / /my\\040groups rw - cgroup2 none rw\n",
                 "proc/self/cgroup", "0::/a:b\n", "my groups/a:b/memory.max", "1073741824\n", NULL},
          GIB, NONE, INT_MAX);
}

static void what_cannot_be_read_is_no_limit(void **state)
{
    check((tree){NULL}, NONE, NONE, INT_MAX);
    check((tree){"proc/self/mountinfo", V2_MOUNT, NULL}, NONE, NONE, INT_MAX);
    check((tree){"proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "1\n", NULL}, NONE,
          NONE, INT_MAX);
    check((tree){"proc/self/mountinfo",
                 "\n - \n - cgroup2\n1 2 3 / /sys/fs/cgroup rw - cgroup2\nnonsense\n" V2_MOUNT,
                 "proc/self/cgroup", "\n0\n0:\n::\nnonsense\n0::/a\n", "sys/fs/cgroup/a/memory.max",
                 "", "sys/fs/cgroup/a/memory.swap.max", "12x\n", "sys/fs/cgroup/a/cpu.max",
                 "0 100000\n", NULL},
          NONE, NONE, INT_MAX);
    check((tree){"proc/self/mountinfo", V2_MOUNT, "proc/self/cgroup", "0::/a\n",
                 "sys/fs/cgroup/a/memory.max", "-5\n", "sys/fs/cgroup/a/cpu.max", "100000 0\n",
                 "sys/fs/cgroup/cpu.max", "100000\n", NULL},
          NONE, NONE, INT_MAX);
    /* The numbers that a kernel could not have written are still numbers. */
    check((tree){"proc/self/mountinfo", V2_MOUNT, "proc/self/cgroup", "0::/a\n",
                 "sys/fs/cgroup/a/memory.max", "99999999999999999999999\n",
                 "sys/fs/cgroup/a/cpu.max", "99999999999999999999999 1\n", NULL},
          NONE, NONE, INT_MAX);
}

static void usable_memory_is_the_machines_or_what_the_group_has(void **state)
{
    struct sysinfo machine;
    assert_int_equal(sysinfo(&machine), 0);
    uint64_t memory = (uint64_t)machine.totalram * machine.mem_unit;
    uint64_t swap = (uint64_t)machine.totalswap * machine.mem_unit;
    assert_int_equal(sli_usable_memory("/nowhere"), memory + swap);
    snprintf(root, sizeof root, "/tmp/sluice-cgroup-XXXXXX");
    assert_non_null(mkdtemp(root));
    write_text("proc/self/mountinfo", V2_MOUNT);
    write_text("proc/self/cgroup", "0::/a\n");
    write_text("sys/fs/cgroup/a/memory.max", "1000000\n");
    assert_int_equal(sli_usable_memory(root), 1000000 + swap);
    write_text("sys/fs/cgroup/memory.swap.max", "0\n");
    assert_int_equal(sli_usable_memory(root), 1000000);
    assert_true(sli_available_memory(root) == UINT64_MAX);
    write_text("proc/meminfo", "MemTotal: 900 kB\nMemAvailable:     300 kB\nSwapFree:  20 kB\n");
    assert_int_equal(sli_available_memory(root), 320 * 1024);
    remove_tree();
}

/* ---- Allocating -------------------------------------------------------------------------- */

static void array_grows_up_to_its_maximum(void **state)
{
    FREED int *numbers = NULL;
    size_t room = 0;
    for (size_t i = 0; i < 100; i++) {
        check_ok(sli_array_reserve(&numbers, &room, i + 1, sizeof *numbers, 100, "numbers"));
        assert_true(room > i && room <= 100);
        numbers[i] = (int)i;
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(numbers[i], i);
    check_error(sli_array_reserve(&numbers, &room, 101, sizeof *numbers, 100, "numbers"),
                SL_ERR_UNSUPPORTED, "there can be at most 100 numbers");
    check_error(sli_array_reserve(&numbers, &room, SIZE_MAX, sizeof *numbers, SIZE_MAX, "numbers"),
                SL_ERR_MEMORY, "no memory for");
    assert_int_equal(numbers[99], 99);
}

static void blocks_of_every_size_are_aligned_and_writable(void **state)
{
    static const size_t sizes[] = {1, 64, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 7 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        FREED char *block = sli_huge_pages_alloc(sizes[i]);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % (sizes[i] >= 2 << 20 ? 2 << 20 : 64), 0);
        memset(block, 1, sizes[i]);
    }
}

int memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_2_gives_the_smallest_limit_up_to_the_top),
        cmocka_unit_test(the_top_of_a_namespace_is_looked_at),
        cmocka_unit_test(a_group_outside_of_the_namespace_leaves_its_top),
        cmocka_unit_test(version_1_has_a_hierarchy_for_each_controller),
        cmocka_unit_test(a_container_without_a_namespace_mounts_its_own_group),
        cmocka_unit_test(both_versions_may_be_mounted),
        cmocka_unit_test(mount_points_may_have_any_name),
        cmocka_unit_test(what_cannot_be_read_is_no_limit),
        cmocka_unit_test(usable_memory_is_the_machines_or_what_the_group_has),
        cmocka_unit_test(array_grows_up_to_its_maximum),
        cmocka_unit_test(blocks_of_every_size_are_aligned_and_writable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
