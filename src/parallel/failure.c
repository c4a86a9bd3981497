#include "parallel/failure.h"

void sli_failure_init(sli_failure *failure)
{
    pthread_mutex_init(&failure->lock, NULL);
    atomic_init(&failure->raised, false);
    failure->error.status = SL_OK;
}

void sli_failure_destroy(sli_failure *failure)
{
    pthread_mutex_destroy(&failure->lock);
}

void sli_failure_raise(sli_failure *failure, sl_status status)
{
    if (status == SL_OK)
        return;
    pthread_mutex_lock(&failure->lock);
    if (failure->error.status == SL_OK) {
        sli_error_save(&failure->error, status);
        atomic_store(&failure->raised, true);
    }
    pthread_mutex_unlock(&failure->lock);
}

bool sli_failure_is_raised(const sli_failure *failure)
{
    return atomic_load_explicit(&failure->raised, memory_order_relaxed);
}

sl_status sli_failure_take(sli_failure *failure)
{
    pthread_mutex_lock(&failure->lock);
    sl_status status = sli_error_restore(&failure->error);
    failure->error.status = SL_OK;
    atomic_store(&failure->raised, false);
    pthread_mutex_unlock(&failure->lock);
    return status;
}
