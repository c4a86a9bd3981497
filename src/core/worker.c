#include "core/worker.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct sli_worker {
    pthread_t thread;
    void (*begin)(void *arg);
    void *begin_arg;
    pthread_mutex_t lock; /* guards what follows; not held while a task runs */
    pthread_cond_t changed;
    void (*task)(void *arg); /* NULL: none */
    void *arg;
    bool quits;
};

static void *run_worker(void *argument)
{
    sli_worker *worker = argument;
    if (worker->begin)
        worker->begin(worker->begin_arg);
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        while (!worker->task && !worker->quits)
            pthread_cond_wait(&worker->changed, &worker->lock);
        if (!worker->task)
            break;
        pthread_mutex_unlock(&worker->lock);
        worker->task(worker->arg);
        pthread_mutex_lock(&worker->lock);
        worker->task = NULL;
        pthread_cond_signal(&worker->changed);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

sl_status sli_worker_create(void (*begin)(void *arg), void *arg, sli_worker **out)
{
    *out = NULL;
    sli_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return sl_error(SL_ERR_MEMORY, "no memory for a thread");
    worker->begin = begin;
    worker->begin_arg = arg;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->changed, NULL);
    int error = pthread_create(&worker->thread, NULL, run_worker, worker);
    if (error) {
        pthread_cond_destroy(&worker->changed);
        pthread_mutex_destroy(&worker->lock);
        free(worker);
        return sl_error(SL_ERR_MEMORY, "a thread cannot be started: %s", strerror(error));
    }
    *out = worker;
    return SL_OK;
}

void sli_worker_destroy(sli_worker **worker)
{
    if (!worker || !*worker)
        return;
    pthread_mutex_lock(&(*worker)->lock);
    (*worker)->quits = true;
    pthread_cond_signal(&(*worker)->changed);
    pthread_mutex_unlock(&(*worker)->lock);
    pthread_join((*worker)->thread, NULL);
    pthread_cond_destroy(&(*worker)->changed);
    pthread_mutex_destroy(&(*worker)->lock);
    free(*worker);
    *worker = NULL;
}

void sli_worker_start(sli_worker *worker, void (*task)(void *arg), void *arg)
{
    pthread_mutex_lock(&worker->lock);
    assert(!worker->task);
    worker->task = task;
    worker->arg = arg;
    pthread_cond_signal(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
}

void sli_worker_wait(sli_worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    while (worker->task)
        pthread_cond_wait(&worker->changed, &worker->lock);
    pthread_mutex_unlock(&worker->lock);
}
