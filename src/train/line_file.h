/* A file to which lines are added. Of one that cannot be written whole nothing stays: it is taken
 * back, or else, like one that a killed writer has left, ended before the next. */
#ifndef SLI_TRAIN_LINE_FILE_H
#define SLI_TRAIN_LINE_FILE_H

#include "sluice/status.h"

#include <stdbool.h>

typedef struct sli_line_file {
    const char *path; /* borrowed */
    int descriptor;
    bool created; /* it was not there before */
    bool cut;     /* its last line has no end */
} sli_line_file;

/* Opens the file to add to it, or makes it. SL_ERR_IO, with the system's reason alone, as of all.
 */
sl_status sli_line_file_open(const char *path, sli_line_file *out);
void sli_line_file_close(const sli_line_file *file);

/* Takes all lines away; what is no regular file (a pipe) has none. */
sl_status sli_line_file_empty(sli_line_file *file);

/* What is added comes after the lines that are there. */
void sli_line_file_continue(sli_line_file *file);

/* `line` has `bytes` bytes, the last one being its '\n'. */
sl_status sli_line_file_add(sli_line_file *file, const char *line, size_t bytes);

#endif
