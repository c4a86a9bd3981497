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
#include "train/save_directory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    KEY_INIT = 0x100,
    KEY_SAVE,
    KEY_LOG_JSON,
    KEY_LOG_INTERVAL,
    KEY_QUIET,
    KEY_SAVE_DIR,
    KEY_SAVE_EVERY,
    KEY_KEEP,
    KEY_SHARD_SIZE,
    KEY_RESUME,
    KEY_FORCE,
};
enum { DEFAULT_LOG_INTERVAL = 10, DEFAULT_KEEP = 3 };

typedef struct settings {
    cli_run_options run;
    const char *log_json;
    const char *needs_directory; /* an option that was given and has no sense without it */
    bool save_every_given;
    int keep;
    cli_progress progress;
} settings;

static const struct argp_option options[] = {
    {0, 0, NULL, 0, "Files and display:", 8},
    {"init", KEY_INIT, "FILE", 0,
     "Start from weights: a safetensors file, the index of several, or a checkpoint's directory",
     8},
    {"save", KEY_SAVE, "FILE", 0,
     "Write the best weights to FILE (safetensors), the vocabulary beside it; a signal that stops "
     "the run before its first validation leaves the last ones there",
     8},
    {"log-json", KEY_LOG_JSON, "FILE", 0, "Write the run as JSON lines", 8},
    {"log-interval", KEY_LOG_INTERVAL, "N", 0, "Batches between two lines (default 10)", 8},
    {"quiet", KEY_QUIET, NULL, 0, "Show the result only", 8},
    {"force", KEY_FORCE, NULL, 0, "Begin although the run's plan needs more memory than there is",
     8},
    {0, 0, NULL, 0, "Checkpoints:", 9},
    {"save-dir", KEY_SAVE_DIR, "DIR", 0,
     "Save checkpoints in DIR; then SIGTERM, SIGINT, SIGHUP and SIGPIPE stop the run after one, "
     "SIGUSR1 saves one",
     9},
    {"save-every", KEY_SAVE_EVERY, "N", 0, "Steps between two of them, or epoch (default)", 9},
    {"keep", KEY_KEEP, "K", 0, "How many stay (default 3; 0: all), beside the best model", 9},
    {"shard-size", KEY_SHARD_SIZE, "BYTES", 0,
     "Cut their tensors into files of at most so many bytes (K, M and G are powers of 1024)", 9},
    {"resume", KEY_RESUME, "DIR", 0,
     "Go on from the checkpoint DIR, or from the newest whole one in DIR; auto: from that of "
     "--save-dir, where there is one, which is also what a job does that sluice launch restarts",
     9},
    {0},
};

static bool parse_checkpoint_option(int key, const char *text, settings *to)
{
    sl_save_options *checkpoints = &to->run.train.checkpoints;
    if (key == KEY_SAVE_EVERY || key == KEY_KEEP || key == KEY_SHARD_SIZE)
        to->needs_directory = key == KEY_KEEP         ? "--keep needs --save-dir DIR"
                              : key == KEY_SHARD_SIZE ? "--shard-size needs --save-dir DIR"
                                                      : "--save-every needs --save-dir DIR";
    switch (key) {
    case KEY_SAVE_DIR:
        checkpoints->directory = cli_parse_path("save-dir", text);
        return true;
    case KEY_SAVE_EVERY:
        to->save_every_given = true;
        checkpoints->every_epoch = strcmp(text, "epoch") == 0;
        checkpoints->every_steps =
            checkpoints->every_epoch ? 0 : cli_parse_integer("save-every", text, 1, INT64_MAX);
        return true;
    case KEY_KEEP:
        to->keep = (int)cli_parse_integer("keep", text, 0, INT32_MAX);
        return true;
    case KEY_SHARD_SIZE:
        checkpoints->shard_bytes = cli_parse_bytes("shard-size", text);
        return true;
    case KEY_RESUME:
        checkpoints->resume = cli_parse_path("resume", text);
        return true;
    }
    return false;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings *to = state->input;
    if (parse_checkpoint_option(key, text, to))
        return 0;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &to->run;
        return 0;
    case KEY_INIT:
        to->run.train.init = cli_parse_path("init", text);
        return 0;
    case KEY_SAVE:
        to->run.train.save = cli_parse_path("save", text);
        return 0;
    case KEY_LOG_JSON:
        to->log_json = cli_parse_path("log-json", text);
        return 0;
    case KEY_LOG_INTERVAL:
        to->progress.log_interval = cli_parse_integer("log-interval", text, 1, INT64_MAX);
        return 0;
    case KEY_QUIET:
        to->progress.quiet = true;
        return 0;
    case KEY_FORCE:
        to->run.train.force = true;
        return 0;
    case ARGP_KEY_ARG:
        cli_refuse("train takes options only", text);
    case ARGP_KEY_ERROR:
        cli_end_at_option(state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* A job that the launcher has started again goes on where it was, as with --resume auto, or begins
 * as its first attempt did, with its text cut as for the processes of that. */
static sl_status resume_after_restart(settings *to, const sl_launch_info *launch)
{
    sl_save_options *checkpoints = &to->run.train.checkpoints;
    int64_t *steps;
    size_t count = 0;
    if (launch->first_world_size > 1)
        to->run.train.shares = launch->first_world_size;
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

static sl_status run(settings *from, sl_run_result *result)
{
    sl_launch_info launch;
    SL_TRY(sl_launch_info_read(&launch));
    if (launch.restarts > 0)
        SL_TRY(resume_after_restart(from, &launch));
    SL_TRY(sli_knob_contains(SLI_KNOB_DEBUG, "ddp", &from->progress.debug));
    SL_TRY(cli_saved_model_take(&from->run));
    SL_TRY(cli_check_train_files(&from->run.train, from->log_json));
    SL_TRY(take_signals(from, &launch));
    return cli_train_ranks(&from->run, &launch, &from->progress, from->log_json, result);
}

/* Completes what the options say of checkpoints, or refuses them. */
static void check_checkpoints(settings *parsed)
{
    sl_save_options *checkpoints = &parsed->run.train.checkpoints;
    if (checkpoints->resume && strcmp(checkpoints->resume, "auto") == 0) {
        if (!checkpoints->directory)
            cli_refuse("--resume auto needs --save-dir DIR", NULL);
        checkpoints->resume = checkpoints->directory;
        checkpoints->resume_if_any = true;
    }
    if (parsed->needs_directory && !checkpoints->directory)
        cli_refuse(parsed->needs_directory, NULL);
    checkpoints->every_epoch |= !parsed->save_every_given;
    checkpoints->keep = parsed->keep;
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

int cmd_train(int argc, char **argv)
{
    static const struct argp_child children[] = {{&cli_run_argp, 0, NULL, 0}, {0}};
    static const struct argp parser = {
        .options = options,
        .parser = parse_option,
        .children = children,
        .doc = "Trains a Transformer language model through a pipeline of devices."
               "\vNumbers that no option gives are those of the preset. Weights and layouts are "
               "PyTorch's state_dict.",
    };
    settings parsed = {.keep = DEFAULT_KEEP,
                       .progress = {.log_interval = DEFAULT_LOG_INTERVAL,
                                    .live = isatty(STDERR_FILENO) == 1}};
    sl_run_result result = {0};
    cli_run_parse(&parser, argc, argv, &parsed, &parsed.run);
    if (!parsed.run.train.data)
        cli_refuse("train needs --data DIR, a directory with wiki.{train,valid,test}.tokens or "
                   "{train,valid,test}.txt",
                   NULL);
    check_checkpoints(&parsed);
    sl_status status = run(&parsed, &result);
    if (status == SL_OK && result.stopped)
        return end_stopped(argc, argv, &parsed.run.train, &result);
    return cli_finish(status);
}
