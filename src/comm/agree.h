/* One status for all ranks of a group. */
#ifndef SLI_COMM_AGREE_H
#define SLI_COMM_AGREE_H

#include "core/error.h"
#include "sluice/group.h"

/* Called by every rank with its own status: all return the error of the first rank that has one. */
sl_status sli_group_agree(sl_group *group, sl_status status);

/* Gives every rank rank `root`'s error, of which `own` is this rank's. */
sl_status sli_group_broadcast_error(sl_group *group, const sli_error_copy *own, int root);

#endif
