/* What a run leaves in files, and shows in a browser. */
#include "cli/cli.h"

#include <errno.h>
#include <string.h>

/* Whom the records go to. */
typedef struct receivers {
    sl_reporter *reporters; /* [count] */
    int count;
    sl_reporter_failed *failed;
    void *context;
} receivers;

static sl_status create_log(const char *path, const char *command, receivers *to, sl_run_log **out)
{
    SL_TRY(sl_run_log_create(path, to->failed, to->context, out));
    SL_TRY(sl_run_log_set_command(*out, command));
    to->reporters[to->count++] = sl_run_log_reporter(*out);
    return SL_OK;
}

/* The page shows the run log; without one, a log that has no name. */
static sl_status create_page(const cli_progress_options *options, receivers *to, cli_outputs *out)
{
    char unnamed[32];
    const char *log = options->log_json;
    if (!log) {
        out->unnamed_log = tmpfile();
        if (!out->unnamed_log)
            return sl_error(SL_ERR_IO, "no file for the run's records: %s", strerror(errno));
        snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", fileno(out->unnamed_log));
        SL_TRY(create_log(unnamed, options->command, to, &out->log));
    }
    SL_TRY(sl_live_page_create(options->serve, log ? log : unnamed, log ? NULL : "The run",
                               &out->page));
    cli_complain("the run is shown at %s", sl_live_page_url(out->page));
    return SL_OK;
}

static sl_status create_outputs(const cli_progress_options *options, receivers *to,
                                cli_outputs *out)
{
    if (options->log_json)
        SL_TRY(create_log(options->log_json, options->command, to, &out->log));
    if (cli_is_same_file(options->trace, options->log_json))
        return sl_error(SL_ERR_INVALID, "--trace: %s is the run log (--log-json)", options->trace);
    if (options->trace) {
        SL_TRY(sl_run_trace_create(options->trace, to->failed, to->context, &out->trace));
        to->reporters[to->count++] = sl_run_file_reporter(out->trace);
    }
    if (options->tensorboard) {
        SL_TRY(sl_run_tensorboard_create(options->tensorboard, to->failed, to->context,
                                         &out->tensorboard));
        to->reporters[to->count++] = sl_run_file_reporter(out->tensorboard);
    }
    if (!options->serve)
        return SL_OK;
    return sl_error_context(create_page(options, to, out), "--serve: ");
}

sl_status cli_outputs_create(const cli_progress_options *options, sl_reporter_failed *failed,
                             void *context, cli_outputs *out, sl_reporter *reporters, int *count)
{
    receivers to = {.reporters = reporters, .count = *count, .failed = failed, .context = context};
    sl_status status = create_outputs(options, &to, out);
    *count = to.count;
    return status;
}

void cli_outputs_clear(cli_outputs *outputs)
{
    sl_live_page_destroy(&outputs->page);
    sl_run_log_destroy(&outputs->log);
    sl_run_file_destroy(&outputs->trace);
    sl_run_file_destroy(&outputs->tensorboard);
    if (outputs->unnamed_log)
        (void)fclose(outputs->unnamed_log);
}
