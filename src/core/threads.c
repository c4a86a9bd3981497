/* How a job is divided among the threads.
 *
 * One 64-bit word says everything: which job it is (upper half) and how many of its tasks no thread
 * has taken yet (lower half). A thread that has seen (job, r) with r > 0 reads the job's fields and
 * tries to swap the word for (job, r - 1). If it succeeds, it runs task `count - r`, and the fields
 * were that job's, because they change only after all tasks of the job are done. A thread that
 * wakes late finds r = 0 or a newer job and has done no harm, so a run never waits for a thread
 * that took no task.
 *
 * The caller publishes a job by a release store of the word, works as well, and then waits until
 * `done` reaches `count`. Waiting, on both sides, is a bounded spin and then a condition variable.
 * Each sleeper first says that it will sleep and then looks again; each waker first changes the
 * state and then looks for sleepers. All of this is sequentially consistent, so that one of the two
 * sees the other. */
#define _GNU_SOURCE /* pthread_setaffinity_np */

#include "core/threads.h"
#include "core/error.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    CACHE_LINE = 64,
    SPIN_NS = 100000,
    SHARED_SPIN_NS = 20000,
    PAUSES_PER_LOOK_AT_THE_CLOCK = 64
};

typedef struct pool_thread {
    sli_pool *pool;
    pthread_t handle;
    int thread;
    int core; /* -1: not bound */
} pool_thread;

struct sli_pool {
    _Alignas(CACHE_LINE) _Atomic uint64_t word;
    _Atomic(sli_pool_task) task;
    _Atomic(void *) argument;
    _Atomic int64_t count;
    _Alignas(CACHE_LINE) _Atomic int64_t done;
    atomic_bool caller_sleeps;

    _Alignas(CACHE_LINE) int threads;
    bool spin;
    int started; /* members that exist */
    pool_thread *members;
    pthread_mutex_t driver; /* held by the caller of a run: guards the job's publication */
    pthread_mutex_t lock;   /* held only around sleeping and waking; taken after `driver` */
    pthread_cond_t work, finished;
    atomic_int sleepers;
    atomic_bool stop;
};

static uint32_t tasks_left(uint64_t word)
{
    return (uint32_t)word;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Pauses until `ready` holds, but not for long; returns whether it held. */
static bool spin_until(sli_pool *pool, bool (*ready)(sli_pool *))
{
    int64_t deadline = 0, limit = pool->spin ? SPIN_NS : SHARED_SPIN_NS;
    for (unsigned turn = 1;; turn++) {
        if (ready(pool))
            return true;
        sli_pause();
        if (turn % PAUSES_PER_LOOK_AT_THE_CLOCK)
            continue;
        if (!pool->spin) /* another pool may have work for this core */
            sched_yield();
        int64_t now = now_ns();
        if (!deadline)
            deadline = now + limit;
        else if (now > deadline)
            return false;
    }
}

void sli_pause_polling(int polls, bool spins)
{
    enum { YIELDING_POLLS = 10 * SLI_EAGER_POLLS, SLEEP_NS = 20000 };
    if (polls < SLI_EAGER_POLLS && spins)
        sli_pause();
    else if (polls < YIELDING_POLLS)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
}

/* ---- Workers ---------------------------------------------------------------------------- */

static void run_tasks(sli_pool *pool, int thread)
{
    uint64_t word = atomic_load(&pool->word);
    while (tasks_left(word) > 0) {
        sli_pool_task task = atomic_load_explicit(&pool->task, memory_order_relaxed);
        void *argument = atomic_load_explicit(&pool->argument, memory_order_relaxed);
        int64_t count = atomic_load_explicit(&pool->count, memory_order_relaxed);
        if (!atomic_compare_exchange_weak(&pool->word, &word, word - 1))
            continue;
        task(argument, count - tasks_left(word), thread);
        bool last = atomic_fetch_add(&pool->done, 1) + 1 == count;
        if (last && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
        word = atomic_load(&pool->word);
    }
}

static bool work_or_stop(sli_pool *pool)
{
    return tasks_left(atomic_load(&pool->word)) > 0 || atomic_load(&pool->stop);
}

static void wait_for_work(sli_pool *pool)
{
    if (spin_until(pool, work_or_stop))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!work_or_stop(pool))
        pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *argument)
{
    pool_thread *self = argument;
    if (self->core >= 0)
        sli_thread_bind(self->core); /* a core that went away costs speed, not results */
    while (!atomic_load(&self->pool->stop)) {
        run_tasks(self->pool, self->thread);
        wait_for_work(self->pool);
    }
    return NULL;
}

/* ---- The caller ------------------------------------------------------------------------- */

static bool all_done(sli_pool *pool)
{
    return atomic_load(&pool->done) == atomic_load_explicit(&pool->count, memory_order_relaxed);
}

static void wait_for_all(sli_pool *pool)
{
    if (spin_until(pool, all_done))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, true);
    while (!all_done(pool))
        pthread_cond_wait(&pool->finished, &pool->lock);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->lock);
}

static void wake_workers(sli_pool *pool, int64_t wanted)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    int sleepers = atomic_load(&pool->sleepers);
    for (int64_t i = 0; i < wanted && i < sleepers; i++)
        pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

void sli_pool_run(sli_pool *pool, int64_t count, sli_pool_task task, void *argument)
{
    assert(count >= 0 && count <= UINT32_MAX);
    if (count == 0)
        return;
    pthread_mutex_lock(&pool->driver);
    if (pool->threads == 1 || count == 1) {
        for (int64_t index = 0; index < count; index++)
            task(argument, index, 0);
    } else {
        atomic_store_explicit(&pool->task, task, memory_order_relaxed);
        atomic_store_explicit(&pool->argument, argument, memory_order_relaxed);
        atomic_store_explicit(&pool->count, count, memory_order_relaxed);
        atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
        uint64_t job = (atomic_load_explicit(&pool->word, memory_order_relaxed) >> 32) + 1;
        atomic_store(&pool->word, job << 32 | (uint64_t)count);
        wake_workers(pool, count - 1);
        run_tasks(pool, 0);
        wait_for_all(pool);
    }
    pthread_mutex_unlock(&pool->driver);
}

/* ---- Life ------------------------------------------------------------------------------- */

int sli_usable_processors(void)
{
    cpu_set_t allowed; /* too small for a machine of over 1,024 processors: then all count */
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return CPU_COUNT(&allowed);
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

sl_status sli_thread_bind(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (core < 0 || core >= CPU_SETSIZE)
        return sl_error(SL_ERR_NOT_FOUND, "sli_thread_bind: there is no core %d", core);
    CPU_SET((size_t)core, &set);
    int code = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    if (code)
        return sl_error(SL_ERR_NOT_FOUND, "sli_thread_bind: core %d: %s", core, strerror(code));
    return SL_OK;
}

static sl_status start_workers(sli_pool *pool, const int *cores)
{
    for (int thread = 1; thread < pool->threads; thread++) {
        pool_thread *self = &pool->members[thread - 1];
        *self = (pool_thread){.pool = pool, .thread = thread, .core = cores ? cores[thread] : -1};
        int code = pthread_create(&self->handle, NULL, worker_main, self);
        if (code)
            return sl_error(SL_ERR_MEMORY, "sli_pool_create: thread %d of %d: %s", thread + 1,
                            pool->threads, strerror(code));
        pool->started++;
    }
    return SL_OK;
}

sl_status sli_pool_create(const sli_pool_options *options, sli_pool **out)
{
    *out = NULL;
    if (options->threads < 1)
        return sl_error(SL_ERR_INVALID, "sli_pool_create: threads must be at least 1, got %d",
                        options->threads);
    sli_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    pool_thread *members = calloc((size_t)options->threads, sizeof *members);
    if (!pool || !members) {
        free(pool);
        free(members);
        return sli_no_memory("sli_pool_create", "%d threads", options->threads);
    }
    memset(pool, 0, sizeof *pool);
    pool->threads = options->threads;
    pool->spin = options->spin;
    pool->members = members;
    pthread_mutex_init(&pool->driver, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    sl_status status = start_workers(pool, options->cores);
    if (status != SL_OK)
        sli_pool_destroy(&pool);
    *out = pool;
    return status;
}

sl_status sli_pool_create_for_bytes(uint64_t bytes, sli_pool **out)
{
    enum { LEAST_BYTES = 4 << 20, MOST_THREADS = 8 };
    uint64_t wanted = 1 + bytes / LEAST_BYTES;
    int threads = sli_usable_processors();
    threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    threads = wanted < (uint64_t)threads ? (int)wanted : threads;
    return sli_pool_create(&(sli_pool_options){.threads = threads}, out);
}

void sli_pool_destroy(sli_pool **pool)
{
    if (!pool || !*pool)
        return;
    sli_pool *dead = *pool;
    *pool = NULL;
    pthread_mutex_lock(&dead->lock);
    atomic_store(&dead->stop, true);
    pthread_cond_broadcast(&dead->work);
    pthread_mutex_unlock(&dead->lock);
    for (int i = 0; i < dead->started; i++)
        pthread_join(dead->members[i].handle, NULL);
    pthread_cond_destroy(&dead->finished);
    pthread_cond_destroy(&dead->work);
    pthread_mutex_destroy(&dead->lock);
    pthread_mutex_destroy(&dead->driver);
    free(dead->members);
    free(dead);
}

int sli_pool_threads(const sli_pool *pool)
{
    return pool->threads;
}

/* ---- Workers -------------------------------------------------------------------------- */

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
        return sli_no_memory(NULL, "a thread");
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
