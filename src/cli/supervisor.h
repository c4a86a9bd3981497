/* What a program tells the `sluice launch-rank` that has started it. Each message is a packet on a
 * Unix socket that it inherits; the environment variable is the descriptor's number.
 *
 *     saving        it writes what must not be cut off, from here on …
 *     saved         … until here
 *     error TEXT    it ends with this error: the launcher shows what several ranks say only once
 *
 * A process without a supervisor tells nobody. */
#ifndef SLI_CLI_SUPERVISOR_H
#define SLI_CLI_SUPERVISOR_H

#include <stdbool.h>

#define CLI_SUPERVISOR_VARIABLE "SLUICE_LAUNCH_FD"

enum { CLI_NOTICE_BYTES = 2000 }; /* the longest message; a longer error is cut off */

/* Takes the variable out of the environment and keeps the socket from the programs that this one
 * starts. To be called before any other descriptor is opened. */
void cli_supervisor_find(void);

/* Something is beginning to be saved, or has been; several may be at a time. Called on any thread
 * and by signal handlers. */
void cli_supervisor_saving(bool begins);

/* False where nobody was told. */
bool cli_supervisor_error(const char *text);

#endif
