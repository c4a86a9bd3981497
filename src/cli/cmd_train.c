/* sluice train: the main job. */
#include "cli/arguments.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/run_files.h"
#include "cli/run_options.h"
#include "cli/saved_model.h"
#include "cli/signals.h"
#include "cli/supervisor.h"
#include "cli/train_ranks.h"
#include "core/knobs.h"
#include "train/checkpoint/save_directory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_LOG_INTERVAL = 10, DEFAULT_KEEP = 3 };

typedef struct settings {
    cli_run_options run;
    const char *log_json, *config;
    bool print_config;
    cli_progress progress;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "config", .value = "FILE", .group = "Files and display", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, config),
     .help = "Take options from FILE, a JSON object as --print-config prints it; those on the "
             "command line override them"},
    {.name = "print-config", .group = "Files and display", .type = SL_OPTION_FLAG,
     .offset = offsetof(settings, print_config),
     .help = "Print the complete configuration as JSON, and end; lr is left out where it is the "
             "optimizer's own"},
    {.name = "log-json", .value = "FILE", .group = "Files and display", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, log_json),
     .help = "Write the run as JSON lines"},
    {.name = "log-interval", .value = "N", .group = "Files and display", .type = SL_OPTION_INT64,
     .offset = offsetof(settings, progress.log_interval), .lowest = 1,
     .help = "Batches between two lines"},
    {.name = "quiet", .group = "Files and display", .type = SL_OPTION_FLAG,
     .offset = offsetof(settings, progress.quiet),
     .help = "Show the result only"},
    {0},
};
/* clang-format on */

static void set_defaults(void *to)
{
    settings *parsed = to;
    *parsed = (settings){
        .progress = {.log_interval = DEFAULT_LOG_INTERVAL, .live = isatty(STDERR_FILENO) == 1}};
    sl_train_options_default(&parsed->run.train);
    parsed->run.train.checkpoints.keep = DEFAULT_KEEP;
    parsed->run.train.checkpoints.every_epoch = true;
}

/* A job that the launcher has started again goes on where it was, as with --resume auto, or begins
 * as its first attempt did, with its text cut as for the processes of that. */
static sl_status resume_after_restart(settings *to, const sl_launch_info *launch)
{
    sl_save_options *checkpoints = &to->run.train.checkpoints;
    int64_t *steps;
    size_t count = 0;
    if (launch->first_world_size > 1)
        to->run.train.shards = launch->first_world_size;
    if (!checkpoints->directory)
        return SL_OK;
    if (checkpoints->resume) {
        SL_TRY(sli_save_directory_list(checkpoints->directory, &steps, &count));
        free(steps);
        if (count == 0)
            return SL_OK;
    }
    checkpoints->resume = checkpoints->directory;
    checkpoints->resume_if_any = true;
    to->progress.restarts = launch->restarts;
    return SL_OK;
}

static void tell_saving(void *context, bool begins)
{
    (void)context;
    cli_supervisor_saving(begins);
}

/* What stops a run that saves something is asked; one that saves nothing just ends. */
static sl_status take_signals(settings *from, const sl_launch_info *launch)
{
    sl_save_options *checkpoints = &from->run.train.checkpoints;
    bool saves = checkpoints->directory || from->run.train.save;
    if (saves)
        checkpoints->request = cli_signals_request;
    checkpoints->saving = tell_saving;
    return cli_signals_take(saves, launch->rank == 0);
}

static sl_status train(const cli_command_line *line, settings *from, sl_run_result *result)
{
    sl_launch_info launch;
    SL_TRY(sl_launch_info_read(&launch));
    if (launch.restarts > 0)
        SL_TRY(resume_after_restart(from, &launch));
    SL_TRY(sli_knob_contains(SLI_KNOB_DEBUG, "ddp", &from->progress.debug));
    SL_TRY(cli_saved_model_take(line, &from->run.train));
    SL_TRY(cli_check_train_files(&from->run.train, from->log_json, from->config));
    SL_TRY(take_signals(from, &launch));
    return cli_train_ranks(&from->run, &launch, &from->progress, from->log_json, result);
}

static void complete_resume(sl_save_options *checkpoints)
{
    if (!checkpoints->resume || strcmp(checkpoints->resume, "auto") != 0)
        return;
    if (!checkpoints->directory)
        cli_refuse("--resume auto needs --save-dir DIR", NULL);
    checkpoints->resume = checkpoints->directory;
    checkpoints->resume_if_any = true;
}

static void print_stopped(FILE *to, int argc, char **argv, const sl_train_options *run_options,
                          const sl_run_result *result)
{
    fprintf(to, "Stopped after step %" PRId64, result->steps);
    if (run_options->checkpoints.directory) {
        fprintf(to, ", its checkpoint is saved. To go on:\n  ");
        cli_print_command(to, argc, argv, "--resume");
        fprintf(to, " --resume auto\n");
        return;
    }
    if (isfinite(result->best_valid_loss))
        fprintf(to, ": %s has the best weights so far, those of step %" PRId64 ".",
                run_options->save, result->saved_step);
    else
        fprintf(to, ": %s has the weights of that step, which were not validated.",
                run_options->save);
    fprintf(to, " A run with --save-dir DIR can go on where it was stopped.\n");
}

/* The program's exit status. Where standard output's reader has gone, which is what stopped the
 * run, standard error may still have one. */
static int end_stopped(int argc, char **argv, const sl_train_options *run_options,
                       const sl_run_result *result)
{
    print_stopped(stdout, argc, argv, run_options, result);
    if (!cli_signals_output_lost() || (fflush(stdout) == 0 && !ferror(stdout)))
        return cli_finish(SL_OK);
    print_stopped(stderr, argc, argv, run_options, result);
    return 0;
}

static sl_status print_config(const cli_command_line *line, settings *parsed)
{
    SL_TRY(sl_train_options_check(&parsed->run.train));
    cli_print_config(line->command, parsed);
    return SL_OK;
}

static int run(cli_command_line *line)
{
    settings parsed;
    sl_run_result result = {0};
    set_defaults(&parsed);
    if (cli_given(line, "config"))
        cli_add_config(line, cli_given(line, "config"));
    cli_set_run(line, &parsed.run);
    if (parsed.print_config)
        return cli_finish(print_config(line, &parsed));
    if (!parsed.run.train.data)
        cli_refuse("train needs --data DIR, a directory with wiki.{train,valid,test}.tokens or "
                   "{train,valid,test}.txt",
                   NULL);
    complete_resume(&parsed.run.train.checkpoints);
    sl_status status = train(line, &parsed, &result);
    if (status == SL_OK && result.stopped)
        return end_stopped(line->argc, line->argv, &parsed.run.train, &result);
    return cli_finish(status);
}

const cli_command cmd_train = {
    .name = "train",
    .summary = "train a model, validate and test it",
    .doc = "Trains a Transformer language model through a pipeline of devices."
           "\vNumbers that no option gives are those of the preset; the defaults shown are those "
           "of transformer-tutorial. Weights and layouts are PyTorch's state_dict.",
    .tables = {{sl_structure_option_rows, offsetof(settings, run.train)},
               {sl_run_option_rows, offsetof(settings, run.train)},
               {options, 0}},
    .settings_bytes = sizeof(settings),
    .set_defaults = set_defaults,
    .run = run,
};
