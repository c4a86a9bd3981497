/* The order in which a table's actions come when it is played at unit costs. */
#ifndef SLI_PARALLEL_SCHEDULE_ORDER_H
#define SLI_PARALLEL_SCHEDULE_ORDER_H

#include "sluice/schedule.h"

/* (*order)[i], malloc'ed, is the position of the table's action i among all actions when every F,
 * R, I and W takes 1 and B takes 2: sorted by start, then by stage. No two have the same position.
 * From cell to cell of a row positions ascend, and an action's input has a lower one. The table is
 * valid. */
sl_status sli_schedule_order(const sl_schedule *schedule, int **order);

#endif
