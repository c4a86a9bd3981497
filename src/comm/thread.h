/* A handle's communication thread: runs operations one after the other, in the order in which they
 * were handed to it, while the rank goes on. */
#ifndef SLI_COMM_THREAD_H
#define SLI_COMM_THREAD_H

#include "comm/group.h"

typedef struct sli_task {
    sl_status (*run)(sl_group *group, const struct sli_task *task);
    sli_operation operation;
    sli_message message;
} sli_task;

sl_status sli_comm_thread_create(sl_group *group, sli_comm_thread **out);

/* Finishes what was handed over, then ends the thread. NULL is allowed. */
void sli_comm_thread_destroy(sli_comm_thread **thread);

/* Hands a task over (copied). *work is for sl_work_wait. */
sl_status sli_comm_thread_start(sli_comm_thread *thread, const sli_task *task, sl_work **work);

/* A handle for what is finished already. */
sl_status sli_work_finished(sl_work **work);

#endif
