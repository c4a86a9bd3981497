/* The live page: a thread follows the run log, draws it and serves the page.
 *
 * The run itself only writes its log, and about once a second leaves timelines and memory here; it
 * never waits for the thread. The thread has the lowest priority, and updates the page once a
 * second, or more rarely where that would take more than 0.5% of a core. */
#define _GNU_SOURCE /* gettid */
#include "sluice/app/report.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/json.h"
#include "core/memory.h"
#include "report/follower.h"
#include "report/history_pipeline.h"
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

enum { MOST_RANKS = 64, MOST_DEVICES = 1 << 16, MOST_RECORDS = 1 << 18 /* of a kind: 36 MiB */ };
static const double turn_seconds = 0.1, least_pause = 1, most_pause = 60, most_load = 0.005,
                    end_seconds = 1;

/* What sl_timeline_utilization takes of a replica, with what that borrows. */
typedef struct layout {
    sl_schedule_options options;
    int placement[MOST_RANKS], cores[MOST_RANKS];
    double links[MOST_RANKS];
} layout;

/* What rank 0 has left of the last step whose timelines were gathered. */
typedef struct last_step {
    const sl_run_info *info; /* since the run began; for rank 0's thread alone */
    pthread_mutex_t lock;    /* guards what follows */
    bool is_new;
    int replicas;
    int64_t epoch, step;
    layout *layouts;              /* [replicas] */
    sl_timeline_entry *timelines; /* [replicas][count] */
    sl_rank_stats *memory;        /* [devices] */
    int count, devices;
    size_t layout_room, timeline_room, memory_room;
} last_step;

struct sl_live_page {
    sli_server *server;
    sli_follower log;
    char *path, *name;
    last_step last;
    bool grows; /* records have come since the page was created */
    pthread_t thread;
    atomic_bool begins, ends; /* the run has emptied its log, or resumed it; the page is to end */
};

/* ---- What the run leaves ------------------------------------------------------------------ */

/* Of more stages than there is room for, nothing is shown but what the log has. The page's thread
 * may hold the lock for a moment: it copies nothing before the first step. */
static sl_status keep_info(void *context, const sl_run_info *info)
{
    sl_live_page *page = context;
    last_step *to = &page->last;
    atomic_store(&page->begins, true);
    if (info->stage_count > MOST_RANKS)
        return SL_OK;
    pthread_mutex_lock(&to->lock);
    to->info = info;
    to->replicas = info->replicas;
    pthread_mutex_unlock(&to->lock);
    return SL_OK;
}

static void copy_layout(const sl_schedule_options *from, layout *to)
{
    size_t ranks = (size_t)from->ranks, stages = ranks * (size_t)from->virtual_stages;
    *to = (layout){.options = *from};
    memcpy(to->placement, from->placement, stages * sizeof *to->placement);
    to->options.placement = to->placement;
    if (from->links)
        to->options.links = memcpy(to->links, from->links, (stages - 1) * sizeof *to->links);
    if (from->cores)
        to->options.cores = memcpy(to->cores, from->cores, ranks * sizeof *to->cores);
}

static sl_status copy_step(last_step *to, const sl_timelines_info *step)
{
    size_t devices = (size_t)to->info->rank_count, replicas = (size_t)to->replicas;
    size_t actions = replicas * (size_t)step->action_count;
    to->count = 0;
    to->is_new = false;
    SL_TRY(sli_array_reserve(&to->memory, &to->memory_room, devices, sizeof *to->memory,
                             MOST_DEVICES, "devices"));
    memcpy(to->memory, to->info->ranks, devices * sizeof *to->memory);
    to->devices = (int)devices;
    to->epoch = step->epoch;
    to->step = step->step;
    to->is_new = true;
    if (actions == 0 || step->action_count > SL_RUN_LOG_MOST_ACTIONS || !step->layouts)
        return SL_OK;
    SL_TRY(sli_array_reserve(&to->layouts, &to->layout_room, replicas, sizeof *to->layouts,
                             MOST_DEVICES, "replicas"));
    for (size_t r = 0; r < replicas; r++)
        copy_layout(&step->layouts[r], &to->layouts[r]);
    SL_TRY(sli_array_reserve(&to->timelines, &to->timeline_room, actions, sizeof *to->timelines,
                             INT32_MAX, "actions"));
    memcpy(to->timelines, step->timelines, actions * sizeof *to->timelines);
    to->count = step->action_count;
    return SL_OK;
}

/* Where the thread is drawing the step before, this one is left out; and where there is no memory
 * for it. */
static sl_status keep_step(void *context, const sl_timelines_info *step)
{
    last_step *to = &((sl_live_page *)context)->last;
    if (!to->info || pthread_mutex_trylock(&to->lock) != 0)
        return SL_OK;
    (void)copy_step(to, step);
    pthread_mutex_unlock(&to->lock);
    return SL_OK;
}

/* ---- What the thread makes of it ---------------------------------------------------------- */

static sl_status copy_entries(const sl_timeline_entry *from, int count, sl_timeline_entry **out)
{
    *out = malloc((size_t)count * sizeof **out);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for %d actions", count);
    memcpy(*out, from, (size_t)count * sizeof **out);
    return SL_OK;
}

/* As the `pipeline` record of the step would be. */
static sl_status describe_pipeline(const last_step *from, int replica, const sl_utilization *of,
                                   sli_history_pipeline *out)
{
    *out = (sli_history_pipeline){.replica = replica,
                                  .epoch = from->epoch,
                                  .step = from->step,
                                  .bubble_measured = of->bubble_measured,
                                  .bubble_predicted = of->bubble_predicted,
                                  .ranks = of->ranks,
                                  .stages = of->stages,
                                  .action_count = of->action_count};
    out->placement = calloc((size_t)of->stages, sizeof *out->placement);
    if (!out->placement)
        return sl_error(SL_ERR_MEMORY, "no memory for %d stages", of->stages);
    memcpy(out->placement, of->placement, (size_t)of->stages * sizeof *out->placement);
    SL_TRY(copy_entries(of->measured, of->action_count, &out->measured));
    return copy_entries(of->predicted, of->action_count, &out->predicted);
}

/* A timeline that is not of a whole step is left out: the log has others. */
static void use_timeline(sl_run_history *history, const last_step *from, int replica)
{
    sl_utilization utilization;
    sli_history_pipeline pipeline;
    if (from->count == 0 ||
        sl_timeline_utilization(from->timelines + (size_t)replica * (size_t)from->count,
                                from->count, &from->layouts[replica].options,
                                &utilization) != SL_OK)
        return;
    if (describe_pipeline(from, replica, &utilization, &pipeline) == SL_OK)
        (void)sli_history_set_pipeline(history, &pipeline);
    else
        sli_history_pipeline_clear(&pipeline);
    sl_utilization_clear(&utilization);
}

static void use_memory(sl_run_history *history, const last_step *from)
{
    for (int i = 0; i < from->devices; i++) {
        const sl_rank_stats *of = &from->memory[i];
        sli_history_memory memory = {.rank = of->rank,
                                     .stage = of->stage,
                                     .peak_total_bytes = (double)of->stats.peak_total_bytes};
        memcpy(memory.host, of->host, sizeof memory.host);
        memcpy(memory.device, of->device, sizeof memory.device);
        for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
            memory.peak_bytes[c] = (double)of->stats.peak_bytes[c];
        (void)sli_history_set_memory(history, &memory);
    }
}

/* Whether the run has left a new step. */
static bool use_step(sl_live_page *page)
{
    last_step *from = &page->last;
    pthread_mutex_lock(&from->lock);
    bool found = from->is_new && page->log.history->run;
    for (int r = 0; r < from->replicas && found; r++)
        use_timeline(page->log.history, from, r);
    if (found) {
        use_memory(page->log.history, from);
        from->is_new = false;
    }
    pthread_mutex_unlock(&from->lock);
    return found;
}

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
    if (atomic_exchange(&page->begins, false))
        page->log.offset = 0;
    (void)sli_follower_update(&page->log, &changed); /* the log keeps its error */
    page->grows = page->grows || changed;
    if (use_step(page) || changed)
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
    free(page->last.layouts);
    free(page->last.timelines);
    free(page->last.memory);
    pthread_mutex_destroy(&page->last.lock);
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
    pthread_mutex_init(&page->last.lock, NULL);
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

sl_reporter sl_live_page_reporter(sl_live_page *page)
{
    return (sl_reporter){.context = page, .started = keep_info, .timelines = keep_step};
}
