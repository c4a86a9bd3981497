/* The error of several threads that work on one thing. Each error has a number, the order of what
 * failed; the one with the lowest number is kept, with its text, until the caller takes it. */
#ifndef SLI_PARALLEL_PIPE_FAILURE_H
#define SLI_PARALLEL_PIPE_FAILURE_H

#include "core/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Numbers of errors that come before those of all actions. */
enum { SLI_FAILURE_OF_LINK = -2, SLI_FAILURE_OF_CALL = -1 };

typedef struct sli_failure {
    pthread_mutex_t lock; /* guards the error; taken last: nothing is locked while holding it */
    atomic_int first;     /* the lowest number of an error; may be read without the lock */
    int number;           /* of the error below; INT_MAX: none */
    sli_error_copy error;
} sli_failure;

void sli_failure_init(sli_failure *failure);
void sli_failure_destroy(sli_failure *failure);

/* Keeps `status` and the calling thread's error text, unless there is an error whose number is as
 * low. */
void sli_failure_raise(sli_failure *failure, int number, sl_status status);

/* Another process has an error with this number, whose text comes later. */
void sli_failure_raise_elsewhere(sli_failure *failure, int number);

/* Is there an error whose number is `number` or lower, here or elsewhere? */
bool sli_failure_precedes(const sli_failure *failure, int number);

/* Makes the error the calling thread's own and clears it here; SL_OK: there was none in this
 * process. Called when all other threads have ended their work. */
sl_status sli_failure_take(sli_failure *failure);

#endif
