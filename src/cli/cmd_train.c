/* sluice train: a run with its display and its log. Its replicas are threads of this process, or,
 * where a launcher has started several processes, this process is one of them. */
#include "cli/cli.h"
#include "synthetic/corpus.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_LOG_INTERVAL = 10, DEFAULT_KEEP = 3 };

typedef struct settings {
    sl_train_options run;
    const char *config;
    bool print_config;
    cli_progress_options progress;
} settings;

/* clang-format off */
static const sl_option option_rows[] = {
    {.name = "config", .value = "FILE", .group = "Files and display", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, config),
     .help = "Read options from FILE, a JSON object as --print-config prints it; options on the "
             "command line override them"},
    {.name = "print-config", .group = "Files and display", .type = SL_OPTION_FLAG,
     .offset = offsetof(settings, print_config),
     .help = "Print all options as a JSON object, and end; lr is left out where it is the "
             "optimizer's default"},
    {.name = "log-json", .value = "FILE", .group = "Files and display", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, progress.log_json),
     .help = "Write the run's log to FILE as JSON lines"},
    {.name = "log-interval", .value = "N", .group = "Files and display", .type = SL_OPTION_INT64,
     .offset = offsetof(settings, progress.log_interval), .lowest = 1,
     .help = "Print a line every N batches"},
    {.name = "quiet", .group = "Files and display", .type = SL_OPTION_FLAG,
     .offset = offsetof(settings, progress.quiet),
     .help = "Print the result only"},
    {0},
};
/* clang-format on */

static void set_defaults(void *to)
{
    settings *parsed = to;
    parsed->progress.log_interval = DEFAULT_LOG_INTERVAL;
    parsed->progress.live = isatty(STDERR_FILENO) == 1;
    parsed->run.checkpoints.keep = DEFAULT_KEEP;
    parsed->run.checkpoints.every_epoch = true;
}

/* ---- Before the run ----------------------------------------------------------------------- */

/* As --resume auto does: from the newest checkpoint in --save-dir, if there is one. */
static void resume_if_any(sl_save_options *checkpoints)
{
    checkpoints->resume = checkpoints->directory;
    checkpoints->resume_if_any = true;
}

/* A job that the launcher has started again goes on where it was, or begins as its first attempt
 * did, with its text cut as for the processes of that. */
static sl_status resume_after_restart(settings *to, const sl_launch_info *launch)
{
    sl_save_options *checkpoints = &to->run.checkpoints;
    char *best, *newest;
    if (launch->first_world_size > 1)
        to->run.shards = launch->first_world_size;
    if (!checkpoints->directory)
        return SL_OK;
    SL_TRY(sl_train_find_checkpoints(checkpoints->directory, &best, &newest));
    bool begins_elsewhere = checkpoints->resume && !newest;
    free(best);
    free(newest);
    if (begins_elsewhere)
        return SL_OK;
    resume_if_any(checkpoints);
    to->progress.restarts = launch->restarts;
    return SL_OK;
}

/* The file of options, which was read, is there. */
static sl_status check_not_config(const settings *from, const char *option, const char *path)
{
    struct stat output, config;
    if (!path || !from->config || stat(path, &output) != 0 || stat(from->config, &config) != 0 ||
        output.st_dev != config.st_dev || output.st_ino != config.st_ino)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s: %s is an input and must not be overwritten", option, path);
}

static sl_status check_outputs(const settings *from)
{
    const char *log = from->progress.log_json;
    SL_TRY(check_not_config(from, "--save", from->run.save));
    SL_TRY(check_not_config(from, "--log-json", log));
    return log ? sl_error_context(sl_train_check_output(&from->run, log), "--log-json: ") : SL_OK;
}

static void report_saving(void *context, bool begins)
{
    (void)context;
    sl_launch_link_saving(cli_launcher, begins);
}

/* A run that saves something is asked to stop; one that saves nothing just ends. */
static sl_status handle_signals(settings *from, const sl_launch_info *launch)
{
    sl_save_options *checkpoints = &from->run.checkpoints;
    bool saves = checkpoints->directory || from->run.save;
    if (saves)
        checkpoints->request = cli_signals_request;
    checkpoints->saving = report_saving;
    return cli_signals_handle(saves, launch->rank == 0);
}

/* ---- Threads ------------------------------------------------------------------------------ */

/* The only process of a launcher is one replica, if nothing says otherwise. A job may have come to
 * that by and by, so what was asked of several replicas is no mistake. */
static void fit_to_one_process(sl_train_options *options)
{
    if (options->devices && strchr(options->devices, ';'))
        return;
    options->replicas = 1;
    options->zero = false;
}

static sl_status train_threads(const settings *from, sl_run_result *result)
{
    cli_progress *progress;
    int replicas = sl_train_options_replicas(&from->run), count;
    SL_TRY(sl_train_options_check(&from->run));
    SL_TRY(cli_progress_create(&from->progress, 0, replicas, replicas, &progress));
    const sl_reporter *reporters = cli_progress_reporters(progress, &count);
    sl_status status = sl_train_run(&from->run, reporters, count, result);
    cli_progress_destroy(&progress);
    return status;
}

/* ---- Processes ---------------------------------------------------------------------------- */

/* There are as many replicas as processes, and those of this machine share its devices. */
static sl_status fit_to_launch(sl_train_options *options, const sl_launch_info *launch,
                               bool replicas_given)
{
    if (replicas_given && options->replicas != launch->world_size)
        return sl_error(SL_ERR_INVALID,
                        "--dp must be the number of processes that were started, %d, got \"%d\"",
                        launch->world_size, options->replicas);
    options->replicas = launch->world_size;
    options->local_replicas = launch->local_world_size;
    return sl_train_options_check(options);
}

/* torchrun's variables without RANK do not start other processes. */
static sl_status check_started(const sl_launch_info *launch, sl_group *group)
{
    if (sl_group_size(group) == launch->world_size)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "the environment is that of rank %d of %d, but MPI knows of %d: start the "
                    "processes with sluice launch, mpirun or srun",
                    launch->rank, launch->world_size, sl_group_size(group));
}

static sl_status train_process(const settings *from, const sl_launch_info *launch,
                               sl_run_result *result)
{
    sl_group *group;
    cli_progress *progress = NULL;
    int count;
    SL_TRY(sl_group_create_mpi(NULL, &group));
    int rank = sl_group_rank(group);
    sl_status status = check_started(launch, group);
    if (status != SL_OK)
        goto done;
    status = cli_progress_create(&from->progress, rank, 1, from->run.replicas, &progress);
    if (status != SL_OK) {
        sl_group_abort(group, status, sl_error_text());
        goto done;
    }
    const sl_reporter *reporters = cli_progress_reporters(progress, &count);
    status = sl_train_run_rank(&from->run, group, launch->local_rank, reporters, count, result);
    if (rank != 0)
        *result = (sl_run_result){0}; /* rank 0 prints it */
done:
    cli_progress_destroy(&progress);
    sl_group_destroy(&group);
    return status;
}

static sl_status train_replicas(const cli_line *line, settings *from, sl_run_result *result)
{
    sl_launch_info launch;
    bool replicas_given = cli_line_value(line, "dp");
    SL_TRY(sl_launch_info_read(&launch));
    if (launch.restarts > 0)
        SL_TRY(resume_after_restart(from, &launch));
    SL_TRY(cli_saved_model_apply_sizes(line, &from->run));
    SL_TRY(check_outputs(from));
    if (from->run.data)
        SL_TRY(sli_synthetic_best_perplexity(from->run.data, from->run.bptt,
                                             &from->run.best_possible_perplexity));
    SL_TRY(handle_signals(from, &launch));
    if (launch.world_size > 1) {
        SL_TRY(fit_to_launch(&from->run, &launch, replicas_given));
        return train_process(from, &launch, result);
    }
    if (launch.launched && !replicas_given)
        fit_to_one_process(&from->run);
    return train_threads(from, result);
}

/* ---- The command -------------------------------------------------------------------------- */

static void print_stopped(FILE *to, const cli_line *line, const sl_train_options *options,
                          const sl_run_result *result)
{
    fprintf(to, "Stopped after step %" PRId64, result->steps);
    if (options->checkpoints.directory) {
        fprintf(to, ", its checkpoint is saved. To go on:\n  ");
        cli_line_print(to, line, "--resume");
        fprintf(to, " --resume auto\n");
        return;
    }
    if (isfinite(result->best_valid_loss))
        fprintf(to, ": %s has the best weights so far, those of step %" PRId64 ".", options->save,
                result->saved_step);
    else
        fprintf(to, ": %s has the weights of that step, which were not validated.", options->save);
    fprintf(to, " A run with --save-dir DIR can go on where it was stopped.\n");
}

/* The program's exit status. Where standard output's reader has gone, which is what stopped the
 * run, standard error may still have one. */
static int end_stopped(const cli_line *line, const sl_train_options *options,
                       const sl_run_result *result)
{
    print_stopped(stdout, line, options, result);
    if (!cli_signals_output_lost() || (fflush(stdout) == 0 && !ferror(stdout)))
        return cli_finish(SL_OK);
    print_stopped(stderr, line, options, result);
    return 0;
}

static int train(cli_line *line, settings *parsed)
{
    sl_run_result result = {0};
    if (parsed->print_config) {
        sl_status status = sl_train_options_check(&parsed->run);
        if (status == SL_OK)
            cli_settings_print(line->command, parsed);
        return cli_finish(status);
    }
    if (!parsed->run.data)
        cli_refuse("train needs --data DIR, a directory with wiki.{train,valid,test}.tokens or "
                   "{train,valid,test}.txt");
    sl_save_options *checkpoints = &parsed->run.checkpoints;
    if (checkpoints->resume && strcmp(checkpoints->resume, "auto") == 0) {
        if (!checkpoints->directory)
            cli_refuse("--resume auto needs --save-dir DIR");
        resume_if_any(checkpoints);
    }
    sl_status status = train_replicas(line, parsed, &result);
    if (status == SL_OK && result.stopped)
        return end_stopped(line, &parsed->run, &result);
    return cli_finish(status);
}

static int run_train(cli_line *line)
{
    settings parsed;
    sl_schedule *table;
    cli_settings_read(line, &parsed);
    sl_status status = cli_table_read(line, &parsed.run, &table);
    int exit_status = status == SL_OK ? train(line, &parsed) : cli_finish(status);
    sl_schedule_destroy(&table);
    return exit_status;
}

const cli_command cmd_train = {
    .name = "train",
    .summary = "train a model, validate and test it",
    .doc = "Trains a Transformer language model through a pipeline of devices."
           "\vThe preset sets all options that are not given; the defaults shown are those of "
           "transformer-tutorial. Weights have PyTorch's state_dict names and layouts.",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .options = option_rows,
    .settings_bytes = sizeof(settings),
    .set_defaults = set_defaults,
    .run = run_train,
};
