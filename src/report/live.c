/* The live page: a thread follows the run log, draws it and serves the page.
 *
 * The run itself only writes its log. The thread has the lowest priority, and updates the page once
 * a second, or more rarely where that would take more than 0.5% of a core. */
#define _GNU_SOURCE /* gettid */
#include "sluice/app/report.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/json.h"
#include "report/follower.h"
#include "report/page.h"
#include "report/server.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RECORDS = 1 << 18 /* of a kind: 36 MiB */ };
static const double turn_seconds = 0.1, least_pause = 1, most_pause = 60, most_load = 0.005,
                    end_seconds = 1;

struct sl_live_page {
    sli_server *server;
    sli_follower log;
    char *path, *name;
    bool grows; /* records have come since the page was created */
    pthread_t thread;
    atomic_bool ends;
};

/* ---- What the thread makes of the log ------------------------------------------------------- */

/* "data: CONTENT": one line, as a line's end would end the data. */
static sl_status draw_event(const sl_live_page *page, char **event, size_t *bytes)
{
    FILE *to = open_memstream(event, bytes);
    if (!to)
        return sl_error(SL_ERR_MEMORY, "no memory for the page");
    const sl_run_history *runs[] = {page->log.history};
    sli_c_numbers scope = sli_c_numbers_begin();
    fputs("data: ", to);
    sli_page_write_live_content(&(sli_page){.to = to, .runs = runs, .count = 1, .is_live = true},
                                page->grows,
                                page->log.error.status == SL_OK ? NULL : page->log.error.text);
    sli_c_numbers_end(scope);
    fputs("\n\n", to);
    if (fclose(to) != 0) {
        free(*event);
        return sl_error(SL_ERR_MEMORY, "no memory for the page");
    }
    for (size_t i = 0; i + 2 < *bytes; i++)
        (*event)[i] = (*event)[i] == '\n' ? ' ' : (*event)[i];
    return SL_OK;
}

static void publish_page(sl_live_page *page)
{
    char *event;
    size_t bytes;
    if (draw_event(page, &event, &bytes) == SL_OK)
        sli_server_publish(page->server, event, bytes);
}

static void update_page(sl_live_page *page)
{
    bool changed;
    (void)sli_follower_update(&page->log, &changed); /* the log keeps its error */
    page->grows = page->grows || changed;
    if (changed)
        publish_page(page);
}

static double thread_seconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

static void *serve_page(void *context)
{
    sl_live_page *page = context;
    double next = 0, used = thread_seconds();
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), 19); /* of Linux: the thread's alone */
    while (!atomic_load(&page->ends)) {
        if (sli_clock_seconds() >= next) {
            update_page(page);
            double pause = (thread_seconds() - used) / most_load;
            used = thread_seconds();
            pause = pause < least_pause ? least_pause : pause;
            next = sli_clock_seconds() + (pause > most_pause ? most_pause : pause);
        }
        sli_server_turn(page->server, turn_seconds);
    }
    update_page(page);
    return NULL;
}

/* ---- All ---------------------------------------------------------------------------------- */

static sl_status write_page(sli_server *server, const char *name)
{
    char *text;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    if (to)
        sli_page_write_live(to, name, sli_server_nonce(server));
    if (!to || fclose(to) != 0)
        return sl_error(SL_ERR_MEMORY, "no memory for the page");
    sli_server_set_page(server, text, bytes);
    return SL_OK;
}

/* The run's signals are for its own threads. */
static sl_status start_thread(sl_live_page *page)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&page->thread, NULL, serve_page, page);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return sl_error(SL_ERR_INTERNAL, "the page's thread cannot be started: %s",
                        strerror(error));
    return SL_OK;
}

static void free_page(sl_live_page *page)
{
    sli_server_destroy(&page->server, end_seconds);
    sli_follower_clear(&page->log);
    free(page->path);
    free(page->name);
    free(page);
}

sl_status sl_live_page_create(const char *address, const char *log, const char *name,
                              sl_live_page **out)
{
    bool changed;
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(address);
    SLI_CHECK_NOT_NULL(log);
    sl_live_page *page = calloc(1, sizeof *page);
    if (!page)
        return sl_error(SL_ERR_MEMORY, "no memory for the live page");
    page->path = strdup(log);
    page->name = strdup(name ? name : log);
    sl_status status = page->path && page->name
                           ? sli_follower_create(page->path, page->name, &page->log)
                           : sl_error(SL_ERR_MEMORY, "no memory for the live page");
    if (status == SL_OK) {
        page->log.history->most_records = MOST_RECORDS;
        status = sli_follower_update(&page->log, &changed);
    }
    if (status == SL_OK)
        status = sli_server_create(address, &page->server);
    if (status == SL_OK)
        status = write_page(page->server, page->name);
    if (status == SL_OK) {
        publish_page(page);
        status = start_thread(page);
    }
    if (status != SL_OK)
        free_page(page);
    else
        *out = page;
    return status;
}

void sl_live_page_destroy(sl_live_page **page)
{
    if (!page || !*page)
        return;
    atomic_store(&(*page)->ends, true);
    pthread_join((*page)->thread, NULL);
    free_page(*page);
    *page = NULL;
}

const char *sl_live_page_url(const sl_live_page *page)
{
    return sli_server_url(page->server);
}
