#include "parallel/schedule/order.h"

#include "parallel/schedule/play.h"

#include <stdlib.h>

typedef struct place {
    double start;
    int stage, index;
} place;

static int compare(const void *a, const void *b)
{
    const place *one = a, *other = b;
    if (one->start != other->start)
        return one->start < other->start ? -1 : 1;
    if (one->stage != other->stage)
        return one->stage < other->stage ? -1 : 1;
    return one->index < other->index ? -1 : one->index > other->index;
}

static void sort(const sl_schedule *schedule, const sli_play *play, place *places, int *order)
{
    for (size_t i = 0; i < schedule->count; i++)
        places[i] = (place){play->starts[i], schedule->actions[i].stage, (int)i};
    qsort(places, schedule->count, sizeof *places, compare);
    for (size_t i = 0; i < schedule->count; i++)
        order[places[i].index] = (int)i;
}

sl_status sli_schedule_order(const sl_schedule *schedule, int **order)
{
    size_t stages = (size_t)schedule->stages;
    double *costs = malloc(2 * stages * sizeof *costs);
    place *places = malloc((schedule->count + 1) * sizeof *places);
    *order = malloc((schedule->count + 1) * sizeof **order);
    sl_status status = SL_OK;
    if (costs && places && *order) {
        for (size_t i = 0; i < stages; i++) {
            costs[i] = 1;
            costs[stages + i] = 2;
        }
        const double *one = costs, *two = costs + stages;
        sli_play play;
        status =
            sli_schedule_play(schedule, &(sli_play_costs){.of = {one, one, two, one, one}}, &play);
        if (status == SL_OK)
            sort(schedule, &play, places, *order);
        sli_play_clear(&play);
    } else {
        status =
            sl_error(SL_ERR_MEMORY, "schedule: no memory to order %zu actions", schedule->count);
    }
    free(costs);
    free(places);
    if (status != SL_OK) {
        free(*order);
        *order = NULL;
    }
    return status;
}
