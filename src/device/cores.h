/* The cores that this process may use. */
#ifndef SLI_DEVICE_CORES_H
#define SLI_DEVICE_CORES_H

#include "sluice/device.h"

typedef struct sli_cores {
    int *cores; /* [core_count] one system number for each physical core, neighbours in sequence */
    int core_count;
    int quota;    /* cores whose time control groups give it; INT_MAX: no limit */
    bool limited; /* core_count is below the number of cores: their time is others' as well, so it
                     is best to bind threads to none of them */
    int *allowed; /* [allowed_count] every allowed number, hardware threads of one core included */
    int allowed_count;
    int socket;       /* that has all of them, by the machine's order; -1: several, or it is not
                         known */
    int socket_count; /* of the machine; 0: it is not known */
} sli_cores;

/* Finds the cores in the order of the machine's topology. Where control groups give the process
 * less time than its cores have, core_count is what they give, rounded up. */
sl_status sli_cores_find(sli_cores *out);
/* Lowers the quota to `quota`, if that is less. */
void sli_cores_limit(sli_cores *cores, int quota);
void sli_cores_clear(sli_cores *cores);
bool sli_cores_allow(const sli_cores *cores, int number);

/* Whether the process has a core, and its time, for each thread of these devices: only then may a
 * thread wait without sleeping. */
bool sli_cores_suffice(sl_device *const *devices, int count);

/* The machine, and the cores of it that this process may use, as words that can be sent to other
 * processes. */
enum { SLI_MAX_CORES = 4096, SLI_CORE_WORDS = 1 + SLI_MAX_CORES / 64 };
sl_status sli_cores_describe(int64_t words[SLI_CORE_WORDS]);

/* Whether a launcher has given process `own` cores that no other process of its machine may use, as
 * `mpirun --bind-to core` does; false for one that is alone on its machine. `words` [processes,
 * SLI_CORE_WORDS] are all processes' descriptions. */
bool sli_cores_are_own(const int64_t *words, int processes, int own);

#endif
