/* A run's memory, as a table for the screen. */
#ifndef SLI_CLI_MEMORY_TABLE_H
#define SLI_CLI_MEMORY_TABLE_H

#include "sluice/train.h"

/* Gives the table to `print` line by line, without line ends: the peak of every stage's device, in
 * all and by category. Of very many devices only the first are shown. */
void cli_memory_table(const sl_run_info *info, void (*print)(void *context, const char *line),
                      void *context);

#endif
