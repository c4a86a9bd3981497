/* A pool of threads that run the tasks of one job at a time, and workers. */
#ifndef SLI_CORE_THREADS_H
#define SLI_CORE_THREADS_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sli_pool sli_pool;

/* Runs task `index` of a job. `thread` is 0 … threads - 1; tasks that run at the same time have
 * different ones. */
typedef void (*sli_pool_task)(void *argument, int64_t index, int thread);

typedef struct sli_pool_options {
    int threads;      /* at least 1; the caller of sli_pool_run is one of them */
    const int *cores; /* [threads] the system's numbers: thread i > 0 is bound to cores[i]; may be
                         NULL: no thread is bound. Only read while the pool is created. */
    bool spin;        /* idle threads poll for work for a long time before they sleep: only where no
                         other thread needs their cores; else briefly, and yield while they poll */
} sli_pool_options;

sl_status sli_pool_create(const sli_pool_options *options, sli_pool **out);

/* A pool for work on so many bytes. It has at most 8 threads, since memory is not fast enough for
 * more, at most one for each processor that the caller may use, and none that would have little to
 * do. */
sl_status sli_pool_create_for_bytes(uint64_t bytes, sli_pool **out);

/* Ends the threads; NULL is allowed. */
void sli_pool_destroy(sli_pool **pool);

int sli_pool_threads(const sli_pool *pool);

/* Calls task(argument, index, thread) for each index 0 … count - 1 and returns when all are done;
 * what they wrote is visible to the caller. Each free thread takes the next index, so a result must
 * not depend on which thread did what. Any thread may call; several callers take turns. A task must
 * not run a job on its own pool. */
void sli_pool_run(sli_pool *pool, int64_t count, sli_pool_task task, void *argument);

/* How many of the system's processors the calling thread may run on. */
int sli_usable_processors(void);

/* Binds the calling thread to one core. Errors: SL_ERR_NOT_FOUND if it may not run there. */
sl_status sli_thread_bind(int core);

/* Tells the core that this is a waiting loop, so that its other hardware thread gets more cycles.
 */
static inline void sli_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Pauses between two polls: the longer, the more polls have been without a result. First, where the
 * caller `spins`, it polls for microseconds; then it yields the core to other threads, which may
 * need this very one; then it sleeps. */
enum { SLI_EAGER_POLLS = 500 };
void sli_pause_polling(int polls, bool spins);

/* ---- Workers -------------------------------------------------------------------------- */

/* A thread that runs tasks, and sleeps between them. */
typedef struct sli_worker sli_worker;

/* The thread first calls begin(arg), to bind itself to cores for example; NULL: nothing. */
sl_status sli_worker_create(void (*begin)(void *arg), void *arg, sli_worker **out);
void sli_worker_destroy(sli_worker **worker); /* waits for the thread's end */

/* Has the thread run task(arg). It must have no task. */
void sli_worker_start(sli_worker *worker, void (*task)(void *arg), void *arg);

/* Waits until the task has ended; what it wrote can then be read. */
void sli_worker_wait(sli_worker *worker);

#endif
