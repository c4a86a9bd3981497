/* Which cores this process may use, in the order of the machine's topology. */
#ifndef SLI_DEVICE_CPU_CPU_CORES_H
#define SLI_DEVICE_CPU_CPU_CORES_H

#include "sluice/status.h"

#include <stdbool.h>

typedef struct sli_cpu_cores {
    int *cores; /* [core_count] one system number for each physical core, neighbours in sequence */
    int core_count;
    int *allowed; /* [allowed_count] every allowed number, hardware threads of one core included */
    int allowed_count;
} sli_cpu_cores;

sl_status sli_cpu_cores_find(sli_cpu_cores *out);
void sli_cpu_cores_clear(sli_cpu_cores *cores);
bool sli_cpu_cores_allow(const sli_cpu_cores *cores, int number);

#endif
