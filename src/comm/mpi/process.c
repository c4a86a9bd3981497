#include "comm/mpi/process.h"

#include "comm/wire/wire.h"
#include "core/clock.h"
#include "core/plugin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* MPI_Finalize can hang if a process dies just then. */
static const double finish_seconds = 10;

/* Of the process and not of a group, since a process initializes and finalizes MPI only once. */
static struct {
    pthread_mutex_t lock; /* guards all below */
    bool made, ends_at_exit;
    sli_mpi_process process;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Ending ------------------------------------------------------------------------------- */

/* MPI only moves data inside its calls, and others may still wait for some of ours. */
static void make_progress(void *argument)
{
    sli_mpi_process *self = argument;
    if (!atomic_load(&self->unusable))
        self->mpi->progress(&self->world);
}

static atomic_bool finished; /* outlives the thread that sets it */

static void *finish_mpi(void *argument)
{
    sli_mpi_process *self = argument;
    self->mpi->finish();
    atomic_store(&finished, true);
    return NULL;
}

static void finish_in_time(sli_mpi_process *self)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, finish_mpi, self) != 0) {
        self->mpi->finish();
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

static void end_process(void)
{
    sli_mpi_process *self = &state.process;
    if (!state.made)
        return;
    bool ready = !sli_watch_has_members(self->watch) && !atomic_load(&self->unusable);
    if (sli_watch_end(self->watch, ready, make_progress, self) && self->finalizes)
        finish_in_time(self);
    sli_watch_destroy(&self->watch);
    sli_hub_destroy(&self->hub);
}

/* ---- The plugin --------------------------------------------------------------------------- */

static sl_status load_plugin(const sli_transport **out)
{
    /* Open MPI's own plugins look for MPI's symbols among the global ones. */
    static const sli_plugin plugin = {"sluice_mpi.so", "MPI", SLI_TRANSPORT_SYMBOL, true};
    sli_plugin_function *entry;
    *out = NULL;
    SL_TRY(sli_plugin_open(&plugin, &entry));
    *out = ((sli_transport_entry)entry)();
    return SL_OK;
}

/* ---- Making ------------------------------------------------------------------------------- */

static sl_status mpi_error(const sli_mpi_process *self, const char *what, int code)
{
    char text[256] = "";
    self->mpi->describe(code, text, sizeof text);
    return sl_error(SL_ERR_IO, "%s by MPI: %s", what, text);
}

static sl_status start_mpi(sli_mpi_process *self)
{
    char text[256] = "";
    if (self->started) /* by an attempt that failed later */
        return SL_OK;
    int code = self->mpi->start(&self->world, &self->rank, &self->size, &self->finalizes, text,
                                sizeof text);
    if (code != 0 && !*text)
        self->mpi->describe(code, text, sizeof text);
    if (code != 0)
        return sl_error(SL_ERR_UNSUPPORTED, "MPI does not start: %s", text);
    self->started = true;
    return SL_OK;
}

/* One rank's status and error, as all learn it; rank 0's text without an error is the hub's
 * address. */
typedef struct report {
    int32_t status;
    char text[SLI_WIRE_ADDRESS_BYTES];
} report;

static sl_status broadcast_report(sli_mpi_process *self, report *shared, int root)
{
    int code = self->mpi->broadcast(&self->world, shared, sizeof *shared, root);
    if (code != 0)
        return mpi_error(self, "the ranks cannot find each other", code);
    shared->text[sizeof shared->text - 1] = '\0';
    if (shared->status == SL_OK)
        return SL_OK;
    sl_status status = sl_error((sl_status)shared->status, "%s", shared->text);
    return self->rank == root ? status : sl_error_context(status, "rank %d: ", root);
}

/* Every rank gives its own status, and gets the error of the lowest rank that has one: what one
 * of them lacks must not leave the others waiting. Takes no memory. */
static sl_status agree_on_status(sli_mpi_process *self, sl_status status)
{
    int64_t failed = status == SL_OK ? self->size : self->rank;
    report error = {.status = status};
    snprintf(error.text, sizeof error.text, "%s", status == SL_OK ? "" : sl_error_text());
    int code = self->mpi->lowest(&self->world, &failed, 1);
    if (code != 0)
        return mpi_error(self, "the ranks cannot agree", code);
    return failed == self->size ? SL_OK : broadcast_report(self, &error, (int)failed);
}

/* Whether all ranks are on one host, so that only processes of this host need to reach the hub. */
static sl_status compare_hosts(sli_mpi_process *self, bool *this_host)
{
    int64_t number = sli_host_number(), ends[2] = {number, -number};
    int code = self->mpi->lowest(&self->world, ends, 2);
    *this_host = ends[0] == -ends[1];
    return code == 0 ? SL_OK : mpi_error(self, "the ranks cannot compare their hosts", code);
}

static sl_status end_at_exit(void)
{
    state.ends_at_exit = state.ends_at_exit || atexit(end_process) == 0;
    return state.ends_at_exit ? SL_OK : sli_no_memory(NULL, "what is to be done at the exit");
}

/* Rank 0's hub, and all ranks' connections to it. */
static sl_status connect_ranks(sli_mpi_process *self)
{
    bool this_host;
    sli_wire_address address;
    report hub = {.status = SL_OK};
    SL_TRY(compare_hosts(self, &this_host));
    if (self->rank == 0) {
        hub.status = sli_hub_create(self->size, this_host, &address, &self->hub);
        if (hub.status == SL_OK)
            sli_wire_address_print(&address, hub.text);
        else
            snprintf(hub.text, sizeof hub.text, "%s", sl_error_text());
    }
    SL_TRY(broadcast_report(self, &hub, 0));
    SL_TRY(sli_wire_address_parse(hub.text, &address));
    sl_status status;
    SL_TRY_OR_FAIL(sli_watch_create(&address, self->rank, self->size, &self->watch));
    status = end_at_exit();
fail:
    return agree_on_status(self, status);
}

/* A failure is every rank's, and leaves nothing but MPI. */
static sl_status make_process(sli_mpi_process *self)
{
    sl_status status;
    SL_TRY(load_plugin(&self->mpi));
    SL_TRY(start_mpi(self));
    SL_TRY_OR_FAIL(connect_ranks(self));
    return SL_OK;
fail:
    sli_watch_destroy(&self->watch);
    sli_hub_stop(self->hub);
    sli_hub_destroy(&self->hub);
    return status;
}

sl_status sli_mpi_process_get(sli_mpi_process **out)
{
    sl_status status = SL_OK;
    pthread_mutex_lock(&state.lock);
    if (!state.made)
        status = sl_error_context(make_process(&state.process), "sl_group_create_mpi: ");
    state.made = status == SL_OK;
    *out = state.made ? &state.process : NULL;
    pthread_mutex_unlock(&state.lock);
    return status;
}
