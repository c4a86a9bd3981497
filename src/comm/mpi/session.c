#include "comm/mpi/session.h"

#include "comm/mpi/hub.h"
#include "comm/mpi/load.h"
#include "core/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* MPI_Finalize can hang if a process dies just then. */
static const double finish_seconds = 10;

static struct {
    pthread_mutex_t lock; /* guards all below */
    bool made;
    sli_session session;
    sli_hub *hub;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Ending ------------------------------------------------------------------------------- */

/* MPI only moves data inside its calls, and others may still wait for some of ours. */
static void make_progress(void *argument)
{
    sli_session *session = argument;
    if (!atomic_load(&session->unusable))
        session->mpi->progress(session->world);
}

static atomic_bool finished; /* outlives the thread that sets it, and whoever waits for it */

static void *finish(void *argument)
{
    sli_session *session = argument;
    session->mpi->finish();
    atomic_store(&finished, true);
    return NULL;
}

static void finish_in_time(sli_session *session)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, finish, session) != 0) {
        session->mpi->finish();
        return;
    }
    double until = sli_clock_seconds() + finish_seconds;
    while (!atomic_load(&finished) && sli_clock_seconds() < until)
        nanosleep(&(struct timespec){0, 200000}, NULL);
    if (atomic_load(&finished))
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
}

static void end_session(void)
{
    sli_session *session = &process.session;
    bool ready = !sli_watch_has_members(session->watch) && !atomic_load(&session->unusable);
    if (sli_watch_end(session->watch, ready, make_progress, session))
        finish_in_time(session);
    sli_watch_destroy(&session->watch);
    sli_hub_destroy(&process.hub);
}

/* ---- Making ------------------------------------------------------------------------------- */

static sl_status start_mpi(sli_session *session)
{
    char text[256] = "";
    int code =
        session->mpi->start(&session->world, &session->rank, &session->size, text, sizeof text);
    if (code == 0)
        return SL_OK;
    if (!*text)
        session->mpi->describe(code, text, sizeof text);
    return sl_error(SL_ERR_UNSUPPORTED, "MPI does not start: %s", text);
}

static sl_status make_session(sli_session *session)
{
    sli_hub_address address;
    memset(&address, 0, sizeof address);
    SL_TRY(sli_transport_load(&session->mpi));
    SL_TRY(start_mpi(session));
    sl_status status = SL_OK;
    if (session->rank == 0)
        status = sli_hub_create(session->size, &address, &process.hub);
    int code = session->mpi->share(session->world, &address, sizeof address);
    if (status == SL_OK && code != 0) {
        char text[256];
        session->mpi->describe(code, text, sizeof text);
        status = sl_error(SL_ERR_IO, "the ranks cannot find each other by MPI: %s", text);
    }
    if (status == SL_OK)
        status = sli_watch_create(&address, session->rank, session->size, &session->watch);
    return status;
}

sl_status sli_session_get(sli_session **out)
{
    *out = NULL;
    sl_status status = SL_OK;
    pthread_mutex_lock(&process.lock);
    if (!process.made) {
        status = make_session(&process.session);
        process.made = status == SL_OK;
        if (process.made && atexit(end_session) != 0)
            status = sl_error(SL_ERR_MEMORY, "sl_group_create_mpi: no memory");
    }
    pthread_mutex_unlock(&process.lock);
    if (status == SL_OK)
        *out = &process.session;
    return status;
}

uint64_t sli_session_count_group(sli_session *session)
{
    return atomic_fetch_add(&session->groups_made, 1);
}
