#include "comm/mpi/session.h"

#include "comm/mpi/hub.h"
#include "comm/mpi/load.h"
#include "core/clock.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* MPI_Finalize can hang if a process dies just then. */
static const double finish_seconds = 10;

static struct {
    pthread_mutex_t lock; /* guards all below */
    bool made, ends_at_exit;
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
    if (!process.made)
        return;
    bool ready = !sli_watch_has_members(session->watch) && !atomic_load(&session->unusable);
    if (sli_watch_end(session->watch, ready, make_progress, session))
        finish_in_time(session);
    sli_watch_destroy(&session->watch);
    sli_hub_destroy(&process.hub);
}

/* ---- Making ------------------------------------------------------------------------------- */

static sl_status mpi_error(const sli_session *session, const char *what, int code)
{
    char text[256] = "";
    session->mpi->describe(code, text, sizeof text);
    return sl_error(SL_ERR_IO, "%s by MPI: %s", what, text);
}

static sl_status start_mpi(sli_session *session)
{
    char text[256] = "";
    if (session->world) /* by an attempt that failed later */
        return SL_OK;
    int code =
        session->mpi->start(&session->world, &session->rank, &session->size, text, sizeof text);
    if (code == 0)
        return SL_OK;
    if (!*text)
        session->mpi->describe(code, text, sizeof text);
    return sl_error(SL_ERR_UNSUPPORTED, "MPI does not start: %s", text);
}

/* One rank's status and error, as all learn it; text without a status is rank 0's message. */
typedef struct report {
    int32_t status;
    char text[SLI_WIRE_ADDRESS_BYTES];
} report;

static sl_status share(const sli_session *session, report *from, int root)
{
    int code = session->mpi->share(session->world, from, sizeof *from, root);
    if (code != 0)
        return mpi_error(session, "the ranks cannot find each other", code);
    from->text[sizeof from->text - 1] = '\0';
    if (from->status == SL_OK)
        return SL_OK;
    return session->rank == root
               ? sl_error((sl_status)from->status, "%s", from->text)
               : sl_error((sl_status)from->status, "rank %d: %s", root, from->text);
}

/* Every rank gives its own status, and gets the error of the lowest rank that has one: what one of
 * them lacks must not leave the others waiting. Takes no memory. */
static sl_status agree(const sli_session *session, sl_status own)
{
    int64_t failed = own == SL_OK ? session->size : session->rank;
    report error = {.status = own};
    snprintf(error.text, sizeof error.text, "%s", own == SL_OK ? "" : sl_error_text());
    int code = session->mpi->lowest(session->world, &failed, 1);
    if (code != 0)
        return mpi_error(session, "the ranks cannot agree", code);
    return failed == session->size ? SL_OK : share(session, &error, (int)failed);
}

/* Whether all ranks are on one host, so that nobody else needs to reach the hub. */
static sl_status compare_hosts(const sli_session *session, bool *this_host)
{
    char host[SLI_WIRE_HOST_BYTES];
    int64_t number;
    sli_wire_host(host);
    crypto_generichash((unsigned char *)&number, sizeof number, (const unsigned char *)host,
                       sizeof host, NULL, 0);
    number = (int64_t)((uint64_t)number >> 1);
    int64_t ends[2] = {number, -number};
    int code = session->mpi->lowest(session->world, ends, 2);
    *this_host = ends[0] == -ends[1];
    return code == 0 ? SL_OK : mpi_error(session, "the ranks cannot compare their hosts", code);
}

/* Rank 0's hub, and all ranks' connections to it. */
static sl_status connect_ranks(sli_session *session)
{
    bool this_host;
    sli_wire_address address;
    report hub = {.status = SL_OK};
    SL_TRY(compare_hosts(session, &this_host));
    if (session->rank == 0) {
        hub.status = sli_hub_create(session->size, this_host, &address, &process.hub);
        if (hub.status == SL_OK)
            sli_wire_address_print(&address, hub.text);
        else
            snprintf(hub.text, sizeof hub.text, "%s", sl_error_text());
    }
    SL_TRY(share(session, &hub, 0));
    SL_TRY(sli_wire_address_parse(hub.text, &address));
    sl_status status = sli_watch_create(&address, session->rank, session->size, &session->watch);
    if (status == SL_OK && !process.ends_at_exit) {
        process.ends_at_exit = atexit(end_session) == 0;
        if (!process.ends_at_exit)
            status = sl_error(SL_ERR_MEMORY, "no memory for what is to be done at the exit");
    }
    return agree(session, status);
}

/* A failure is every rank's, and leaves nothing but MPI. */
static sl_status make_session(sli_session *session)
{
    SL_TRY(sli_transport_load(&session->mpi));
    SL_TRY(start_mpi(session));
    sl_status status = connect_ranks(session);
    if (status == SL_OK)
        return SL_OK;
    sli_watch_destroy(&session->watch);
    sli_hub_stop(process.hub);
    sli_hub_destroy(&process.hub);
    return status;
}

sl_status sli_session_get(sli_session **out)
{
    *out = NULL;
    sl_status status = SL_OK;
    pthread_mutex_lock(&process.lock);
    if (!process.made) {
        status = sl_error_context(make_session(&process.session), "sl_group_create_mpi: ");
        process.made = status == SL_OK;
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
