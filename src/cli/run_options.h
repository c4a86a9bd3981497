/* The options of a run, as the commands that build a model take them. */
#ifndef SLI_CLI_RUN_OPTIONS_H
#define SLI_CLI_RUN_OPTIONS_H

#include "cli/command.h"
#include "sluice/train.h"

/* The settings of such a command begin with this, its first table is of `train`. */
typedef struct cli_run_options {
    sl_train_options train;
    bool preset_replicas; /* their number was not asked for: it is the preset's or the devices' */
} cli_run_options;

/* Sets a command's settings, whose defaults are set: those of the preset first, wherever that
 * stands. Ends the program for a value that an option does not take. */
void cli_set_run(const cli_command_line *line, cli_run_options *settings);

#endif
