/* The subcommands: each parses its own arguments and returns the program's exit status: 0, 1 after
 * an error at run time, 2 for arguments that make no sense. */
#ifndef SLI_CLI_COMMANDS_H
#define SLI_CLI_COMMANDS_H

#include "sluice/status.h"

/* argv[0] is the subcommand's name. */
int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_model(int argc, char **argv);
int cmd_schedule(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_checkpoint(int argc, char **argv);
int cmd_launch(int argc, char **argv);
int cmd_launch_rank(int argc, char **argv); /* what cmd_launch starts; not in the help */

#endif
