/* A handle's communication thread: runs operations one after the other, in the order in which they
 * were started, while the rank goes on. */
#include "comm/group.h"

#include <pthread.h>
#include <stdlib.h>

struct sl_work {
    sli_comm_thread *thread; /* NULL: was finished when it was made */
    sli_task task;
    sl_work *next; /* in the thread's queue */
    bool done;
    sli_error_copy error;
};

struct sli_comm_thread {
    sl_group *group;
    pthread_t handle;
    pthread_mutex_t lock; /* guards all below, and each queued work's done and error */
    pthread_cond_t changed;
    sl_work *first;
    bool ending;
};

static void *run_tasks(void *argument)
{
    sli_comm_thread *thread = argument;
    pthread_mutex_lock(&thread->lock);
    for (;;) {
        while (!thread->first && !thread->ending)
            pthread_cond_wait(&thread->changed, &thread->lock);
        sl_work *work = thread->first;
        if (!work)
            break;
        pthread_mutex_unlock(&thread->lock);
        sl_status status = work->task.run(thread->group, &work->task);
        pthread_mutex_lock(&thread->lock);
        sli_error_save(&work->error, status);
        thread->first = work->next;
        work->done = true;
        pthread_cond_broadcast(&thread->changed);
    }
    pthread_mutex_unlock(&thread->lock);
    return NULL;
}

sl_status sli_comm_thread_create(sl_group *group, sli_comm_thread **out)
{
    *out = NULL;
    sli_comm_thread *thread = calloc(1, sizeof *thread);
    if (!thread)
        return sli_no_memory("sl_group", "the communication thread");
    thread->group = group;
    pthread_mutex_init(&thread->lock, NULL);
    pthread_cond_init(&thread->changed, NULL);
    int code = pthread_create(&thread->handle, NULL, run_tasks, thread);
    if (code != 0) {
        pthread_cond_destroy(&thread->changed);
        pthread_mutex_destroy(&thread->lock);
        free(thread);
        return sli_no_memory("sl_group", "the communication thread (error %d)", code);
    }
    *out = thread;
    return SL_OK;
}

void sli_comm_thread_destroy(sli_comm_thread **thread)
{
    if (!*thread)
        return;
    pthread_mutex_lock(&(*thread)->lock);
    (*thread)->ending = true;
    pthread_cond_broadcast(&(*thread)->changed);
    pthread_mutex_unlock(&(*thread)->lock);
    pthread_join((*thread)->handle, NULL);
    pthread_cond_destroy(&(*thread)->changed);
    pthread_mutex_destroy(&(*thread)->lock);
    free(*thread);
    *thread = NULL;
}

static sl_status work_create(sl_work **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? SL_OK : sli_no_memory("sl_group", "a work handle");
}

sl_status sli_work_create_finished(sl_work **work)
{
    SL_TRY(work_create(work));
    (*work)->done = true;
    return SL_OK;
}

sl_status sli_comm_thread_start(sli_comm_thread *thread, const sli_task *task, sl_work **work)
{
    SL_TRY(work_create(work));
    (*work)->thread = thread;
    (*work)->task = *task;
    pthread_mutex_lock(&thread->lock);
    sl_work **end = &thread->first;
    while (*end)
        end = &(*end)->next;
    *end = *work;
    pthread_cond_broadcast(&thread->changed);
    pthread_mutex_unlock(&thread->lock);
    return SL_OK;
}

void sli_comm_thread_drain(sli_comm_thread *thread)
{
    pthread_mutex_lock(&thread->lock);
    while (thread->first)
        pthread_cond_wait(&thread->changed, &thread->lock);
    pthread_mutex_unlock(&thread->lock);
}

sl_status sl_work_wait(sl_work **work)
{
    sl_work *waited = *work;
    *work = NULL;
    if (waited->thread) {
        pthread_mutex_lock(&waited->thread->lock);
        while (!waited->done)
            pthread_cond_wait(&waited->thread->changed, &waited->thread->lock);
        pthread_mutex_unlock(&waited->thread->lock);
    }
    sl_status status = sli_error_restore(&waited->error);
    free(waited);
    return status;
}
