/* Command lines as a person could type them. */
#ifndef SLI_CLI_COMMAND_LINE_H
#define SLI_CLI_COMMAND_LINE_H

#include <stdio.h>

/* Prints the words, those quoted that a shell would change, but for the option `without` and its
 * value. */
void cli_print_command(FILE *to, int argc, char *const *argv, const char *without);

#endif
