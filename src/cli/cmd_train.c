/* sluice train: a run with its display and its log. Its replicas are threads of this process, or,
 * where a launcher has started several processes, this process is one rank of them. */
#include "cli/cli.h"
#include "synthetic/chain.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct settings {
    sl_train_options run;
    const char *config;
    bool print_config;
    cli_progress_options progress;
} settings;

/* "10" batches, or "2.5s" */
static sl_status parse_interval(const char *text, void *object)
{
    cli_progress_options *to = &((settings *)object)->progress;
    char *end;
    double number = strtod(text, &end);
    bool in_seconds = strcmp(end, "s") == 0;
    bool whole = number == floor(number) && *end == '\0';
    if (!(number > 0) || number > 1e9 || !(in_seconds || whole))
        return sl_error(SL_ERR_INVALID,
                        "log-interval must be a number of batches from 1, or of seconds as in 10s, "
                        "got \"%s\"",
                        text);
    to->log_interval = in_seconds ? 0 : (int64_t)number;
    to->log_seconds = number;
    return SL_OK;
}

static char *print_interval(const void *object)
{
    const cli_progress_options *from = &((const settings *)object)->progress;
    char text[48];
    snprintf(text, sizeof text, "%.9g%s", from->log_seconds, from->log_interval ? "" : "s");
    return strdup(text);
}

/* clang-format off */
static const sl_option option_rows[] = {
    {.name = "config", .value = "FILE", .group = "Files and display", FIELD(TEXT, config),
     .help = "Read options from FILE, a JSON object as --print-config prints it; options on the "
             "command line override them"},
    {.name = "print-config", .group = "Files and display", FIELD(FLAG, print_config),
     .help = "Print all options as a JSON object, and end; lr is left out where it is the "
             "optimizer's default"},
    {.name = "log-json", .value = "FILE", .group = "Files and display",
     FIELD(TEXT, progress.log_json),
     .help = "Write the run's log to FILE as JSON lines, for sluice report"},
    {.name = "trace", .value = "FILE", .group = "Files and display", FIELD(TEXT, progress.trace),
     .help = "Write each epoch's last full step to FILE as trace events for Perfetto, one for each "
             "action, predicted and measured"},
    {.name = "tensorboard", .value = "DIR", .group = "Files and display",
     FIELD(TEXT, progress.tensorboard),
     .help = "Write losses, norms and speed to an event file in DIR for TensorBoard"},
    {.name = "serve", .value = "[ADDRESS:]PORT", .group = "Files and display",
     FIELD(TEXT, progress.serve),
     .help = "Serve a page that shows the run while it goes on, from a process of its own: without an address for this "
             "machine alone; at another address for those who have the token in the URL that is "
             "printed; 0 is any free port"},
    {.name = "log-interval", .value = "N|Ns", .group = "Files and display",
     .type = SL_OPTION_CUSTOM, .parse = parse_interval, .print = print_interval, .initial = "10",
     .help = "Print a line every N batches, or, as in 10s, after N seconds of training"},
    {.name = "quiet", .group = "Files and display", FIELD(FLAG, progress.quiet),
     .help = "Print the result only"},
    {0},
};
/* clang-format on */

/* ---- Before the run ----------------------------------------------------------------------- */

/* As --resume auto does: from the newest checkpoint in --save-dir, if there is one. */
static void resume_if_any(sl_save_options *checkpoints)
{
    checkpoints->resume = checkpoints->directory;
    checkpoints->resume_if_any = true;
}

/* The shards and micro-batches of a job's first attempt, for one that begins as that did. */
static void keep_first_sums(sl_train_options *options, const sl_launch_info *launch,
                            bool replicas_given)
{
    if (options->shards == 0 && replicas_given)
        options->shards = options->replicas;
    else if (options->shards == 0 && launch->first_world_size > 1)
        options->shards = launch->first_world_size;
    if (options->chunks == 0 && replicas_given && options->pipeline_ranks > 0 && !options->table)
        options->chunks = sl_train_options_chunks(options);
}

/* Whether an attempt at this job has saved a checkpoint in --save-dir. A launcher that does not
 * name its jobs counts every one as its own. */
static sl_status find_own(const sl_save_options *checkpoints, bool *found)
{
    char *newest = NULL, *best = NULL;
    *found = false;
    if (!checkpoints->directory)
        return SL_OK;
    if (checkpoints->job)
        return sl_train_find_saved(checkpoints->directory, checkpoints->job, found);
    SL_TRY(sl_train_find_checkpoints(checkpoints->directory, &best, &newest));
    *found = newest;
    free(best);
    free(newest);
    return SL_OK;
}

/* Where a job's attempt begins, if checkpoints are saved. "Own" is one in --save-dir that an
 * earlier attempt at this job has saved.
 *
 *     --resume   own   first attempt, without some hosts   restart
 *     no         no    anew, with the first sums           anew, with the first sums
 *     no         yes                                       the newest own one
 *     DIR        no    DIR                                 DIR
 *     DIR        yes                                       the newest own one
 */
static sl_status resume_after_restart(settings *to, const sl_launch_info *launch,
                                      bool replicas_given)
{
    sl_save_options *checkpoints = &to->run.checkpoints;
    bool own;
    SL_TRY(find_own(checkpoints, &own));
    if (!checkpoints->resume && !own)
        keep_first_sums(&to->run, launch, replicas_given);
    if (launch->restarts == 0 || !checkpoints->directory)
        return SL_OK;
    if (own) {
        resume_if_any(checkpoints);
        checkpoints->resume_own = checkpoints->job;
    }
    if (own || !checkpoints->resume)
        to->progress.restarts = launch->restarts;
    return SL_OK;
}

/* Refuses to overwrite the file of options. */
static sl_status check_not_read(const settings *from, const char *option, const char *path)
{
    if (cli_is_same_file(path, from->config))
        return sl_error(SL_ERR_INVALID, "%s: %s is an input and must not be overwritten", option,
                        path);
    return SL_OK;
}

/* The same, and what the run itself reads and writes. */
static sl_status check_output(const settings *from, const char *option, const char *path)
{
    SL_TRY(check_not_read(from, option, path));
    return path ? sl_error_context(sl_train_check_output(&from->run, path), "%s: ", option) : SL_OK;
}

static sl_status check_outputs(const settings *from)
{
    SL_TRY(check_not_read(from, "--save", from->run.save));
    SL_TRY(check_output(from, "--log-json", from->progress.log_json));
    SL_TRY(check_output(from, "--tensorboard", from->progress.tensorboard));
    return check_output(from, "--trace", from->progress.trace);
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
    checkpoints->request = cli_signals_request;
    checkpoints->saving = report_saving;
    return cli_signals_handle(saves, launch->rank == 0);
}

/* ---- The run ------------------------------------------------------------------------------ */

/* The types of the vocabulary, from the newest checkpoint or else from the text. */
static sl_status count_types(sl_train_options *options)
{
    const char *directory = options->checkpoints.directory;
    char *best = NULL, *newest = NULL;
    sl_corpus *corpus = NULL;
    sl_model_options saved;
    if (directory)
        SL_TRY(sl_train_find_checkpoints(directory, &best, &newest));
    bool found = newest && sl_weights_model(newest, &saved) == SL_OK;
    free(best);
    free(newest);
    if (!found)
        SL_TRY(sl_corpus_load(options->data, NULL, &corpus));
    options->model.ntokens = found ? saved.ntokens : sl_vocab_size(sl_corpus_vocab(corpus));
    sl_corpus_destroy(&corpus);
    return SL_OK;
}

/* Rank 0 finds the layout for all: its plan counts what its process holds. */
static sl_status fit_layout(sl_train_options *options, const sl_module *model,
                            const sl_launch_info *launch, sl_group *group)
{
    int64_t bytes = (int64_t)sl_usable_memory();
    int32_t processes = launch->local_world_size;
    if (group) {
        SL_TRY(sl_group_all_reduce(group, &bytes, 1, SL_I64, SL_REDUCE_MIN, NULL));
        SL_TRY(sl_group_all_reduce(group, &processes, 1, SL_I32, SL_REDUCE_MAX, NULL));
    }
    const sl_train_hosts hosts = {processes, (uint64_t)bytes};
    if (launch->rank == 0)
        SL_TRY(sl_train_fit_layout(options, model, launch->world_size, &hosts));
    int32_t found[] = {options->replicas, options->pipeline_ranks, options->zero,
                       (int32_t)options->balance_kind, options->placement != NULL};
    if (group)
        SL_TRY(sl_group_broadcast(group, found, 5, SL_I32, 0, NULL));
    options->replicas = found[0];
    options->pipeline_ranks = found[1];
    options->zero = found[2];
    options->balance_kind = (sl_balance_kind)found[3];
    if (!found[4])
        options->placement = NULL;
    return SL_OK;
}

static sl_status fit_layout_together(sl_train_options *options, const sl_module *model,
                                     const sl_launch_info *launch)
{
    sl_group *group = NULL;
    if (launch->world_size > 1)
        SL_TRY(cli_group_create(launch, &group));
    sl_status status = fit_layout(options, model, launch, group);
    if (status != SL_OK && group)
        sl_group_abort(group, status, sl_error_text());
    sl_group_destroy(&group);
    return status;
}

/* Where a job has fewer processes than at its first attempt, finds the layout for them. One that
 * needs fewer still ends this attempt: the launcher starts as many. */
static sl_status fit_fewer_processes(sl_train_options *options, const sl_launch_info *launch,
                                     bool *ends)
{
    sl_module *model;
    int64_t ntokens = options->model.ntokens;
    sl_balance_kind balance = options->balance_kind;
    bool is_placed = options->placement;
    SL_TRY(sl_train_options_check(options));
    SL_TRY(count_types(options));
    SL_TRY(sl_transformer_lm_create(&options->model, &model));
    options->model.ntokens = ntokens;
    sl_status status = fit_layout_together(options, model, launch);
    sl_module_destroy(&model);
    int processes = launch->world_size;
    if (status == SL_OK && launch->rank == 0 && options->balance_kind != balance)
        cli_complain("warning: --balance fits no layout of %d process%s: using --balance auto",
                     processes, processes == 1 ? "" : "es");
    if (status == SL_OK && launch->rank == 0 && is_placed && !options->placement)
        cli_complain("warning: --placement fits no layout of %d process%s: using the schedule's",
                     processes, processes == 1 ? "" : "es");
    int fitting = options->replicas * options->pipeline_ranks;
    *ends = status == SL_OK && fitting > 0 && fitting < processes && cli_launcher;
    if (*ends && launch->rank == 0)
        sl_launch_link_processes(cli_launcher, fitting);
    return status;
}

/* There are as many replicas as processes, if nothing says otherwise, and the processes of this
 * machine have its devices. The only process of a launcher is then one replica: a job may have come
 * to that by losing processes, so what was asked of several replicas is no mistake. */
static sl_status fit_to_launch(sl_train_options *options, const sl_launch_info *launch,
                               bool replicas_given)
{
    bool lists = options->devices && strchr(options->devices, ';');
    if (launch->world_size > 1) {
        options->replicas = replicas_given ? options->replicas : launch->world_size;
        options->ranks = launch->world_size;
        options->local_ranks = launch->local_world_size;
    } else if (launch->launched && !replicas_given && !lists) {
        options->replicas = 1;
        options->zero = false;
        options->nccl &= options->shards > 1 || options->checkpoints.resume;
    }
    return sl_train_options_check(options);
}

/* Trains as this process's rank or, where there are no other processes, all replicas. */
static sl_status train_replicas(const settings *from, const sl_launch_info *launch,
                                sl_run_result *result)
{
    sl_group *group = NULL;
    cli_progress *progress = NULL;
    int count = 0, replicas = sl_train_options_replicas(&from->run);
    if (launch->world_size > 1)
        SL_TRY(cli_group_create(launch, &group));
    int first_rank = group ? sl_group_rank(group) : 0;
    sl_status status =
        cli_progress_create(&from->progress, first_rank, group ? 1 : replicas, replicas, &progress);
    const sl_reporter *reporters = progress ? cli_progress_reporters(progress, &count) : NULL;
    if (status != SL_OK && group)
        sl_group_abort(group, status, sl_error_text());
    else if (status == SL_OK && group)
        status = sl_train_run_rank(&from->run, group, launch->local_rank, reporters, count, result);
    else if (status == SL_OK)
        status = sl_train_run(&from->run, reporters, count, result);
    cli_signals_end_run();
    cli_progress_destroy(&progress);
    sl_group_destroy(&group);
    return status;
}

/* The run's log says the command line. */
static sl_status train_and_log(const cli_line *line, settings *from, const sl_launch_info *launch,
                               sl_run_result *result)
{
    char *command = NULL;
    size_t bytes;
    FILE *to = open_memstream(&command, &bytes);
    if (to)
        cli_line_print(to, line, "");
    if (!to || fclose(to) != 0) {
        free(command);
        return sl_error(SL_ERR_MEMORY, "no memory for the command line");
    }
    from->progress.command = command;
    sl_status status = train_replicas(from, launch, result);
    free(command);
    return status;
}

/* ---- The command -------------------------------------------------------------------------- */

static void print_stopped(FILE *to, const cli_line *line, const sl_train_options *options,
                          const sl_run_result *result)
{
    fprintf(to, "Stopped after step %" PRId64, result->steps);
    if (options->checkpoints.directory) {
        fprintf(to, ", its checkpoint is saved. To go on:\n  ");
        if (options->checkpoints.settings) {
            fprintf(to, "sluice train --resume ");
            cli_print_word(to, options->checkpoints.directory);
            fprintf(to, "\n");
            return;
        }
        cli_line_print(to, line, "resume");
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

/* A file of options has all of them, as --print-config prints it. */
static void check_line(const cli_line *line, const sl_train_options *options)
{
    static const char *const of_steps[] = {"gamma", "step-epochs"};
    for (size_t i = 0; options->lr.kind != SL_LR_STEP && i < sizeof of_steps / sizeof *of_steps;
         i++)
        if (cli_line_own_value(line, of_steps[i]))
            cli_refuse("--%s is for the step schedule, but lr-schedule is cosine: leave it out",
                       of_steps[i]);
}

static void check_settings(settings *parsed)
{
    sl_save_options *checkpoints = &parsed->run.checkpoints;
    if (!parsed->run.data)
        cli_refuse("train needs --data, a text file, or a directory with "
                   "wiki.{train,valid,test}.tokens or {train,valid,test}.txt");
    if (!checkpoints->resume || strcmp(checkpoints->resume, "auto") != 0)
        return;
    if (!checkpoints->directory)
        cli_refuse("--resume auto needs --save-dir DIR");
    resume_if_any(checkpoints);
}

/* An error of opening the log begins with its path; names the option as well. */
static sl_status name_log(const char *log, sl_status status)
{
    if (status != SL_OK && log && strncmp(sl_error_text(), log, strlen(log)) == 0)
        return sl_error_context(status, "--log-json: ");
    return status;
}

static sl_status train(cli_line *line, const sl_launch_info *launch, settings *parsed)
{
    sl_train_options *options = &parsed->run;
    sl_run_result result = {0};
    parsed->progress.live = isatty(STDERR_FILENO) == 1;
    options->measure_peak =
        parsed->progress.log_json || parsed->progress.tensorboard || parsed->progress.serve;
    options->report_timelines = parsed->progress.serve;
    bool replicas_given = cli_line_value(line, "dp");
    bool fewer = launch->world_size < launch->first_world_size, ends = false;
    options->checkpoints.job = *launch->job ? launch->job : NULL;
    if (launch->restarts > 0 || fewer)
        SL_TRY(resume_after_restart(parsed, launch, replicas_given));
    SL_TRY(cli_saved_model_apply_sizes(line, options));
    SL_TRY(check_outputs(parsed));
    parsed->progress.synthetic = sli_synthetic_is_text(options->data);
    SL_TRY(handle_signals(parsed, launch));
    if (fewer && replicas_given)
        SL_TRY(fit_fewer_processes(options, launch, &ends));
    if (ends)
        return SL_OK;
    SL_TRY(fit_to_launch(options, launch, replicas_given));
    SL_TRY(name_log(parsed->progress.log_json, train_and_log(line, parsed, launch, &result)));
    if (!result.stopped || launch->rank > 0) /* rank 0 prints it */
        return SL_OK;
    print_stopped(stdout, line, options, &result);
    /* What stopped the run may be that standard output's reader has gone: standard error may still
     * have one. */
    if (cli_signals_output_lost() && (fflush(stdout) != 0 || ferror(stdout)))
        print_stopped(stderr, line, options, &result);
    return SL_OK;
}

static sl_status run_train(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    sl_launch_info launch;
    char *recorded = NULL;
    SL_TRY(sl_launch_info_read(&launch));
    SL_TRY(cli_options_recover(line, &launch, parsed));
    check_line(line, &parsed->run);
    if (parsed->print_config) {
        SL_TRY(sl_train_options_check(&parsed->run));
        cli_settings_print(line->command, parsed);
        return SL_OK;
    }
    check_settings(parsed);
    cli_options_record(line->command, parsed, &recorded);
    sl_status status = train(line, &launch, parsed);
    free(recorded);
    return status;
}

const cli_command cmd_train = {
    .name = "train",
    .summary = "train a model, validate and test it",
    .doc = "Trains a Transformer language model through a pipeline of devices. "
           "The preset sets all options that are not given; the defaults shown are those of "
           "transformer-tutorial. Weights have PyTorch's state_dict names and layouts.",
    .examples = "sluice train --data book.txt --preset small --save book.safetensors\n"
                "sluice train --data DIR --pp 2 --chunks 8 --schedule 1f1b --save-dir RUN\n"
                "sluice train --resume RUN --epochs 20\n"
                "sluice train --data DIR --dp 2 --pp 2 --serve 8080\n",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .options = option_rows,
    .settings_bytes = sizeof(settings),
    .run = run_train,
};
