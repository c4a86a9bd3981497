/* The functions of the program's files: commands and their lines, what is printed, and, for the
 * commands that train or use a model, the display, signals and saved weights. */
#ifndef SLI_CLI_CLI_H
#define SLI_CLI_CLI_H

#include "sluice/app/launch.h"
#include "sluice/app/option.h"
#include "sluice/app/plan.h"
#include "sluice/app/train.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/types.h>

/* ---- Commands ----------------------------------------------------------------------------- */

typedef struct cli_line cli_line;

/* Its options are rows (sluice/app/option.h), from which its command line is read, and its help and
 * documentation are printed. */
typedef struct cli_command {
    const char *name;      /* "train" */
    const char *summary;   /* for the list of commands */
    const char *arguments; /* what may follow the options, "DIR", one form a line; NULL: nothing */
    const char *doc;       /* for the help */
    const char *examples;  /* command lines, each with a line end */
    /* Rows of sluice/app/train.h that it takes, up to two arrays, of which only those that are
     * named (NULL: all); its settings then begin with a sl_train_options, whose fields they set. */
    const sl_option *run_options[2];
    const char *const *run_names;
    const sl_option *options; /* rows of its own, the last without a name; NULL: none */
    bool takes_decoders; /* as models to start from, which have defaults (cli_decoder_default) */
    bool program; /* the first word that is not an option begins another program's command line */
    size_t settings_bytes;
    sl_status (*run)(cli_line *line, void *settings);
} cli_command;

/* In a command's row: the type of the option, and the field of the command's `settings` that it
 * sets; and its range. */
#define FIELD(kind, field) .type = SL_OPTION_##kind, .offset = offsetof(settings, field)
#define RANGE(low, high)   .lowest = low, .highest = high

extern const cli_command cmd_train, cmd_eval, cmd_generate, cmd_model, cmd_schedule, cmd_data,
    cmd_tokenize, cmd_tokenizer, cmd_export, cmd_checkpoint, cmd_report, cmd_watch, cmd_launch,
    cmd_plan, cmd_profile;
extern const cli_command *const cli_commands[]; /* all, then NULL */

/* sluice launch-rank, which mpirun starts for cmd_launch with a program's command line: no command
 * for users. Gives the program's exit status. */
int cmd_launch_rank(char **words);

/* Row `number` of a command; NULL after the last. */
const sl_option *cli_row(const cli_command *command, int number);

/* ---- Command lines ------------------------------------------------------------------------ */

/* An option with its text, NULL for a flag without one. */
typedef struct cli_given {
    const sl_option *option;
    const char *text;
    const char *file; /* that has it, for errors; NULL: the line */
    char *list;       /* its text, where it was given several times; NULL: once */
} cli_given;

/* A command line that was read: options in their order, and other words. Texts are borrowed. */
struct cli_line {
    const cli_command *command;
    cli_given *given; /* [given_count], the first config_count from a file, the last plan_count from
                         a plan */
    int given_count, config_count, plan_count;
    char **words; /* [word_count], then NULL */
    int word_count;
    struct json_t *config;      /* the file's content, which owns the texts from it; NULL: none */
    struct json_t *plans;       /* the same of a plan's file */
    double planned_seconds;     /* of a step, by the plan; 0: there is none */
    const char *planned_device; /* "cpu" or "cuda", which the plan is for; NULL: it does not say */
    sl_schedule *table;         /* of the file that --schedule names; NULL: it names none */
    int exit_status;            /* of the program, where the command succeeds */
};

/* Reads what follows a command's name, and sets its settings: the defaults, then the options of the
 * file that --config names, then those of the line. In both, --preset comes first wherever it
 * stands. Ends the program for --help, for a line that is not valid, for a value that an option
 * does not take, and for an option without the one that it needs.
 *
 * A --schedule that is no name is a file with a table, and is read: options that were given besides
 * must be the file's, the others become it. Those of the first plan in the file that --plan names
 * must not be given besides. Errors: those of sl_schedule_open; *line is to be
 * cleared then too. */
sl_status cli_line_read(const cli_command *command, char **argv, void *settings, cli_line *line);
void cli_line_clear(cli_line *line);

/* Sets a line's settings anew, as if --config had named a file with these options, which `path`
 * names in errors. The line becomes the owner of `config`; it must not have a file already. */
sl_status cli_line_set_again(cli_line *line, struct json_t *config, const char *path,
                             void *settings);

/* Prints the command and its options as a shell would read them, without the option `omitted`. */
void cli_line_print(FILE *file, const cli_line *line, const char *omitted);

/* Prints a word in quotes where a shell would change it. */
void cli_print_word(FILE *file, const char *word);

/* The text of the option's last use; "" for a flag; NULL where it was not given. */
const char *cli_line_value(const cli_line *line, const char *name);

/* The same of the line itself, without the files that --config and --plan name. */
const char *cli_line_own_value(const cli_line *line, const char *name);

/* Ends the program unless the option's value names a file that can be read, and no directory. */
void cli_check_file(const char *option, const char *path);

void cli_settings_default(const cli_command *command, void *settings);

/* Every option that has a value as one JSON object, which --config reads; malloc'ed. Gives the
 * option whose value is not UTF-8 and is left out; NULL: none. */
const sl_option *cli_settings_text(const cli_command *command, const void *settings, char **out);

/* Prints it, or ends the program where a value is not UTF-8. */
void cli_settings_print(const cli_command *command, const void *settings);

/* Where the last error, of the library, names a run's option as a field ("chunks must be …"), names
 * it in the error's text as the command line has it ("--chunks must be …"). */
void cli_name_options(const cli_command *command, sl_status status);

/* ---- A run's own options in its checkpoints (recorded_options.c) ---------------------------- */

/* Has the run keep its options in its checkpoints, with paths that are found from any directory.
 * `settings` begin with a sl_train_options; *text, which the caller frees, must outlive the run. It
 * is NULL where an option's value is not UTF-8. */
void cli_options_record(const cli_command *command, void *settings, char **text);

/* Where the line has --resume but neither --data nor --config, sets the settings anew, with the
 * options of the checkpoint below those of the line. Every process of a job calls it; the first
 * reads. Errors: SL_ERR_NOT_FOUND where the checkpoint has no options, or there is none. */
sl_status cli_options_recover(cli_line *line, const sl_launch_info *launch, void *settings);

/* ---- Help --------------------------------------------------------------------------------- */

void cli_help_print(FILE *file, const cli_command *command); /* --help; NULL: the program's */
void cli_help_print_markdown(void);                          /* docs/options.md */
void cli_help_print_man(const cli_command *command);         /* its help as sluice-train(1) */
void cli_help_print_completion(void);                        /* a script for bash */

/* ---- Errors and warnings ------------------------------------------------------------------ */

/* CONFLICT: what is there is another run's, which another attempt finds as well: EX_CONFIG of
 * sysexits.h. */
enum { CLI_EXIT_ERROR = 1, CLI_EXIT_USAGE = 2, CLI_EXIT_CONFLICT = 78 };

/* To the launcher that has started this process and prints its last error; NULL: there is none.
 * Set by main before anything else. */
extern sl_launch_link *cli_launcher;

/* Prints "sluice: ", the text and a line end on standard error, with control characters and bytes
 * that are not UTF-8 escaped, as in sl_error_text. */
void cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The candidate that is nearest to `word`; NULL: none is near. */
typedef struct cli_near {
    const char *word, *best;
    int distance;
} cli_near;

void cli_near_add(cli_near *near, const char *candidate);

/* Prints a sentence as cli_complain does, or has the launcher print it where there is one, and ends
 * the program with CLI_EXIT_USAGE. A candidate that is near (NULL: none) is added as ": did you
 * mean PREFIXBEST?". */
_Noreturn void cli_refuse_near(const cli_near *near, const char *prefix, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define cli_refuse(...) cli_refuse_near(NULL, "", __VA_ARGS__)

/* The program's exit status: 0 for SL_OK, else CLI_EXIT_ERROR or, for SL_ERR_CONFLICT,
 * CLI_EXIT_CONFLICT, after printing the error text. It is an error as well when standard output
 * could not be written. */
int cli_finish(sl_status status);

/* Writes what standard output still holds. Errors: SL_ERR_IO where it could not be written. */
sl_status cli_flush(void);

/* calloc that ends the program where there is no memory. */
void *cli_allocate(size_t count, size_t bytes);

/* ---- Texts and numbers -------------------------------------------------------------------- */

/* Prints a text from a file on standard output, escaped as above, with blanks up to `width` bytes.
 */
void cli_print_text(const char *text, int width);

/* A text that is printed while it is made. (made_text.c) */
typedef struct cli_made_text {
    const sl_vocab *vocab; /* NULL: its ids are printed */
    char *text;            /* [bytes] so far, without special tokens, and a 0; NULL: none */
    size_t bytes, room, shown;
    int64_t count; /* of tokens that are printed */
    bool quiet;    /* it is made alone */
} cli_made_text;

/* Prints whole characters, and at the end what is left with the line's end. Errors: those of
 * cli_flush. */
sl_status cli_made_text_add(cli_made_text *made, int32_t id);
sl_status cli_made_text_end(cli_made_text *made);
void cli_made_text_clear(cli_made_text *made); /* leaves zeros */

/* Whether a file is called so, and has something before it. */
bool cli_name_ends_with(const char *path, const char *end);

/* Lines of text, one after the other. (read_lines.c) */
typedef struct cli_lines {
    FILE *from;
    const char *name; /* of the file, in errors */
    int64_t number;   /* of the line, from 1 on */
    char *room;
    size_t bytes;
} cli_lines;

/* The next line that is not blank, without its end, "\n" or "\r\n", until the next call; NULL:
 * there is none. Errors: SL_ERR_IO; SL_ERR_FORMAT for a zero byte. */
sl_status cli_lines_next(cli_lines *lines, const char **line);
void cli_lines_clear(cli_lines *lines);

/* A number as text, by value: an argument of printf is `cli_count_text(3).text`. */
typedef struct cli_text {
    char text[32];
} cli_text;

cli_text cli_count_text(int64_t number);            /* "2,049,990" */
cli_text cli_bytes_text(int64_t bytes);             /* "1.25 GiB" */
cli_text cli_duration_text(double seconds);         /* "1:02:03" or "2:03" */
cli_text cli_span_text(double seconds);             /* "44 s", "3.5 hours", "12.25 days", "never" */
cli_text cli_real_text(double value, int decimals); /* "5.20", "inf", "nan"; from a million on
                                                       "1.23e+09" */

/* Whether both paths lead to one regular file that exists. False where one of them is NULL. */
bool cli_is_same_file(const char *a, const char *b);

/* ---- A run's terminal (screen.c) ------------------------------------------------------------ */

typedef struct cli_screen {
    int replicas;
    bool live;            /* the progress line is drawn */
    double live_time;     /* when it was last drawn */
    pthread_mutex_t lock; /* held while a line is printed or drawn */
    bool live_shown;      /* the progress line is; guarded by `lock` */
} cli_screen;

void cli_screen_create(cli_screen *screen, int replicas, bool live);
void cli_screen_clear(cli_screen *screen); /* also clears the progress line */

/* Prints a rank's line with its end, escaped, as names in it may be a file's. */
__attribute__((format(printf, 3, 0))) void cli_screen_print(cli_screen *screen, int rank,
                                                            const char *format, va_list arguments);

/* Draws the progress line, where it may be drawn (again). */
__attribute__((format(printf, 2, 3))) void cli_screen_draw_live(cli_screen *screen,
                                                                const char *format, ...);

/* A warning while the run goes on. */
__attribute__((format(printf, 2, 3))) void cli_screen_warn(cli_screen *screen, const char *format,
                                                           ...);

/* ---- A run's display ---------------------------------------------------------------------- */

typedef struct cli_progress_options {
    /* Batches between two lines, or where that is 0 seconds. */
    int64_t log_interval;
    double log_seconds;
    bool quiet;     /* the first replica's results only */
    bool live;      /* standard error is a terminal */
    bool synthetic; /* the text's best possible perplexity is known */
    int restarts;   /* of the job, after which the run goes on by itself */
    /* The run's log, and what a reader makes of it: a trace, event files in a directory, and a page
     * at an address; NULL: none. */
    const char *log_json, *trace, *tensorboard, *serve;
    const char *command; /* by which the run was started; for its log */
} cli_progress_options;

/* The run's log, and the process that shows it (outputs.c). */
typedef struct cli_outputs {
    sl_run_log *log;   /* NULL: none */
    FILE *unnamed_log; /* where the reader is the only one who needs the log */
    pid_t reader;      /* `sluice watch`; 0: none, or it has ended */
    int reader_input;  /* which ends when this process does */
    char reason[128];
} cli_outputs;

/* Creates what the options ask for. `failed` is told where the log cannot be written later. The
 * caller clears *out, also after an error. */
sl_status cli_outputs_create(const cli_progress_options *options, sl_reporter_failed *failed,
                             void *context, cli_outputs *out);

/* Why the reader has ended before the run, when that is found; else NULL. */
const char *cli_outputs_check(cli_outputs *outputs);

/* When the run has ended: waits until the reader has shown all of it, or kills one that hangs. */
void cli_outputs_clear(cli_outputs *outputs);

/* Of the replicas of one process (progress.c). */
typedef struct cli_progress cli_progress;

/* For the run's ranks first_rank … first_rank + count - 1, as reporters count them: a process that
 * is one rank of a group has that one; a process that is alone has one for each of its `replicas`.
 * `replicas` are those of the whole run. Errors: those of sl_run_log_create; SL_ERR_IO where the
 * log cannot be shown as the options ask for. */
sl_status cli_progress_create(const cli_progress_options *options, int first_rank, int count,
                              int replicas, cli_progress **out);

/* Also clears the progress line that a failed run has left. NULL is allowed. */
void cli_progress_destroy(cli_progress **progress);

/* The run's reporters: [*count]. */
const sl_reporter *cli_progress_reporters(const cli_progress *progress, int *count);

/* ---- What to change in a run (plan_changes.c) --------------------------------------------- */

typedef struct cli_change_text {
    char text[1024];
} cli_change_text;

/* What a plan for a run changes. `options`: what to add to the command line, "--pp 1 --balance 6";
 * `replaced`: the first of these as it was, "--pp 2", or its value alone where it is the only one.
 */
typedef struct cli_change {
    cli_change_text options, replaced;
    int count; /* of options */
} cli_change;

/* "4,3": the modules of each stage [stages], malloc'ed. */
char *cli_balance_text(const int *balance, int stages);

/* A run's command line, or what can be in it: a change says what is then to be said as well. */
typedef struct cli_changed_line {
    const sl_train_options *run;
    bool has_balance, has_devices;
} cli_changed_line;

cli_change cli_describe_change(const cli_changed_line *line, const sl_found_plan *plan);

/* What the first replica measures of its steps but the first. */
typedef struct cli_run_meter {
    cli_screen *screen;
    bool is_warm;       /* the first step has ended */
    sl_run_meter meter; /* its memory is added at the end */
} cli_run_meter;

/* Prints at the run's end what would make its step shorter by more than 10%, if anything. */
sl_reporter cli_run_meter_reporter(cli_run_meter *meter);

/* ---- A run by its log (logged_run.c) ------------------------------------------------------ */

typedef struct cli_logged_run {
    struct sli_run_history *history;
    int stages, pipeline_ranks;
    sl_run_meter meter;
    sl_run_measures measures; /* medians of its steps, and of its last timeline; in `meter` */
} cli_logged_run;

/* To be cleared, also after an error. Errors: those of reading a log; SL_ERR_FORMAT where it does
 * not say its layout; SL_ERR_NOT_FOUND where it has no step, or no timeline of one;
 * those of sl_run_meter_measures. */
sl_status cli_logged_run_read(const char *path, cli_logged_run *out);
void cli_logged_run_clear(cli_logged_run *run);

/* (logged_options.c) Sets a line's settings anew, with the run's options as far as the command
 * takes them; its texts are not among them, and neither are the command's own options but ntokens.
 * Errors: those of cli_line_set_again. */
sl_status cli_logged_run_set(const cli_logged_run *run, cli_line *line, const char *path,
                             void *settings);

int64_t cli_logged_run_tokens(const cli_logged_run *run); /* of its vocabulary */

/* ---- What sluice plan has found (show_plans.c) --------------------------------------------- */

typedef struct cli_plans {
    const sl_train_options *run;
    sl_found_plan *plans; /* [count] the best first */
    int count;
    sl_schedule *table;       /* of the first */
    sl_simulation simulation; /* of it, in milliseconds */
    sl_plan_helps helps;
    /* Of a run that a log tells of, else NULL: as it is, and what to change in it [change_count].
     */
    sl_found_plan *logged, *changes;
    int change_count;
} cli_plans;

/* "1 x 2 SCHEDULE on shared cores, 4 chunks, recompute always" */
cli_change_text cli_plan_shape(const sl_found_plan *plan);

/* What is shown of any plan. */
typedef struct cli_plan_bar {
    cli_change_text shape;
    sl_step_costs costs;
    bool shares_cores; /* its pipeline ranks have all cores together */
} cli_plan_bar;

/* Where the time of a step goes (plan_times.c). */
enum {
    CLI_PLAN_COMPUTE,
    CLI_PLAN_RECOMPUTE,
    CLI_PLAN_BUBBLE,
    CLI_PLAN_IMBALANCE,
    CLI_PLAN_EXCHANGE,
    CLI_PLAN_UPDATE,
    CLI_PLAN_PARTS
};

extern const char *const cli_plan_part_names[CLI_PLAN_PARTS + 1];

/* In seconds, which add up to the step. */
void cli_plan_find_parts(const cli_plan_bar *plan, double parts[CLI_PLAN_PARTS]);

/* What would make a plan's tokens so many times as fast. */
typedef struct cli_plan_help {
    const char *name;
    double gain;
    bool is_lower_bound; /* more is not searched for */
} cli_plan_help;

enum { CLI_PLAN_HELPS = SL_PLAN_HELPS + 2 };

/* The most first. What was planned again is there, also where it does not help; of the rest, which
 * follows from the parts of the step, what does. */
int cli_plan_helps(const cli_plan_bar *plan, const sl_plan_helps *planned,
                   cli_plan_help helps[CLI_PLAN_HELPS]);

/* Prints all of that of [count] plans, the best first, and the table of the first; NULL: none. */
sl_status cli_plan_print_times(const cli_plan_bar *bars, int count, const sl_plan_helps *helps,
                               const sl_schedule *table);

/* Turns the times of a simulation, which are in seconds, into milliseconds. */
void cli_simulation_to_ms(const sl_schedule *table, sl_simulation *simulation);

/* A picture of that, SVG; malloc'ed. `simulation` is the table's, in milliseconds; `which` says of
 * what run of it. */
sl_status cli_plan_draw(const cli_plan_bar *bars, int count, const sl_schedule *table,
                        const sl_simulation *simulation, const char *which, char **text);

/* The members of --json that say so; NULL where there is no memory. `simulation` is the table's, in
 * milliseconds. */
struct json_t *cli_plan_bars_json(const cli_plan_bar *bars, int count, const sl_plan_helps *helps,
                                  const sl_schedule *table, const sl_simulation *simulation);

/* Moves the members of another object, or of none for want of memory, to *object; NULL: they are
 * not all there. */
void cli_add_members(struct json_t **object, struct json_t *members);

/* As --json prints them, malloc'ed; takes the object, or NULL for want of memory. */
sl_status cli_print_plan_json(struct json_t *root, char **text);
sl_status cli_plans_json(const cli_plans *found, char **text);
sl_status cli_plans_print(const cli_plans *found);
sl_status cli_plans_draw(const cli_plans *found, char **text); /* SVG; malloc'ed */

/* ---- Plans for a cluster (plan_cluster.c) --------------------------------------------------- */

typedef struct cli_cluster_settings {
    const char *cluster, *output, *svg, *csv; /* files; NULL: none */
    const char *what_if;                      /* lists of changes; NULL: none */
    double tokens;                            /* of the whole training; negative: not given */
    bool json;
} cli_cluster_settings;

/* "512 x 16 SCHEDULE of 2 stages, 4 chunks, recompute always, zero" */
cli_change_text cli_cluster_plan_shape(const sl_cluster_plan *plan);
double cli_tokens_a_day(const sl_cluster_plan *plan); /* with failures */

/* Searches and shows the best plans. */
sl_status cli_plan_cluster(const sl_plan_search_options *options,
                           const cli_cluster_settings *asked);

/* The same of the best plan for each combination of `what_if` (what_if.c). Errors besides those of
 * a search: SL_ERR_INVALID for bad lists. */
sl_status cli_plan_what_if(const sl_plan_search_options *options,
                           const cli_cluster_settings *asked);
bool cli_is_what_if(const char *text); /* a list with its name */

/* ---- Plans (print_plan.c) ----------------------------------------------------------------- */

/* All of a run's plan, with who has decided what. */
void cli_plan_print(const cli_line *line, const sl_plan *plan);

/* The stages of a replica, and what each needs. */
void cli_plan_print_stages(const sl_plan *plan, int replica);

/* ---- Warnings (warnings.c) ---------------------------------------------------------------- */

/* Warns where some bytes of the text are not UTF-8, and where more than half of it is <unk>. Its
 * vocabulary lies beside the weights `init`, or, where that is NULL, is the vocabulary of the text
 * at `source`. */
void cli_warn_of_text(const sl_text_info *text, const char *init, const char *source);

/* Warns if products in this precision have no hardware on one of the pipe's devices, and of GPUs on
 * which sluice has not been tried: several in the run's list (may be NULL), or other ones. */
void cli_warn_of_devices(const sl_pipe *pipe, const char *devices, sl_precision precision);

/* Of a run that begins. `quiet`: without advice on its layout. */
void cli_warn_of_run(const sl_run_info *info, bool quiet);

/* ---- Signals (signals.c) ------------------------------------------------------------------ */

/* Handles SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGUSR1 and SIGUSR2 from now on. `saves`: the run calls
 * cli_signals_request, and saves something when it stops. `speaks`: this process prints what a
 * signal does; one process of a job does. */
sl_status cli_signals_handle(bool saves, bool speaks);

/* When the run has ended: a signal no longer prints that it has stopped the run, and only a second
 * one ends the process at once. */
void cli_signals_end_run(void);

/* What signals have asked for since the last call, as flags; a stop stays. A run's `request`. */
unsigned cli_signals_request(void *context);

/* Whether the terminal or the output's reader is gone: output that cannot be written is then no
 * error. */
bool cli_signals_output_lost(void);

/* ---- Saved models (saved_model.c) --------------------------------------------------------- */

/* The row of commands that do so; their settings begin with `sl_train_options run`. */
#define CLI_DEVICES_ROW                                                                            \
    {                                                                                              \
        .name = "devices", .value = "LIST", .group = "Pipeline", FIELD(TEXT, run.devices),         \
        .help =                                                                                    \
            "Devices, one for each pipeline rank. cpu:0,cpu:1 divide the machine's cores evenly; " \
            "cpu:0-3 names cores; cuda:0 is a GPU, cuda:0/1 a virtual device on it. Several "      \
            "processes divide the list; default: one for each process"                             \
    }

/* A saved model, built again. */
typedef struct cli_saved_model {
    sl_saved_model *saved;
    sl_model_options options;
    sl_vocab *tokenizer;   /* the one that was given; NULL: none */
    const sl_vocab *vocab; /* it, or that of `saved`; NULL: there is none */
    sl_group *group;       /* of the processes that a launcher has started; NULL: there is one */
    bool prints;           /* this is the first of them */
    sl_device_list *devices;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe; /* for inference, one stage a device */
} cli_saved_model;

/* The group of the processes that a launcher has started. */
sl_status cli_group_create(const sl_launch_info *launch, sl_group **out);

typedef struct cli_model_needs {
    bool tokenizer;   /* a model without one is refused */
    bool overlapping; /* batches are cut into a micro-batch a stage, so that stages work at once */
    /* (optional) The option for cli_context, which is checked before weights are loaded. */
    const cli_line *line;
    const char *context;
    int64_t given;
} cli_model_needs;

/* Loads options->init on options->devices, which the processes of this machine divide. The caller
 * clears `*out`, also after an error. */
sl_status cli_saved_model_load(const sl_train_options *options, cli_model_needs needs,
                               cli_saved_model *out);
void cli_saved_model_clear(cli_saved_model *model);

/* The positions of a row for a model: `given` where the command line has option `name`, else the
 * model's own, or SL_DEFAULT_CONTEXT where it does not say, with a warning. */
int64_t cli_context(const cli_line *line, const char *name, int64_t given,
                    const cli_saved_model *model);

/* Sets a training's model options, except dropout, to those of the model that it starts from.
 * Without one, or where there are tensors alone, the options do not change. Errors: SL_ERR_INVALID
 * where the command line has another size; those of opening a model. */
sl_status cli_saved_model_apply_sizes(const cli_line *line, sl_train_options *train);

/* What option `name` is by default where a model of another family than the tutorials' is started
 * from, for the help: "2e-5 with --init, …"; "": as for the tutorials'. */
void cli_decoder_default(const char *name, char *text, size_t bytes);

/* Returns `status`; where that is SL_ERR_NOT_FOUND and `path` a run's directory instead of a
 * checkpoint, the error names the checkpoints in it. */
sl_status cli_name_checkpoints(sl_status status, const char *path);

#endif
