/* The subcommands. */
#ifndef SLI_CLI_COMMANDS_H
#define SLI_CLI_COMMANDS_H

#include "cli/command.h"

extern const cli_command cmd_train, cmd_eval, cmd_generate, cmd_model, cmd_schedule, cmd_data,
    cmd_checkpoint, cmd_launch;

/* What cmd_launch has mpirun start: no command for users. argv[0] is its name. */
int cmd_launch_rank(int argc, char **argv);

#endif
