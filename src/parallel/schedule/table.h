/* The table behind sl_schedule, and how writers fill it: rows in order, action by action. */
#ifndef SLI_PARALLEL_SCHEDULE_TABLE_H
#define SLI_PARALLEL_SCHEDULE_TABLE_H

#include "parallel/schedule/timeline.h"

struct sl_schedule {
    int ranks, stages;
    int micros;       /* micro-batches, or all their slices */
    int slices;       /* of a micro-batch; 1: it is whole */
    int forward_only; /* so many first stages do not go backward where the others do */
    bool splits_head; /* it has S and T */
    int *placement;   /* [stages] */
    size_t *ends; /* [ranks]: where each rank's row ends in `actions`; it starts where the row of
                     the rank before it ends */
    sl_action *actions;
    size_t count; /* of all actions */
};

/* A table whose rows are all empty, of whole micro-batches, with room for `capacity` actions. The
 * placement is copied; NULL: a loop. SL_ERR_INVALID for fewer than one rank, stage or micro-batch,
 * a placement that does not give each rank as many stages as the others, and tables too large to
 * count. */
sl_status sli_schedule_allocate(int ranks, int stages, int micros, const int *placement,
                                size_t capacity, sl_schedule **out);

/* How many slices the options ask for, and the table's `micros`. Errors: SL_ERR_INVALID. */
sl_status sli_schedule_count_slices(const sl_schedule_options *options, int *slices, int *micros);

/* SL_ERR_INVALID if a stage of the table, which is called `name`, has another rank than
 * placement[stages] says. NULL: any will do. */
sl_status sli_schedule_check_placement(const sl_schedule *schedule, const char *name,
                                       const int *placement);

/* Appends to `rank`'s row. Ranks come in ascending order. */
void sli_schedule_append(sl_schedule *schedule, int rank, int stage, sl_action_kind kind,
                         int micro);

/* Fills in `splits_head`, and `discards`, `completes` and `slices` of every action: the last step
 * of whatever makes a table. */
sl_status sli_schedule_mark(sl_schedule *schedule);

/* The same in two steps, for a rewrite that has no error any more once it has begun: the room that
 * it takes, for the table's stages and micro-batches, and the marks themselves, which free it. */
sl_status sli_schedule_allocate_marks(const sl_schedule *schedule, bool **out);
void sli_schedule_set_marks(sl_schedule *schedule, bool *room);

/* [stages] the stages of rank 0 in ascending order, then those of rank 1 ...; the caller frees it.
 */
sl_status sli_schedule_rank_stages(const sl_schedule *schedule, int **out);

size_t sli_schedule_row(const sl_schedule *schedule, int rank); /* its first action's index */

/* Index of (stage, micro) in an array with an element for each of them. */
static inline size_t sli_schedule_cell(const sl_schedule *schedule, int stage, int micro)
{
    return (size_t)stage * (size_t)schedule->micros + (size_t)micro;
}

bool sli_schedule_goes_backward(const sl_schedule *schedule);

/* The rank's stage that has its S and T. */
int sli_schedule_first_stage(const sl_schedule *schedule, int rank);

static inline bool sli_action_is_backward(sl_action_kind kind)
{
    return kind == SL_ACTION_BACKWARD || kind == SL_ACTION_BACKWARD_INPUT;
}

static inline bool sli_action_is_of_head(sl_action_kind kind)
{
    return kind == SL_ACTION_HEAD_FORWARD || kind == SL_ACTION_HEAD_BACKWARD;
}

/* Whether the action computes nothing: a forward of the last stage that is run again later. A
 * slice's gives the next ones its keys and values. */
static inline bool sli_action_is_empty(const sl_schedule *schedule, sl_action action)
{
    return action.discards && action.stage + 1 == schedule->stages && !schedule->splits_head &&
           schedule->slices == 1;
}

/* (*order)[i], malloc'ed, is the position of the table's action i among all actions when B takes 2
 * and every other one 1: sorted by start, then by stage. No two have the same position.
 * From cell to cell of a row positions ascend, and an action's input has a lower one. The table is
 * valid. (play.c) */
sl_status sli_schedule_order(const sl_schedule *schedule, int **order);

/* (writers.c) Forward only, for evaluation: F of every micro-batch at every stage. Takes ranks,
 * placement (NULL: a loop), virtual_stages (0: 1) and micros of the options. Errors: SL_ERR_INVALID
 * for numbers below 1, too many stages or micro-batches, or a placement that does not give each
 * rank V stages. */
sl_status sli_schedule_forward_only(const sl_schedule_options *options, sl_schedule **out);

/* The table of a text, not validated, in PyTorch's CSV; errors begin with `name`. (table_csv.c) */
sl_status sli_schedule_parse(const char *name, const char *text, size_t bytes, sl_schedule **out);

/* Makes slices whole micro-batches again: a micro-batch goes forward where its last slice does, and
 * backward where its first one does. Errors: SL_ERR_MEMORY; the table is then as it was.
 * (rewrite.c) */
sl_status sli_schedule_join_slices(sl_schedule *schedule);

/* Numbers micro-batches, whose slices follow, in the order in which the first stage goes backward.
 * (rewrite.c) */
sl_status sli_schedule_renumber(sl_schedule *schedule);

#endif
