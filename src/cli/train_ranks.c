#include "cli/train_ranks.h"

#include "train/layout.h"

#include <stdlib.h>
#include <string.h>

/* The display and log of replicas first … first + count - 1 of `replicas`. */
typedef struct reports {
    cli_progress *progress; /* [count] */
    pthread_mutex_t screen; /* theirs */
    sl_reporter *reporters; /* [reporter_count] */
    int reporter_count;
    sl_run_log *log; /* NULL: none, or not ours */
} reports;

static void reports_clear(reports *of)
{
    if (of->progress)
        cli_progress_end(&of->progress[0]);
    sl_run_log_destroy(&of->log);
    pthread_mutex_destroy(&of->screen);
    free(of->reporters);
    free(of->progress);
}

static sl_status reports_create(const cli_progress *display, const char *log_json, int first,
                                int count, int replicas, reports *out)
{
    *out = (reports){.progress = calloc((size_t)count, sizeof *out->progress),
                     .reporters = calloc((size_t)count + 1, sizeof *out->reporters)};
    pthread_mutex_init(&out->screen, NULL);
    sl_status status = SL_OK;
    if (!out->progress || !out->reporters)
        status = sl_error(SL_ERR_MEMORY, "no memory for the display of %d replicas", count);
    else if (log_json && first == 0)
        status = sl_run_log_create(log_json, cli_progress_log_failed, &out->progress[0], &out->log);
    if (status != SL_OK) {
        reports_clear(out);
        return status;
    }
    for (int i = 0; i < count; i++) {
        cli_progress *progress = &out->progress[i];
        *progress = *display;
        progress->replica = first + i;
        progress->replicas = replicas;
        progress->drawer = &out->progress[0];
        progress->screen = &out->screen;
        out->reporters[out->reporter_count++] = cli_progress_reporter(progress);
    }
    if (out->log)
        out->reporters[out->reporter_count++] = sl_run_log_reporter(out->log);
    return SL_OK;
}

static sl_status train_threads(const sl_train_options *options, const cli_progress *display,
                               const char *log_json, sl_run_result *result)
{
    reports of;
    int replicas = sli_layout_replicas(options);
    SL_TRY(sl_train_options_check(options));
    SL_TRY(reports_create(display, log_json, 0, replicas, replicas, &of));
    sl_status status = sl_train_run(options, of.reporters, of.reporter_count, result);
    reports_clear(&of);
    return status;
}

/* ---- Processes ---------------------------------------------------------------------------- */

/* There are as many replicas as processes, and those of this machine share its devices. */
static sl_status fit_to_launch(const cli_run_options *from, const sl_launch_info *launch,
                               sl_train_options *out)
{
    *out = from->train;
    if (!from->preset_replicas && out->replicas != launch->world_size)
        return sl_error(SL_ERR_INVALID,
                        "--dp must be the number of processes that were started, %d, got \"%d\"",
                        launch->world_size, out->replicas);
    out->replicas = launch->world_size;
    out->local_replicas = launch->local_world_size;
    return sl_train_options_check(out);
}

/* torchrun's variables alone, as exported in a shell, do not start other processes. */
static sl_status check_started(const sl_launch_info *launch, sl_group *group)
{
    if (sl_group_size(group) == launch->world_size)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "the environment is that of rank %d of %d, but MPI knows of %d: start the "
                    "processes with sluice launch, mpirun or srun",
                    launch->rank, launch->world_size, sl_group_size(group));
}

/* The only process of a launcher is one replica, if nothing says otherwise. A job may have come to
 * that by and by, so what was asked of several replicas is no mistake. */
static void fit_to_one_process(sl_train_options *options)
{
    if (options->devices && strchr(options->devices, ';'))
        return;
    options->replicas = 1;
    options->zero = false;
}

static sl_status train_process(const cli_run_options *from, const sl_launch_info *launch,
                               const cli_progress *display, const char *log_json,
                               sl_run_result *result)
{
    sl_train_options options;
    sl_group *group;
    reports of;
    SL_TRY(fit_to_launch(from, launch, &options));
    SL_TRY(sl_group_create_mpi(NULL, &group));
    int rank = sl_group_rank(group);
    sl_status status = check_started(launch, group);
    if (status != SL_OK) {
        sl_group_destroy(&group);
        return status;
    }
    status = reports_create(display, log_json, rank, 1, options.replicas, &of);
    if (status == SL_OK) {
        status = sl_train_run_rank(&options, group, launch->local_rank, of.reporters,
                                   of.reporter_count, result);
        reports_clear(&of);
        if (rank != 0)
            *result = (sl_run_result){0};
    } else {
        sl_group_abort(group, status, sl_error_text());
    }
    sl_group_destroy(&group);
    return status;
}

sl_status cli_train_ranks(const cli_run_options *options, const sl_launch_info *launch,
                          const cli_progress *display, const char *log_json, sl_run_result *result)
{
    *result = (sl_run_result){0};
    if (launch->world_size > 1)
        return train_process(options, launch, display, log_json, result);
    sl_train_options train = options->train;
    if (launch->launched && options->preset_replicas)
        fit_to_one_process(&train);
    return train_threads(&train, display, log_json, result);
}
