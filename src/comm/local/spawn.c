/* Ranks as threads: torch.multiprocessing.spawn. */
#include "comm/group.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What the ranks of one sl_spawn share. */
typedef struct outcome {
    pthread_mutex_t lock; /* guards the error */
    sli_error_copy error; /* of the first rank that failed */
} outcome;

typedef struct rank_thread {
    pthread_t handle;
    bool started;
    sl_group *group;
    sl_status (*fn)(sl_group *group, void *arg);
    void *arg;
    outcome *outcome;
} rank_thread;

/* The error that came first names its rank unless a time limit broke the group. */
static void record_failure(rank_thread *rank, sl_status error)
{
    outcome *shared = rank->outcome;
    error = sli_group_first_error(rank->group, error);
    if (strncmp(sl_error_text(), "rank ", 5) != 0)
        sl_error_context(error, "rank %d: ", sl_group_rank(rank->group));
    pthread_mutex_lock(&shared->lock);
    if (shared->error.status == SL_OK)
        sli_error_save(&shared->error, error);
    pthread_mutex_unlock(&shared->lock);
}

static void *run_rank(void *argument)
{
    rank_thread *rank = argument;
    sl_status status = rank->fn(rank->group, rank->arg);
    if (status != SL_OK)
        record_failure(rank, status);
    sl_group_destroy(&rank->group);
    return NULL;
}

static void start_ranks(rank_thread *threads, sl_group **handles, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        threads[r].group = handles[r];
        int code = pthread_create(&threads[r].handle, NULL, run_rank, &threads[r]);
        threads[r].started = code == 0;
        if (code == 0)
            continue;
        record_failure(&threads[r], sli_no_memory("sl_spawn", "a thread (error %d)", code));
        sl_group_destroy(&threads[r].group);
    }
}

sl_status sl_spawn(sl_status (*fn)(sl_group *group, void *arg), void *arg, int ranks,
                   const sl_group_options *options)
{
    if (ranks < 1)
        return sl_error(SL_ERR_INVALID, "sl_spawn: at least 1 rank is needed, got %d", ranks);
    sl_group **handles = calloc((size_t)ranks, sizeof(sl_group *));
    rank_thread *threads = calloc((size_t)ranks, sizeof *threads);
    outcome shared = {.lock = PTHREAD_MUTEX_INITIALIZER};
    sl_status status;
    SL_TRY_OR_FAIL(handles && threads ? SL_OK : sli_no_memory("sl_spawn", "%d ranks", ranks));
    SL_TRY_OR_FAIL(sl_group_create_local(ranks, options, handles));
    for (int r = 0; r < ranks; r++)
        threads[r] = (rank_thread){.fn = fn, .arg = arg, .outcome = &shared};
    start_ranks(threads, handles, ranks);
    for (int r = 0; r < ranks; r++)
        if (threads[r].started)
            pthread_join(threads[r].handle, NULL);
    status = sli_error_restore(&shared.error);

fail:
    pthread_mutex_destroy(&shared.lock);
    free(threads);
    free(handles);
    return status;
}
