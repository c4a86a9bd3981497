/* Lines of text that a person or a file gives. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(const char *line)
{
    return line[strspn(line, " \t\r")] == '\0';
}

static sl_status read_line(cli_lines *lines, const char **line)
{
    ssize_t length = getline(&lines->room, &lines->bytes, lines->from);
    *line = NULL;
    if (length < 0)
        return ferror(lines->from) ? sl_error(SL_ERR_IO, "%s: %s", lines->name, strerror(errno))
                                   : SL_OK;
    lines->number++;
    if (strlen(lines->room) < (size_t)length)
        return sl_error(SL_ERR_FORMAT, "%s: line %" PRId64 ": it has a zero byte, which is no text",
                        lines->name, lines->number);
    if (length > 0 && lines->room[length - 1] == '\n')
        lines->room[--length] = '\0';
    if (length > 0 && lines->room[length - 1] == '\r')
        lines->room[--length] = '\0';
    *line = lines->room;
    return SL_OK;
}

sl_status cli_lines_next(cli_lines *lines, const char **line)
{
    do
        SL_TRY(read_line(lines, line));
    while (*line && is_blank(*line));
    return SL_OK;
}

void cli_lines_clear(cli_lines *lines)
{
    free(lines->room);
    *lines = (cli_lines){NULL};
}
