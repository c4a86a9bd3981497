#include "parallel/schedule/table.h"

#include "parallel/schedule/play.h"

#include <stdlib.h>

typedef struct started {
    double start;
    int stage, index; /* of the action in the table */
} started;

static int compare_starts(const void *a, const void *b)
{
    const started *one = a, *other = b;
    if (one->start != other->start)
        return one->start < other->start ? -1 : 1;
    if (one->stage != other->stage)
        return one->stage < other->stage ? -1 : 1;
    return one->index < other->index ? -1 : one->index > other->index;
}

static void sort_by_start(const sl_schedule *schedule, const sli_play *play, started *actions,
                          int *order)
{
    for (size_t i = 0; i < schedule->count; i++)
        actions[i] = (started){play->starts[i], schedule->actions[i].stage, (int)i};
    qsort(actions, schedule->count, sizeof *actions, compare_starts);
    for (size_t i = 0; i < schedule->count; i++)
        order[actions[i].index] = (int)i;
}

sl_status sli_schedule_order(const sl_schedule *schedule, int **order)
{
    size_t stages = (size_t)schedule->stages;
    double *costs = malloc(2 * stages * sizeof *costs);
    started *actions = malloc((schedule->count + 1) * sizeof *actions);
    sli_play play = {0};
    sl_status status = SL_OK;
    *order = malloc((schedule->count + 1) * sizeof **order);
    if (!costs || !actions || !*order) {
        status =
            sl_error(SL_ERR_MEMORY, "schedule: no memory to order %zu actions", schedule->count);
        goto done;
    }
    for (size_t i = 0; i < stages; i++) {
        costs[i] = 1;
        costs[stages + i] = 2;
    }
    const double *one = costs, *two = costs + stages;
    status =
        sli_schedule_play(schedule, &(sli_play_costs){.costs = {one, one, two, one, one}}, &play);
    if (status == SL_OK)
        sort_by_start(schedule, &play, actions, *order);

done:
    sli_play_clear(&play);
    free(costs);
    free(actions);
    if (status != SL_OK) {
        free(*order);
        *order = NULL;
    }
    return status;
}
