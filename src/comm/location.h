/* Where the ranks of a group are. */
#ifndef SLI_COMM_LOCATION_H
#define SLI_COMM_LOCATION_H

#include "sluice/group.h"

enum { SLI_LOCATION_BYTES = 224 };

/* Writes where a rank of the group is: "rank 1 (3 of the job) on HOST, stages 2 to 3".
 * stage_ranks[s]: the rank of the group that has stage s. */
void sli_rank_location_text(const sl_group *group, int rank, const char *host,
                            const int *stage_ranks, int stages, char text[SLI_LOCATION_BYTES]);

#endif
