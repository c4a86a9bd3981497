#include "parallel/pipe/failure.h"

#include <limits.h>

void sli_failure_init(sli_failure *failure)
{
    pthread_mutex_init(&failure->lock, NULL);
    atomic_init(&failure->first, INT_MAX);
    failure->number = INT_MAX;
    failure->error.status = SL_OK;
}

void sli_failure_destroy(sli_failure *failure)
{
    pthread_mutex_destroy(&failure->lock);
}

/* With the lock held. */
static void lower_first(sli_failure *failure, int number)
{
    if (number < atomic_load(&failure->first))
        atomic_store(&failure->first, number);
}

void sli_failure_raise(sli_failure *failure, int number, sl_status status)
{
    if (status == SL_OK)
        return;
    pthread_mutex_lock(&failure->lock);
    if (number < failure->number) {
        sli_error_save(&failure->error, status);
        failure->number = number;
    }
    lower_first(failure, number);
    pthread_mutex_unlock(&failure->lock);
}

void sli_failure_raise_elsewhere(sli_failure *failure, int number)
{
    pthread_mutex_lock(&failure->lock);
    lower_first(failure, number);
    pthread_mutex_unlock(&failure->lock);
}

bool sli_failure_precedes(const sli_failure *failure, int number)
{
    return atomic_load_explicit(&failure->first, memory_order_relaxed) <= number;
}

sl_status sli_failure_take(sli_failure *failure)
{
    pthread_mutex_lock(&failure->lock);
    sl_status status = sli_error_restore(&failure->error);
    failure->error.status = SL_OK;
    failure->number = INT_MAX;
    atomic_store(&failure->first, INT_MAX);
    pthread_mutex_unlock(&failure->lock);
    return status;
}
