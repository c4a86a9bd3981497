/* What Linux control groups (cgroups, version 1, version 2 or both) let this process use: the
 * smallest limit of its own group and of every group above it that can be seen from here.
 *
 * Only limits count that kill or stop a process which exceeds them. memory.high does not: above it
 * the process only gets slower. */
#ifndef SLI_CORE_CGROUP_H
#define SLI_CORE_CGROUP_H

#include <stdint.h>

typedef struct sli_cgroup_limits {
    uint64_t memory_bytes; /* without swap; UINT64_MAX: no limit */
    uint64_t total_bytes;  /* with swap; UINT64_MAX: no limit */
    int cores;             /* whose time it gets, rounded up; INT_MAX: no limit */
} sli_cgroup_limits;

/* Reads ROOT/proc/self/{cgroup,mountinfo} and the groups' files below ROOT; `root` is "" except in
 * tests. A file that is missing or has no number in it sets no limit. */
sli_cgroup_limits sli_cgroup_limits_read(const char *root);

#endif
