/* Playing a table: which action runs when, if actions take so long. The validator plays one to see
 * whether it ends, the simulator to time it, the drawing to know the columns. */
#ifndef SLI_PARALLEL_SCHEDULE_PLAY_H
#define SLI_PARALLEL_SCHEDULE_PLAY_H

#include "parallel/schedule_table.h"

typedef struct sli_play_costs {
    double (*duration)(const void *arg, int stage, sl_action action); /* NULL: all take 1 */
    const void *arg;
    double transfer; /* between an action's end and its result's arrival at the neighbour */
} sli_play_costs;

typedef struct sli_play {
    sl_timeline_entry *entries; /* in order of start */
    int count;
    int *done;       /* [stages]: how many actions of the row ran; not all of them in a deadlock */
    double makespan; /* when the last action ended */
} sli_play;

/* Each stage goes along its row; an action starts when its stage is free and its input is there.
 * Ends when no stage can go on. SL_ERR_INVALID for an action whose micro-batch or kind does not
 * exist. */
sl_status sli_schedule_play(const sl_schedule *schedule, const sli_play_costs *costs,
                            sli_play *out);
void sli_play_clear(sli_play *play);

/* The stage whose result an action waits for: the one before it for forwards, the one after it for
 * backwards, -1 for none. */
int sli_action_waits_for(const sl_schedule *schedule, int stage, sl_action action);

#endif
