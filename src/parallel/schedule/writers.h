/* The writers: functions that write an order of computation. Each has a file of its schedule's
 * name, which begins with its drawing, and a line in the list of writers.c. */
#ifndef SLI_PARALLEL_SCHEDULE_WRITERS_H
#define SLI_PARALLEL_SCHEDULE_WRITERS_H

#include "parallel/schedule/table.h"

/* Placements: the rank of each stage. For 3 ranks of 2 stages each:
 *
 *     loop   0 1 2 0 1 2        v   0 1 2 2 1 0 */
typedef enum sli_placement { SLI_PLACEMENT_LOOP, SLI_PLACEMENT_V } sli_placement;

void sli_placement_fill(sli_placement kind, int ranks, int stages, int *placement);

/* What a writer may weigh. */
typedef struct sli_writer_costs {
    double forward, input, weight; /* of one stage, for one micro-batch or slice */
    double link;
} sli_writer_costs;

/* Fills `out`, whose ranks, stages, micros, slices and placement are set and whose rows are empty,
 * with room for two actions for each stage and micro-batch or slice. */
typedef sl_status (*sli_writer)(const sli_writer_costs *costs, sl_schedule *out);

sl_status sli_write_gpipe(const sli_writer_costs *costs, sl_schedule *out);
sl_status sli_write_1f1b(const sli_writer_costs *costs, sl_schedule *out);
sl_status sli_write_interleaved(const sli_writer_costs *costs, sl_schedule *out);
sl_status sli_write_looped_bfs(const sli_writer_costs *costs, sl_schedule *out);
sl_status sli_write_zb_h1(const sli_writer_costs *costs, sl_schedule *out);
sl_status sli_write_zb_v(const sli_writer_costs *costs, sl_schedule *out);

/* A rank among so many. */
typedef struct sli_filled_row {
    int ranks, virtual_stages, micros, rank;
} sli_filled_row;

/* sl_schedule_filling for one writer. */
typedef int (*sli_filling)(const sli_filled_row *filled, int k);

int sli_fill_all(const sli_filled_row *filled, int k); /* all micro-batches */
int sli_fill_1f1b(const sli_filled_row *filled, int k);
int sli_fill_interleaved(const sli_filled_row *filled, int k);
int sli_fill_zb_v(const sli_filled_row *filled, int k);

/* Puts the W of each I into a table of F and I where its rank would wait otherwise, so that no rank
 * holds more than `most_held` micro-batches, or slices, of its stages at once (weights.c). */
sl_status sli_insert_weights(const sli_writer_costs *costs, int most_held, sl_schedule *table);

#endif
