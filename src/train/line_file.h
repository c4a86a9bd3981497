/* A file to which lines are added, each whole or not at all: what a disk had no room for is taken
 * back, so that readers never see half a line. */
#ifndef SLI_TRAIN_LINE_FILE_H
#define SLI_TRAIN_LINE_FILE_H

#include "sluice/status.h"

#include <stdbool.h>

typedef struct sli_line_file {
    const char *path; /* borrowed */
    int descriptor;
    bool created; /* it was not there before */
} sli_line_file;

/* Opens the file to add to it, or makes it. SL_ERR_IO, with the system's reason alone, as of all.
 */
sl_status sli_line_file_open(const char *path, sli_line_file *out);
void sli_line_file_close(const sli_line_file *file);

/* Takes all lines away; what is no regular file (a pipe) has none. */
sl_status sli_line_file_empty(const sli_line_file *file);

/* Ends the last line, which may have been cut off when its writer was killed. */
sl_status sli_line_file_end_last(const sli_line_file *file);

/* `line` has `bytes` bytes, the last one being its '\n'. */
sl_status sli_line_file_add(const sli_line_file *file, const char *line, size_t bytes);

#endif
