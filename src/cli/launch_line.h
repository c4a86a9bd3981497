/* What `sluice launch` and the processes that it starts tell each other: lines of text over TCP.
 *
 *     rank → launcher   TOKEN RANK HOST     first, or the launcher hangs up
 *                       saving              the program writes what must not be cut off …
 *                       saved               … or does so no longer
 *                       error TEXT          it says that it ends with this error
 *                       exit STATUS         the program has ended by itself,
 *                       signal NUMBER       … was killed,
 *                       errno NUMBER        … or could not be started
 *     launcher → rank   welcome             in answer to the first line
 *                       signal NUMBER       send this to the program
 *
 * The launcher hangs up when the job is over: a rank whose program still runs then ends it. */
#ifndef SLI_CLI_LAUNCH_LINE_H
#define SLI_CLI_LAUNCH_LINE_H

#include "sluice/status.h"

#include <stdbool.h>

/* The environment variable that tells a rank where its launcher listens. */
#define CLI_LAUNCHER_VARIABLE "SLUICE_LAUNCHER"

enum { CLI_LINE_BYTES = 2048, CLI_TOKEN_BYTES = 33, CLI_LAUNCHER_BYTES = 1024 };

/* One end of a connection, with what has come of the next line. */
typedef struct cli_line {
    int fd; /* -1: closed */
    size_t used;
    char text[CLI_LINE_BYTES];
} cli_line;

/* Where a launcher listens, on each interface of its host. */
typedef struct cli_launcher {
    int fd;
    char token[CLI_TOKEN_BYTES];   /* known to nobody but the job's processes */
    char text[CLI_LAUNCHER_BYTES]; /* for CLI_LAUNCHER_VARIABLE: "TOKEN PORT ADDRESS…" */
} cli_launcher;

sl_status cli_launcher_listen(cli_launcher *out);

/* The next caller's line, not waiting for one; fd is -1 where there is none. */
cli_line cli_launcher_accept(const cli_launcher *launcher);

/* Calls the launcher whose text is `launcher` at one address after the other, says who this is, and
 * waits for its welcome. */
sl_status cli_launcher_call(const char *launcher, int rank, cli_line *out);

/* Printf-style, without the line end. What cannot be sent at once is not sent. */
void cli_line_send(const cli_line *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

typedef enum cli_line_state {
    CLI_LINE_TEXT,
    CLI_LINE_NOTHING,
    CLI_LINE_CLOSED, /* the other side has hung up, or its process has died */
    CLI_LINE_LOST    /* its host does not answer */
} cli_line_state;

/* Takes the next line, if the whole of it has come, into `text`, without its end. Never waits. */
cli_line_state cli_line_take(cli_line *line, char text[CLI_LINE_BYTES]);

void cli_line_close(cli_line *line);

/* Takes a number from 0 and the blank after it off the beginning of *text; false if there is none.
 */
bool cli_take_number(char **text, int *out);

/* The number of a line "WORD NUMBER"; false if the line is another. */
bool cli_line_number(char *text, const char *word, int *out);

#endif
