/* The order in which a table's actions come when each takes a time unit. */
#ifndef SLI_PARALLEL_SCHEDULE_ORDER_H
#define SLI_PARALLEL_SCHEDULE_ORDER_H

#include "sluice/schedule.h"

/* (*order)[i], malloc'ed, is the place of the table's action i among all when F, R, I and W take 1
 * and B takes 2: by start, then by stage. No two have the same place. The table is valid. */
sl_status sli_schedule_order(const sl_schedule *schedule, int **order);

#endif
