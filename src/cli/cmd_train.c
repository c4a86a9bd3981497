/* sluice train: the main job. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/run_options.h"
#include "cli/train_ranks.h"
#include "core/knobs.h"

#include <unistd.h>

enum { KEY_INIT = 0x100, KEY_SAVE, KEY_LOG_JSON, KEY_LOG_INTERVAL, KEY_QUIET };
enum { DEFAULT_LOG_INTERVAL = 10 };

typedef struct settings {
    cli_run_options run;
    const char *log_json;
    cli_progress progress;
} settings;

static const struct argp_option options[] = {
    {0, 0, NULL, 0, "Files and display:", 8},
    {"init", KEY_INIT, "FILE", 0, "Start from the weights in FILE (safetensors)", 8},
    {"save", KEY_SAVE, "FILE", 0,
     "Write the best weights to FILE (safetensors), the vocabulary beside it", 8},
    {"log-json", KEY_LOG_JSON, "FILE", 0, "Write the run as JSON lines", 8},
    {"log-interval", KEY_LOG_INTERVAL, "N", 0, "Batches between two lines (default 10)", 8},
    {"quiet", KEY_QUIET, NULL, 0, "Show the result only", 8},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings *to = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &to->run;
        return 0;
    case KEY_INIT:
        to->run.train.init = text;
        return 0;
    case KEY_SAVE:
        to->run.train.save = text;
        return 0;
    case KEY_LOG_JSON:
        to->log_json = text;
        return 0;
    case KEY_LOG_INTERVAL:
        to->progress.log_interval = cli_parse_integer("log-interval", text, 1, INT64_MAX);
        return 0;
    case KEY_QUIET:
        to->progress.quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        cli_refuse("train takes options only", text);
    case ARGP_KEY_ERROR:
        cli_end_at_option(state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static sl_status run(settings *from)
{
    SL_TRY(sli_knob_contains(SLI_KNOB_DEBUG, "ddp", &from->progress.debug));
    return cli_train_ranks(&from->run, &from->progress, from->log_json);
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
    settings parsed = {
        .progress = {.log_interval = DEFAULT_LOG_INTERVAL, .live = isatty(STDERR_FILENO) == 1}};
    cli_run_parse(&parser, argc, argv, &parsed, &parsed.run);
    if (!parsed.run.train.data)
        cli_refuse("train needs --data DIR, a directory with wiki.{train,valid,test}.tokens or "
                   "{train,valid,test}.txt",
                   NULL);
    return cli_finish(run(&parsed));
}
