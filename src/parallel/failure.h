/* The first error of several threads that work on one thing: it is kept, with its text, until the
 * caller takes it; those that follow from it are not. */
#ifndef SLI_PARALLEL_FAILURE_H
#define SLI_PARALLEL_FAILURE_H

#include "core/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct sli_failure {
    pthread_mutex_t lock; /* guards the error; taken last: nothing is locked while holding it */
    atomic_bool raised;   /* there is an error; may be read without the lock */
    sli_error_copy error;
} sli_failure;

void sli_failure_init(sli_failure *failure);
void sli_failure_destroy(sli_failure *failure);

/* Keeps `status` and the calling thread's error text, if it is the first. */
void sli_failure_raise(sli_failure *failure, sl_status status);
bool sli_failure_is_raised(const sli_failure *failure);

/* Gives the calling thread what was kept (SL_OK: nothing), and forgets it. Called when no other
 * thread is at work any more. */
sl_status sli_failure_take(sli_failure *failure);

#endif
