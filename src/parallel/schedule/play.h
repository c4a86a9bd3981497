/* Playing a table: which action runs when, if actions take so long. The validator plays one to see
 * whether it ends, the simulator to time it, the drawing to know the columns. */
#ifndef SLI_PARALLEL_SCHEDULE_PLAY_H
#define SLI_PARALLEL_SCHEDULE_PLAY_H

#include "parallel/schedule/table.h"

typedef struct sli_play_costs {
    const double *costs[SLI_ACTION_KINDS]; /* [stages] of each kind */
    const double *seconds; /* [actions of the table] each one's instead; NULL: by costs[] */
    bool clocks; /* every cell takes 1 instead, two joined actions as one; costs[] is not read */
    bool skips_discarded;     /* the last stage's F that discards takes no time in a table that goes
                                 backward, where the interpreter computes nothing in it */
    double link;              /* between an action's end and its result's arrival at another rank */
    const double *links;      /* [stages - 1] the same between stages s and s + 1; NULL: `link` */
    const double *head_links; /* as in sl_cost_model */
    const double *busy;       /* [stages - 1] as in sl_cost_model; NULL: links are never busy */
    const int *cores;         /* [ranks] as in sl_cost_model; NULL: every rank has its own */
} sli_play_costs;

typedef struct sli_play {
    double *starts, *ends; /* [actions of the table]; of those that ran */
    size_t *done;    /* [ranks]: how many actions of the row ran; not all of them in a deadlock */
    double makespan; /* when the last action ended */
    size_t *waits;   /* [ranks]: which result the rank waits for; sli_play_stuck says it */
} sli_play;

/* Each rank goes along its row; a cell starts when its rank is free and all its inputs are there.
 * Its actions run one after the other, and their results leave when all have ended. Ends when no
 * rank can go on. Every action's kind, stage and micro-batch must exist. Takes time in proportion
 * to the actions; with `cores`, to the actions times the ranks. */
sl_status sli_schedule_play(const sl_schedule *schedule, const sli_play_costs *costs,
                            sli_play *out);
void sli_play_clear(sli_play *play);

/* Does the rank wait for a result that never comes? *result is the F, I or S that it waits for. */
bool sli_play_stuck(const sl_schedule *schedule, const sli_play *play, int rank, sl_action *result);

/* Does every action have a kind, a stage of its rank and a micro-batch? Errors: SL_ERR_INVALID
 * (validate.c). */
sl_status sli_schedule_check_cells(const sl_schedule *schedule);

/* Results, which other actions wait for, are numbered: forwards' by stage and micro-batch, then
 * backwards', then those of S by rank and micro-batch. */
size_t sli_result_count(const sl_schedule *schedule);

/* The number of the action's result; SIZE_MAX: nothing waits for it. */
size_t sli_result_number(const sl_schedule *schedule, sl_action action);

/* A result that an action waits for: its number, the rank that it comes from, and which of
 * sl_cost_model's links it takes where that is another rank: behind `links` are `head_links`. */
typedef struct sli_wait {
    size_t result;
    int rank, link;
} sli_wait;

/* The action's wait number `index`, from 0 on; false: it has no more. */
bool sli_action_wait(const sl_schedule *schedule, sl_action action, int index, sli_wait *out);

/* What of a table is drawn: ranks first_rank … end_rank - 1, clocks first_clock … end_clock - 1. */
typedef struct sli_window {
    int first_rank, end_rank;
    size_t first_clock, end_clock;
} sli_window;

/* Draws what was played by the clock, as text; malloc'ed (draw.c). */
sl_status sli_draw_play(const sl_schedule *schedule, const sli_play *play, const sli_window *window,
                        char **text);

#endif
