#ifndef TESTS_SUPPORT_RUN_AHEAD_H
#define TESTS_SUPPORT_RUN_AHEAD_H

/* From here on, for the rest of the process and so for all later tests of the file, this thread and
 * those that it starts share one processor, and a rank that wakes another keeps it until it waits
 * itself (where it may: SCHED_FIFO is root's), or for its slice of time. So stages run ahead of the
 * next, as the plan says that they may. */
void let_stages_run_ahead(void);

#endif
