/* How one rank's error reaches the others.
 *
 * An operation of a group fails on all ranks. Between two operations a rank can fail alone, and the
 * others would wait for it. It has two ways to go on:
 *
 *     sli_group_agree    where all ranks come to the same line next: the error becomes everyone's,
 *                        and the group can be used again
 *     sli_group_check    where the others may be anywhere: breaks the group
 *
 * A group that is NULL has no other ranks. */
#ifndef SLI_COMM_AGREE_H
#define SLI_COMM_AGREE_H

#include "core/error.h"
#include "sluice/group.h"

/* Called by every rank with its own status: all return the error of the first rank that has one. */
sl_status sli_group_agree(sl_group *group, sl_status status);

/* Does nothing for SL_OK; breaks the group after an error of this rank alone. This thread's error
 * stays as it is. Returns `status`. */
sl_status sli_group_check(sl_group *group, sl_status status);

/* sli_group_check for an error that may follow from another rank's: returns the error that broke
 * the group first. */
sl_status sli_group_first_error(sl_group *group, sl_status error);

/* Broadcasts root's error, which is `mine` there, and returns it on every rank. */
sl_status sli_group_broadcast_error(sl_group *group, const sli_error_copy *mine, int root);

#endif
