/* How long messages take between two ranks of a group. */
#ifndef SLI_COMM_LINK_TIME_H
#define SLI_COMM_LINK_TIME_H

#include "sluice/group.h"

/* Half the shortest of a few round trips of a message of `bytes` bytes (more than 1 MiB are scaled
 * up) between two ranks, which both call it. 0 on `other`: a sum over ranks counts the link once.
 * The caller breaks the group after an error. */
sl_status sli_measure_link(sl_group *group, int first, int other, double bytes, double *seconds);

#endif
