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
    const char *model;
    const char *config, *plan;
    bool print_config, print_plan;
    cli_progress_options progress;
} settings;

/* "10" batches, or "2.5s" */
static sl_status parse_interval(const char *text, void *object)
{
    cli_progress_options *progress = &((settings *)object)->progress;
    char *end;
    double number = strtod(text, &end);
    bool in_seconds = strcmp(end, "s") == 0;
    bool whole = number == floor(number) && *end == '\0';
    if (!(number > 0) || number > 1e9 || !(in_seconds || whole))
        return sl_error(SL_ERR_INVALID,
                        "log-interval must be a number of batches from 1, or of seconds as in 10s, "
                        "got \"%s\"",
                        text);
    progress->log_interval = in_seconds ? 0 : (int64_t)number;
    progress->log_seconds = number;
    return SL_OK;
}

static char *print_interval(const void *object)
{
    const cli_progress_options *progress = &((const settings *)object)->progress;
    char text[48];
    snprintf(text, sizeof text, "%.9g%s", progress->log_seconds, progress->log_interval ? "" : "s");
    return strdup(text);
}

/* clang-format off */
static const sl_option option_rows[] = {
    {.name = "model", .value = "NAME", .group = "Model", FIELD(TEXT, model), .choices = sl_model_names,
     .help = "Train a model of this name from drawn weights, with the sizes that were published"},
    {.name = "config", .value = "FILE", .group = "Files and display", FIELD(TEXT, config),
     .help = "Read options from FILE, a JSON object as --print-config prints it; options on the "
             "command line override them"},
    {.name = "plan", .value = "FILE", .group = "Pipeline", FIELD(TEXT, plan),
     .help = "Lay out the run as the first plan in FILE says, which sluice plan -o has written"},
    {.name = "print-config", .group = "Files and display", FIELD(FLAG, print_config),
     .help = "Print all options as a JSON object, and end; lr is left out where it is the "
             "optimizer's default"},
    {.name = "print-plan", .group = "Files and display", FIELD(FLAG, print_plan),
     .help = "Print what the run would be, as it would be found now: its layout, ranks, devices, "
             "schedule, shards and memory, and who decided each; and end"},
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

/* Refuses to overwrite the file of options. */
static sl_status check_not_read(const settings *parsed, const char *option, const char *path)
{
    if (cli_is_same_file(path, parsed->config) || cli_is_same_file(path, parsed->plan))
        return sl_error(SL_ERR_INVALID, "%s: %s is an input and must not be overwritten", option,
                        path);
    return SL_OK;
}

/* The same, and what the run itself reads and writes. */
static sl_status check_output(const settings *parsed, const char *option, const char *path)
{
    SL_TRY(check_not_read(parsed, option, path));
    return path ? sl_error_context(sl_train_check_output(&parsed->run, path), "%s: ", option)
                : SL_OK;
}

static sl_status check_outputs(const settings *parsed)
{
    SL_TRY(check_not_read(parsed, "--save", parsed->run.save));
    SL_TRY(check_output(parsed, "--log-json", parsed->progress.log_json));
    SL_TRY(check_output(parsed, "--tensorboard", parsed->progress.tensorboard));
    return check_output(parsed, "--trace", parsed->progress.trace);
}

static void report_saving(void *context, bool begins)
{
    (void)context;
    sl_launch_link_saving(cli_launcher, begins);
}

/* A run that saves something is asked to stop; one that saves nothing just ends. */
static sl_status handle_signals(settings *parsed, const sl_launch_info *launch)
{
    sl_save_options *checkpoints = &parsed->run.checkpoints;
    bool saves = checkpoints->directory || parsed->run.save;
    checkpoints->request = cli_signals_request;
    checkpoints->saving = report_saving;
    return cli_signals_handle(saves, launch->rank == 0);
}

/* ---- The run ------------------------------------------------------------------------------ */

static sl_train_launch launch_of(const cli_line *line, const sl_launch_info *info)
{
    bool has_ranks = info->world_size > 1;
    return (sl_train_launch){.ranks = has_ranks ? info->world_size : 0,
                             .rank = info->rank,
                             .local_ranks = has_ranks ? info->local_world_size : 0,
                             .local_rank = info->local_rank,
                             .first_ranks = info->first_world_size,
                             .restarts = info->restarts,
                             .job = *info->job ? info->job : NULL,
                             .launched = info->launched,
                             .replicas_open = !cli_line_value(line, "dp")};
}

static sl_status warn_of_checkpoint(void *context, const sl_checkpoint_event *event)
{
    (void)context;
    cli_complain("warning: checkpoint %s is skipped: %s", event->path, event->reason);
    return SL_OK;
}

/* What a layout of fewer processes leaves out. */
static void warn_of_layout(const sl_train_options *asked, const sl_plan *plan, int processes)
{
    const char *ending = processes == 1 ? "" : "es";
    if (plan->options.balance_kind != asked->balance_kind)
        cli_complain("warning: --balance fits no layout of %d process%s: using --balance auto",
                     processes, ending);
    if (asked->placement && !plan->options.placement)
        cli_complain("warning: --placement fits no layout of %d process%s: using the schedule's",
                     processes, ending);
}

/* Trains as this process's rank or, where there are no other processes, all replicas. */
static sl_status train_planned(const settings *parsed, sl_run *run, sl_group *group,
                               sl_run_result *result)
{
    cli_progress *progress = NULL;
    const sl_plan *plan = sl_run_plan(run);
    cli_progress_options display = parsed->progress;
    int count = 0, replicas = plan->options.replicas;
    display.restarts = plan->restart;
    sl_status status = cli_progress_create(&display, group ? sl_group_rank(group) : 0,
                                           group ? 1 : replicas, replicas, &progress);
    const sl_reporter *reporters = progress ? cli_progress_reporters(progress, &count) : NULL;
    if (status != SL_OK && group)
        sl_group_abort(group, status, sl_error_text());
    else if (status == SL_OK)
        status = sl_run_train(run, reporters, count, result);
    cli_signals_end_run();
    cli_progress_destroy(&progress);
    return status;
}

/* Plans the run, and does what the plan is for. One that needs fewer processes than there are ends
 * this attempt: the launcher starts as many. */
static sl_status plan_and_train(const cli_line *line, const settings *parsed,
                                const sl_launch_info *info, sl_run_result *result)
{
    static const sl_reporter early = {.checkpoint = warn_of_checkpoint};
    const sl_train_launch launch = launch_of(line, info);
    sl_group *group = NULL;
    sl_run *run = NULL;
    sl_plan *asked;
    SL_TRY(sl_plan_create(&parsed->run, &launch, NULL, NULL, &asked)); /* before there is a group */
    sl_plan_destroy(&asked);
    if (info->world_size > 1)
        SL_TRY(cli_group_create(info, &group));
    sl_status status = sl_run_create(&parsed->run, &launch, group, &early, 1, &run);
    const sl_plan *plan = run ? sl_run_plan(run) : NULL;
    bool is_too_many = plan && group && plan->ranks < info->world_size;
    if (plan && info->rank == 0)
        warn_of_layout(&parsed->run, plan, info->world_size);
    if (plan && parsed->print_plan && info->rank == 0)
        cli_plan_print(line, plan);
    else if (plan && is_too_many && cli_launcher && info->rank == 0)
        sl_launch_link_processes(cli_launcher, plan->ranks);
    else if (plan && !parsed->print_plan && !(is_too_many && cli_launcher))
        status = train_planned(parsed, run, group, result);
    sl_run_destroy(&run);
    sl_group_destroy(&group);
    return status;
}

/* The run's log says the command line. */
static sl_status train_and_log(const cli_line *line, settings *parsed, const sl_launch_info *launch,
                               sl_run_result *result)
{
    char *command = NULL;
    size_t bytes;
    FILE *file = open_memstream(&command, &bytes);
    if (file)
        cli_line_print(file, line, "");
    if (!file || fclose(file) != 0) {
        free(command);
        return sl_error(SL_ERR_MEMORY, "no memory for the command line");
    }
    parsed->progress.command = command;
    sl_status status = plan_and_train(line, parsed, launch, result);
    free(command);
    return status;
}

/* ---- The command -------------------------------------------------------------------------- */

static void print_stopped(FILE *file, const cli_line *line, const sl_train_options *options,
                          const sl_run_result *result)
{
    fprintf(file, "Stopped after step %" PRId64, result->steps);
    if (options->checkpoints.directory) {
        fprintf(file, ", its checkpoint is saved. To go on:\n  ");
        if (options->checkpoints.settings) {
            fprintf(file, "sluice train --resume ");
            cli_print_word(file, options->checkpoints.directory);
            fprintf(file, "\n");
            return;
        }
        cli_line_print(file, line, "resume");
        fprintf(file, " --resume auto\n");
        return;
    }
    if (isfinite(result->best_valid_loss))
        fprintf(file, ": %s has the best weights so far, those of step %" PRId64 ".", options->save,
                result->saved_step);
    else
        fprintf(file, ": %s has the weights of that step, which were not validated.",
                options->save);
    fprintf(file, " A run with --save-dir DIR can go on where it was stopped.\n");
}

/* A file of options has all of them, as --print-config prints it. */
static void check_line(const cli_line *line, const sl_train_options *options)
{
    static const char *const of_steps[] = {"gamma", "step-epochs"};
    const char *schedule = sl_lr_names[options->lr.kind];
    for (size_t i = 0; options->lr.kind != SL_LR_STEP && i < sizeof of_steps / sizeof *of_steps;
         i++)
        if (cli_line_own_value(line, of_steps[i]))
            cli_refuse("--%s is for the step schedule, but --lr-schedule is %s: leave it out",
                       of_steps[i], schedule);
    if (options->lr.warmup_steps > 0 && cli_line_own_value(line, "warmup-ratio"))
        cli_refuse("--warmup-ratio is what --warmup says in steps: give one of them");
    if (options->lr.kind < SL_LR_LINEAR && cli_line_own_value(line, "min-lr"))
        cli_refuse("--min-lr is for the linear, cosine and wsd schedules, but --lr-schedule is %s: "
                   "leave it out",
                   schedule);
}

static void check_settings(const cli_line *line, const settings *parsed)
{
    const sl_save_options *checkpoints = &parsed->run.checkpoints;
    if (!parsed->run.data)
        cli_refuse("train needs --data, a text file, or a directory with "
                   "wiki.{train,valid,test}.tokens or {train,valid,test}.txt");
    if (checkpoints->resume && strcmp(checkpoints->resume, "auto") == 0 && !checkpoints->directory)
        cli_refuse("--resume auto needs --save-dir DIR");
    if (cli_line_own_value(line, "shard-size") && !checkpoints->directory && !parsed->run.save)
        cli_refuse("--shard-size needs --save DIR or --save-dir DIR");
    if (cli_line_own_value(line, "save-dtype") && !parsed->run.save)
        cli_refuse("--save-dtype needs --save DIR; checkpoints have f32");
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
    SL_TRY(check_outputs(parsed));
    parsed->progress.synthetic = sli_synthetic_is_text(options->data);
    SL_TRY(handle_signals(parsed, launch));
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
        if (!parsed->run.init || access(parsed->run.init, F_OK) == 0) /* it may be yet to be made */
            SL_TRY(cli_saved_model_apply_sizes(line, &parsed->run));
        SL_TRY(sl_train_options_check(&parsed->run));
        cli_settings_print(line->command, parsed);
        return SL_OK;
    }
    check_settings(line, parsed);
    parsed->run.planned_step_seconds = line->planned_seconds;
    parsed->run.planned_device = line->planned_device;
    SL_TRY(cli_saved_model_apply_sizes(line, &parsed->run));
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
    .takes_decoders = true,
    .settings_bytes = sizeof(settings),
    .run = run_train,
};
