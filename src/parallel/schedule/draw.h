/* Tables as text. */
#ifndef SLI_PARALLEL_SCHEDULE_DRAW_H
#define SLI_PARALLEL_SCHEDULE_DRAW_H

#include "parallel/schedule/play.h"

/* What of a table is drawn: ranks first_rank … end_rank - 1, clocks first_clock … end_clock - 1. */
typedef struct sli_window {
    int first_rank, end_rank;
    size_t first_clock, end_clock;
} sli_window;

/* Draws what was played by the clock; malloc'ed. */
sl_status sli_draw_play(const sl_schedule *schedule, const sli_play *play, const sli_window *window,
                        char **text);

#endif
