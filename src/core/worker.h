/* A worker: a thread that runs tasks, and sleeps between them. */
#ifndef SLI_CORE_WORKER_H
#define SLI_CORE_WORKER_H

#include "sluice/status.h"

typedef struct sli_worker sli_worker;

/* The thread first calls begin(arg), to bind itself to cores for example; NULL: nothing. */
sl_status sli_worker_create(void (*begin)(void *arg), void *arg, sli_worker **out);
void sli_worker_destroy(sli_worker **worker); /* waits for the thread's end */

/* Has the thread run task(arg). It must have no task. */
void sli_worker_start(sli_worker *worker, void (*task)(void *arg), void *arg);

/* Waits until the task has ended; what it wrote can then be read. */
void sli_worker_wait(sli_worker *worker);

#endif
