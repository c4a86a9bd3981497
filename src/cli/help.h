/* Documentation that is made from the commands' rows. */
#ifndef SLI_CLI_HELP_H
#define SLI_CLI_HELP_H

#include "cli/command.h"

/* `commands` ends with NULL. */

/* A section for each command, with a table of its options: docs/options.md. */
void cli_print_markdown(const cli_command *const *commands);

/* The manual page of a command, sluice-train(1); for `command` NULL that of the program. */
void cli_print_man(const cli_command *const *commands, const cli_command *command);

/* A completion script for bash. */
void cli_print_completion(const cli_command *const *commands);

#endif
