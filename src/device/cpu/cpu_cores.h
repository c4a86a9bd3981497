/* Which cores this process may use, in the order of the machine's topology, and how much of their
 * time it gets. */
#ifndef SLI_DEVICE_CPU_CPU_CORES_H
#define SLI_DEVICE_CPU_CPU_CORES_H

#include "sluice/status.h"

#include <stdbool.h>

typedef struct sli_cpu_cores {
    int *cores; /* [core_count] one system number for each physical core, neighbours in sequence */
    int core_count;
    int quota;    /* cores whose time control groups give it; INT_MAX: no limit */
    bool limited; /* there are more cores than core_count: their time is others' as well, so that
                     threads are best bound to none of them */
    int *allowed; /* [allowed_count] every allowed number, hardware threads of one core included */
    int allowed_count;
} sli_cpu_cores;

/* Where control groups give the process less time than its cores have, core_count is what they
 * give, rounded up. */
sl_status sli_cpu_cores_find(sli_cpu_cores *out);
/* As though the quota were `quota`, where that is less. */
void sli_cpu_cores_limit(sli_cpu_cores *cores, int quota);
void sli_cpu_cores_clear(sli_cpu_cores *cores);

/* How many threads of this process can run at once: the calling thread's allowed cores, hardware
 * threads of one core included, or fewer where control groups give less time. 0: unknown. */
int sli_cpu_cores_at_once(void);

bool sli_cpu_cores_allow(const sli_cpu_cores *cores, int number);

#endif
