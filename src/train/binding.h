/* Whether the launcher has given this process cores that no other rank on its machine may use. */
#ifndef SLI_TRAIN_BINDING_H
#define SLI_TRAIN_BINDING_H

#include "sluice/group.h"

#include <stdbool.h>

/* Called by every rank. True where the ranks of this machine may use different cores, as under
 * `mpirun --bind-to core`; false where they share the same, and for one that is alone. */
sl_status sli_binding_find(sl_group *group, bool *out);

#endif
