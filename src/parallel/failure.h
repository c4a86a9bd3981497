/* The error of several threads that work on one thing. Each error has a number, the order of what
 * failed; the one with the lowest number is kept, with its text, until the caller takes it. */
#ifndef SLI_PARALLEL_FAILURE_H
#define SLI_PARALLEL_FAILURE_H

#include "core/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct sli_failure {
    pthread_mutex_t lock; /* guards the error; taken last: nothing is locked while holding it */
    atomic_int first;     /* the number of the error, INT_MAX: none; may be read without the lock */
    sli_error_copy error;
} sli_failure;

void sli_failure_init(sli_failure *failure);
void sli_failure_destroy(sli_failure *failure);

/* Keeps `status` and the calling thread's error text, unless there is an error whose number is as
 * low. */
void sli_failure_raise(sli_failure *failure, int number, sl_status status);

/* Is there an error whose number is `number` or lower? */
bool sli_failure_precedes(const sli_failure *failure, int number);

/* Makes the error the calling thread's own and clears it here; SL_OK: there was none. Called when
 * all other threads have ended their work. */
sl_status sli_failure_take(sli_failure *failure);

#endif
