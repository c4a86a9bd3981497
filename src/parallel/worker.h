/* A worker: a thread that drives one stage's device, and sleeps between its tasks. */
#ifndef SLI_PARALLEL_WORKER_H
#define SLI_PARALLEL_WORKER_H

#include "sluice/device.h"

typedef struct sli_worker sli_worker;

/* The thread is bound to the device's first core, where it has one. Without a device (NULL) it runs
 * wherever there is room. */
sl_status sli_worker_create(sl_device *device, sli_worker **out);
void sli_worker_destroy(sli_worker **worker); /* waits for the thread's end */

/* Has the thread run task(arg). It must have no task. */
void sli_worker_start(sli_worker *worker, void (*task)(void *arg), void *arg);

/* Waits until the task has ended; what it wrote can then be read. */
void sli_worker_wait(sli_worker *worker);

#endif
