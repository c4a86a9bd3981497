/* The table behind sl_schedule, and how functions write one: rows in order, action by action. */
#ifndef SLI_PARALLEL_SCHEDULE_TABLE_H
#define SLI_PARALLEL_SCHEDULE_TABLE_H

#include "sluice/schedule.h"

struct sl_schedule {
    int stages, micros;
    int *ends; /* [stages]: where each stage's row ends in `actions`; it starts where the row of the
                  stage before it ends */
    sl_action *actions;
};

/* A table whose rows are all empty, with room for `capacity` actions. */
sl_status sli_schedule_allocate(const char *who, int stages, int micros, int capacity,
                                sl_schedule **out);

/* Appends to `stage`'s row. Stages come in ascending order. */
void sli_schedule_append(sl_schedule *schedule, int stage, sl_action_kind kind, int micro);

/* What both schedules write for a micro-batch at a stage: its forward, which keeps or discards by
 * the recompute mode, and its backward, with a recomputation right before it where there was
 * nothing kept. */
void sli_schedule_append_forward(sl_schedule *schedule, int stage, sl_recompute recompute,
                                 int micro);
void sli_schedule_append_backward(sl_schedule *schedule, int stage, sl_recompute recompute,
                                  int micro);

/* At most so many actions does a micro-batch have at a stage: forward, recompute, backward. */
enum { SLI_ACTIONS_PER_MICRO = 3 };

/* Checks stages and micros, and that three actions for each of them can be counted. */
sl_status sli_schedule_check_size(const char *who, int stages, int micros);

/* "FORWARD", "FORWARD_DISCARD", "RECOMPUTE", "BACKWARD". */
const char *sli_action_name(sl_action_kind kind);

/* Is this a table of forwards that discard, and of nothing else? */
bool sli_schedule_is_forward_only(const sl_schedule *schedule);

#endif
