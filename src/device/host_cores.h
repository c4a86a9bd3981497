/* The cores of this machine: questions of who lays out stages and ranks. */
#ifndef SLI_DEVICE_HOST_CORES_H
#define SLI_DEVICE_HOST_CORES_H

#include "sluice/device.h"

/* The machine, and the cores of it that this process may use, as words that can be sent to other
 * processes. */
enum { SLI_MAX_CORES = 4096, SLI_CORE_WORDS = 1 + SLI_MAX_CORES / 64 };

sl_status sli_host_cores_read(int64_t words[SLI_CORE_WORDS]);

/* Whether process `own` of `count`, whose words are all[own * SLI_CORE_WORDS …], is one of several
 * on its machine and may use cores that none of the others may use. */
bool sli_host_cores_are_own(const int64_t *all, int count, int own);

/* Whether the process has a core, and its time, for each thread of these devices: only then may one
 * of them wait without sleeping. */
bool sli_host_cores_suffice(sl_device *const *devices, int count);

#endif
