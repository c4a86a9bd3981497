/* What a reader of a run log makes of it: the live page, the trace and the events. */
#include "report/watch.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "report/follower.h"
#include "report/page.h"
#include "report/run_file.h"
#include "report/server.h"

#include <poll.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_RECORDS = 1 << 18 /* of a kind: 36 MiB */ };
static const double turn_seconds = 0.1, least_pause = 1, most_pause = 60, most_load = 0.005,
                    end_seconds = 1;

struct sli_watch {
    sli_watch_options options;
    sli_follower log;
    sli_server *server; /* NULL: there is no page */
    sli_run_file trace, events;
    bool grows;  /* records have come since it was opened */
    double next; /* when the log is read again */
};

/* ---- The files ----------------------------------------------------------------------------- */

/* One that cannot be written is left as it is. */
static void check_file(const sli_watch *watch, sli_run_file *run_file, sl_status status)
{
    if (status == SL_OK)
        return;
    watch->options.failed(watch->options.context, sl_error_text());
    sli_run_file_close(run_file);
}

static void add_record(void *context, sli_record_kind kind, const void *record)
{
    sli_watch *watch = context;
    if (watch->trace.file)
        check_file(watch, &watch->trace, sli_trace_add(&watch->trace, kind, record));
    if (watch->events.file)
        check_file(watch, &watch->events,
                   sli_tensorboard_add(&watch->events, watch->log.history, kind, record));
}

/* ---- The page ------------------------------------------------------------------------------ */

/* "data: CONTENT": one line, as a line's end would end the data. */
static sl_status draw_event(const sli_watch *watch, char **event, size_t *bytes)
{
    FILE *file = open_memstream(event, bytes);
    if (!file)
        return sli_no_memory(NULL, "the page");
    const sli_run_history *runs[] = {watch->log.history};
    sli_c_numbers scope = sli_c_numbers_begin();
    fputs("data: ", file);
    sli_page_write_live_content(
        &(sli_page){.file = file, .runs = runs, .count = 1, .is_live = true}, watch->grows,
        watch->log.error.status == SL_OK ? NULL : watch->log.error.text);
    sli_c_numbers_end(scope);
    fputs("\n\n", file);
    if (fclose(file) != 0) {
        free(*event);
        return sli_no_memory(NULL, "the page");
    }
    for (size_t i = 0; i + 2 < *bytes; i++)
        (*event)[i] = (*event)[i] == '\n' ? ' ' : (*event)[i];
    return SL_OK;
}

static void publish_page(sli_watch *watch)
{
    char *event;
    size_t bytes;
    if (watch->server && draw_event(watch, &event, &bytes) == SL_OK)
        sli_server_publish(watch->server, event, bytes);
}

static sl_status write_page(sli_server *server, const char *name)
{
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (file)
        sli_page_write_live(file, name, sli_server_nonce(server));
    if (!file || fclose(file) != 0)
        return sli_no_memory(NULL, "the page");
    sli_server_set_page(server, text, bytes);
    return SL_OK;
}

/* ---- The log ------------------------------------------------------------------------------- */

/* The page shows an error of a line that is left out. */
static void update(sli_watch *watch)
{
    bool changed;
    if (sli_follower_update(&watch->log, &changed) != SL_OK && !watch->server)
        watch->options.failed(watch->options.context, sl_error_text());
    watch->grows = watch->grows || changed;
    if (changed)
        publish_page(watch);
}

void sli_watch_turn(sli_watch *watch)
{
    if (sli_clock_seconds() >= watch->next) {
        clock_t before = clock(); /* the process's time */
        update(watch);
        double pause = (double)(clock() - before) / CLOCKS_PER_SEC / most_load;
        pause = pause < least_pause ? least_pause : pause;
        watch->next = sli_clock_seconds() + (pause > most_pause ? most_pause : pause);
    }
    if (watch->server)
        sli_server_turn(watch->server, turn_seconds);
    else
        (void)poll(NULL, 0, (int)(1e3 * turn_seconds));
}

/* ---- All ---------------------------------------------------------------------------------- */

static sl_status open_trace(sli_watch *watch)
{
    const sli_watch_options *options = &watch->options;
    if (!options->trace)
        return SL_OK;
    if (sli_path_same_file(options->trace, options->log))
        return sl_error(SL_ERR_INVALID, "--trace: %s is the run log", options->trace);
    return sl_error_context(sli_trace_open(options->trace, &watch->trace), "--trace: ");
}

static sl_status open_outputs(sli_watch *watch)
{
    const sli_watch_options *options = &watch->options;
    SL_TRY(open_trace(watch));
    if (options->tensorboard)
        SL_TRY(sl_error_context(sli_tensorboard_open(options->tensorboard, &watch->events),
                                "--tensorboard: "));
    if (!options->serve)
        return SL_OK;
    SL_TRY(sl_error_context(sli_server_create(options->serve, &watch->server), "--serve: "));
    return write_page(watch->server, options->name);
}

static sl_status open_log(sli_watch *watch)
{
    bool changed;
    SL_TRY(sli_follower_create(watch->options.log, watch->options.name, &watch->log));
    watch->log.history->most_records = MOST_RECORDS;
    watch->log.history->added_context = watch;
    if (!watch->options.child)
        watch->log.history->added = add_record;
    SL_TRY(sli_follower_update(&watch->log, &changed));
    watch->log.history->added = add_record;
    return SL_OK;
}

static void free_watch(sli_watch *watch)
{
    sli_server_destroy(&watch->server, end_seconds);
    sli_run_file_close(&watch->trace);
    sli_run_file_close(&watch->events);
    sli_follower_clear(&watch->log);
    free(watch);
}

sl_status sli_watch_open(const sli_watch_options *options, sli_watch **out)
{
    *out = NULL;
    sli_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return sli_no_memory(NULL, "the reader of a run");
    watch->options = *options;
    sl_status status;
    SL_TRY_OR_FAIL(open_outputs(watch));
    SL_TRY_OR_FAIL(open_log(watch));
    publish_page(watch);
    *out = watch;
    return SL_OK;
fail:
    free_watch(watch);
    return status;
}

const char *sli_watch_url(const sli_watch *watch)
{
    return watch->server ? sli_server_url(watch->server) : NULL;
}

bool sli_watch_has_ended(const sli_watch *watch)
{
    return watch->log.history->ended;
}

void sli_watch_close(sli_watch **watch)
{
    if (!watch || !*watch)
        return;
    update(*watch);
    free_watch(*watch);
    *watch = NULL;
}
