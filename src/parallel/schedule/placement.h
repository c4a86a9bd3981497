/* Placements: the rank of each stage. For 3 ranks of 2 stages each:
 *
 *     loop   0 1 2 0 1 2        v   0 1 2 2 1 0 */
#ifndef SLI_PARALLEL_SCHEDULE_PLACEMENT_H
#define SLI_PARALLEL_SCHEDULE_PLACEMENT_H

typedef enum sli_placement { SLI_PLACEMENT_LOOP, SLI_PLACEMENT_V } sli_placement;

void sli_placement_fill(sli_placement kind, int ranks, int stages, int *placement);

#endif
